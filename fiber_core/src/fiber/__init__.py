"""Programs written for ``multiprocessing``, on a cluster.

Everything is imported on first use: ``import fiber`` opens nothing, starts nothing and reads no
environment.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fiber._version import __version__

if TYPE_CHECKING:
    from multiprocessing import (
        AuthenticationError,
        BufferTooShort,
        ProcessError,
        TimeoutError,  # noqa: A004 - multiprocessing's own name for its own class
    )

    from fiber.api import cpu_count, get_backend
    from fiber.connection import Pipe
    from fiber.exceptions import FiberError, WorkerCrashedError
    from fiber.hints import meta
    from fiber.pool import Pool
    from fiber.process import Process, active_children, current_process, parent_process
    from fiber.queues import Queue, SimpleQueue
    from fiber.runtime import init

_HOMES = {
    "AuthenticationError": "multiprocessing",
    "BufferTooShort": "multiprocessing",
    "FiberError": "fiber.exceptions",
    "Pipe": "fiber.connection",
    "Pool": "fiber.pool",
    "Process": "fiber.process",
    "ProcessError": "multiprocessing",
    "Queue": "fiber.queues",
    "SimpleQueue": "fiber.queues",
    "TimeoutError": "multiprocessing",
    "WorkerCrashedError": "fiber.exceptions",
    "active_children": "fiber.process",
    "cpu_count": "fiber.api",
    "current_process": "fiber.process",
    "get_backend": "fiber.api",
    "init": "fiber.runtime",
    "meta": "fiber.hints",
    "parent_process": "fiber.process",
}

__all__ = [
    "AuthenticationError",
    "BufferTooShort",
    "FiberError",
    "Pipe",
    "Pool",
    "Process",
    "ProcessError",
    "Queue",
    "SimpleQueue",
    "TimeoutError",
    "WorkerCrashedError",
    "__version__",
    "active_children",
    "cpu_count",
    "current_process",
    "get_backend",
    "init",
    "meta",
    "parent_process",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
