"""The runtime of a program that is about to start processes, which get ready meanwhile."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._runtime import runtime

__all__ = ["flush_standard_streams", "starting"]


def starting(judge: Callable[[runtime.Runtime], object]) -> runtime.Runtime:
    """This process's runtime, whose backend was told to get ready.

    What is forked on this host is forked by a process that needs about as long to get ready as this
    one does to import the rest and to find out what the program is set to. So both are done at
    once, where nothing says yet that jobs run elsewhere.

    Args:
        judge: raises where what the caller is about to do makes no sense; nothing is left then.

    Raises:
        Exception: as :func:`fiber._runtime.runtime.current`, the backend or ``judge``.
    """
    # who has imported it may have used it, or said what it shall be
    if "fiber._runtime.runtime" in sys.modules:
        from fiber._runtime import runtime
        from fiber._wire import fork

        # a process that must not use fiber starts nothing
        fork.check()
        if runtime.started() is not None or runtime.argument("backend"):
            return _ready(judge)
    if os.environ.get("FIBER_BACKEND"):
        return _ready(judge)
    from fiber._agent.supervisor.start import end_early, start_early

    start_early()
    try:
        return _ready(judge)
    finally:
        # the backend has taken it, or has no use for it
        end_early()


def flush_standard_streams() -> None:
    """Write what this process has buffered, so that it comes before what a new child writes."""
    from multiprocessing import util

    vars(util)["_flush_std_streams"]()


def _ready(judge: Callable[[runtime.Runtime], object]) -> runtime.Runtime:
    with _collecting_nothing():
        from fiber._runtime import runtime

        current = runtime.current()
        judge(current)
        current.backend.warm_up()
    return current


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    # of two hundred modules that are imported nothing is garbage, and they are looked at six times
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
