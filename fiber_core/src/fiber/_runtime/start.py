"""Runtime of a program that is about to start processes, warmed up with a supervisor."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fiber._runtime import runtime

__all__ = ["flush_standard_streams", "ready_runtime", "supervisor_ahead", "warm_runtime"]


@contextlib.contextmanager
def supervisor_ahead() -> Iterator[None]:
    """Start a supervisor before a ``with`` block that imports, and makes a runtime ready.

    Jobs on this host are forked by a supervisor that takes about as long to get ready as this
    process takes to import what starts them and to read the settings. So both are done at the same
    time, unless it is known already that jobs run on another backend, or there is a supervisor. No
    garbage is looked for meanwhile.
    """
    if not _needs_supervisor():
        yield
        return
    with _gc_paused(once=True):
        from fiber._agent.supervisor.start import discard_prestarted, prestart

        prestart()
        try:
            yield
        finally:
            # the backend has taken it, or has no use for it
            discard_prestarted()


def _needs_supervisor() -> bool:
    # a program that has imported it may have used it, or called fiber.init()
    if "fiber._runtime.runtime" in sys.modules:
        from fiber._runtime import runtime
        from fiber._wire import fork

        # a process that may not use fiber starts nothing
        fork.check()
        if runtime.started() is not None or runtime.argument("backend"):
            return False
    return not os.environ.get("FIBER_BACKEND")


def ready_runtime(check: Callable[[runtime.Runtime], object]) -> runtime.Runtime:
    """This process's runtime, with its backend warmed up; see :func:`supervisor_ahead`.

    Args:
        check: raises if the caller's options are wrong; nothing is left running then.

    Raises:
        Exception: as :func:`fiber._runtime.runtime.current`, the backend or ``check``.
    """
    with supervisor_ahead():
        return warm_runtime(check)


def warm_runtime(check: Callable[[runtime.Runtime], object]) -> runtime.Runtime:
    """Like :func:`ready_runtime`, within a block of :func:`supervisor_ahead`."""
    with _gc_paused():
        from fiber._runtime import runtime

        with runtime.brief_errors():
            current = runtime.current()
            check(current)
            current.backend.warm_up()
    return current


def flush_standard_streams() -> None:
    """Flush stdout and stderr, so that buffered text comes before the output of a new child."""
    from multiprocessing import util

    vars(util)["_flush_std_streams"]()


@contextlib.contextmanager
def _gc_paused(*, once: bool = False) -> Iterator[None]:
    """Pause the collector: imports leave no garbage, and it would scan modules thirty times, 5 ms.

    Args:
        once: True where this happens once in a program.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if once and not gc.get_freeze_count():
                # all objects become old without a scan, or the next allocation would scan them; later
                # ones count towards a full collection as ever
                gc.freeze()
                gc.unfreeze()
            gc.enable()
