"""The runtime of a program that is about to start processes, which get ready meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable

from fiber import runtime
from fiber.transport import fork

__all__ = ["starting"]


def starting(judge: Callable[[runtime.Runtime], object]) -> runtime.Runtime:
    """This process's runtime, whose backend was told to get ready.

    What is forked on this host is forked by a process that needs about as long to get ready as this
    one does to find out what the program is set to. So both are done at once, where nothing says
    yet that jobs run elsewhere.

    Args:
        judge: raises where what the caller is about to do makes no sense; nothing is left then.

    Raises:
        Exception: as :func:`fiber.runtime.current`, the backend or ``judge``.
    """
    if runtime.started() is not None or _is_named():
        current = runtime.current()
        judge(current)
        current.backend.warm_up()
        return current
    # a process that must not use fiber starts nothing
    fork.check()
    from fiber.launch.supervisor.start import end_early, start_early

    start_early()
    try:
        current = runtime.current()
        judge(current)
        current.backend.warm_up()
    finally:
        # the backend has taken it, or has no use for it
        end_early()
    return current


def _is_named() -> bool:
    said = runtime._arguments.get("backend")  # noqa: SLF001 - ours
    return bool(said or os.environ.get("FIBER_BACKEND"))
