"""Programs written for ``multiprocessing``, on a cluster.

Everything is imported on first use: ``import fiber`` opens nothing, starts nothing and reads no
environment.
"""

from __future__ import annotations

import importlib

from fiber._version import __version__

# as in typing, which takes most of the time that this import would take
TYPE_CHECKING = False
if TYPE_CHECKING:
    from multiprocessing import (
        AuthenticationError,
        BufferTooShort,
        ProcessError,
        TimeoutError,  # noqa: A004 - multiprocessing's own name for its own class
    )
    from typing import Any

    from fiber._runtime.runtime import cpu_count, get_backend, init
    from fiber.connection import Pipe
    from fiber.context import _default_context as _context
    from fiber.exceptions import FiberError, WorkerCrashedError
    from fiber.executor import Executor
    from fiber.hints import meta
    from fiber.managers.sync import Manager
    from fiber.pool import Pool
    from fiber.process import Process, active_children, current_process, parent_process
    from fiber.queues import JoinableQueue, Queue, SimpleQueue
    from fiber.sharedctypes import Array, RawArray, RawValue, Value
    from fiber.sharing import Shared, shared
    from fiber.synchronize import (
        Barrier,
        BoundedSemaphore,
        Condition,
        Event,
        Lock,
        RLock,
        Semaphore,
    )
    from fiber.watching import status, trace

    freeze_support = _context.freeze_support
    get_all_start_methods = _context.get_all_start_methods
    get_context = _context.get_context
    get_logger = _context.get_logger
    get_start_method = _context.get_start_method
    log_to_stderr = _context.log_to_stderr
    reducer = _context.reducer
    set_executable = _context.set_executable
    set_forkserver_preload = _context.set_forkserver_preload
    set_start_method = _context.set_start_method
    allow_connection_pickling = _context.allow_connection_pickling

_HOMES = {
    "AuthenticationError": "multiprocessing",
    "Barrier": "fiber.synchronize",
    "BoundedSemaphore": "fiber.synchronize",
    "BufferTooShort": "multiprocessing",
    "Condition": "fiber.synchronize",
    "Event": "fiber.synchronize",
    "Executor": "fiber.executor",
    "FiberError": "fiber.exceptions",
    "JoinableQueue": "fiber.queues",
    "Lock": "fiber.synchronize",
    "Manager": "fiber.managers.sync",
    "Pipe": "fiber.connection",
    "Pool": "fiber.pool",
    "Process": "fiber.process",
    "ProcessError": "multiprocessing",
    "Queue": "fiber.queues",
    "RLock": "fiber.synchronize",
    "SUBDEBUG": "multiprocessing.util",
    "SUBWARNING": "multiprocessing.util",
    "Semaphore": "fiber.synchronize",
    "Shared": "fiber.sharing",
    "SimpleQueue": "fiber.queues",
    "TimeoutError": "multiprocessing",
    "WorkerCrashedError": "fiber.exceptions",
    "active_children": "fiber.process",
    "cpu_count": "fiber._runtime.runtime",
    "current_process": "fiber.process",
    "get_backend": "fiber._runtime.runtime",
    "init": "fiber._runtime.runtime",
    "meta": "fiber.hints",
    "parent_process": "fiber.process",
    "shared": "fiber.sharing",
    "status": "fiber.watching",
    "trace": "fiber.watching",
}

# methods of the default context, as in the stdlib's package
_METHODS = {
    "Array",
    "RawArray",
    "RawValue",
    "Value",
    "allow_connection_pickling",
    "freeze_support",
    "get_all_start_methods",
    "get_context",
    "get_logger",
    "get_start_method",
    "log_to_stderr",
    "reducer",
    "set_executable",
    "set_forkserver_preload",
    "set_start_method",
}

__all__ = [
    "Array",
    "AuthenticationError",
    "Barrier",
    "BoundedSemaphore",
    "BufferTooShort",
    "Condition",
    "Event",
    "Executor",
    "FiberError",
    "JoinableQueue",
    "Lock",
    "Manager",
    "Pipe",
    "Pool",
    "Process",
    "ProcessError",
    "Queue",
    "RLock",
    "RawArray",
    "RawValue",
    "Semaphore",
    "Shared",
    "SimpleQueue",
    "TimeoutError",
    "Value",
    "WorkerCrashedError",
    "__version__",
    "active_children",
    "allow_connection_pickling",
    "cpu_count",
    "current_process",
    "freeze_support",
    "get_all_start_methods",
    "get_backend",
    "get_context",
    "get_logger",
    "get_start_method",
    "init",
    "log_to_stderr",
    "meta",
    "parent_process",
    "reducer",
    "set_executable",
    "set_forkserver_preload",
    "set_start_method",
    "shared",
    "status",
    "trace",
]


# names that users look for here
_ELSEWHERE = {
    "AsyncManager": "fiber.managers.AsyncManager",
    "Ring": "fiber.experimental.Ring",
}

# sub-modules that are attributes of the stdlib's package, at least once imported
_MODULES = {
    "connection",
    "context",
    "dummy",
    "managers",
    "pool",
    "process",
    "queues",
    "reduction",
    "shared_memory",
    "sharedctypes",
    "synchronize",
    "util",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fiber.{name}")
    if name in _METHODS:
        value = getattr(importlib.import_module("fiber.context")._default_context, name)  # noqa: SLF001 - ours
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        if name in _ELSEWHERE:
            msg += f"; it is {_ELSEWHERE[name]}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
