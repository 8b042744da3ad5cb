"""Contexts: the package's functions and classes bound to a start method each.

Each start method starts processes in Fiber's one way; see ``fiber._base.interpreter``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from multiprocessing import (
    AuthenticationError,
    BufferTooShort,
    ProcessError,
    TimeoutError,  # noqa: A004 - multiprocessing's own name for its own class
    spawn,
)
from multiprocessing import context as _stdlib
from multiprocessing.context import assert_spawning, get_spawning_popen, set_spawning_popen
from typing import TYPE_CHECKING, Any

from fiber._base.interpreter import (
    DEFAULT_START_METHOD,
    choose_start_method,
    chosen_start_method,
    start_method_names,
)
from fiber.process import Process

if TYPE_CHECKING:
    from fiber import connection, managers, pool, process, queues, synchronize

__all__ = [
    "AuthenticationError",
    "BaseContext",
    "BufferTooShort",
    "DefaultContext",
    "FiberContext",
    "FiberProcess",
    "ForkContext",
    "ForkProcess",
    "ForkServerContext",
    "ForkServerProcess",
    "Process",
    "ProcessError",
    "SpawnContext",
    "SpawnProcess",
    "TimeoutError",
    "assert_spawning",
    "get_spawning_popen",
    "set_spawning_popen",
]


class BaseContext(_stdlib.BaseContext):
    """Base of all contexts: the names of the package, bound to one start method.

    A subclass of the stdlib's, with Fiber's objects for the stdlib's, so some annotations differ.
    """

    _name: str
    if TYPE_CHECKING:
        Process: type[process.Process]

    # -- processes

    def cpu_count(self) -> int:
        """CPUs that the selected backend has for jobs."""
        from fiber._runtime.runtime import cpu_count

        return cpu_count()

    def Pool(  # type: ignore[override]  # noqa: N802 - the stdlib's name, as below
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
    ) -> pool.Pool:
        """A pool of workers, see :class:`fiber.pool.Pool`."""
        from fiber import pool

        return pool.Pool(
            processes, initializer, initargs, maxtasksperchild, context=self.get_context()
        )

    def Manager(self) -> managers.SyncManager:  # type: ignore[override]  # noqa: N802
        """A started manager, see :class:`fiber.managers.SyncManager`."""
        from fiber import managers

        manager = managers.SyncManager(ctx=self.get_context())
        manager.start()
        return manager

    # -- queues and pipes

    def Pipe(self, duplex: bool = True) -> tuple[connection.Connection, connection.Connection]:  # type: ignore[override]  # noqa: N802
        """Two connected ends, see :func:`fiber.Pipe`."""
        from fiber import connection

        return connection.Pipe(duplex)

    def Queue(self, maxsize: int = 0) -> queues.Queue[Any]:  # type: ignore[override]  # noqa: N802
        """A queue, see :class:`fiber.queues.Queue`."""
        from fiber import queues

        return queues.Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> queues.JoinableQueue[Any]:  # type: ignore[override]  # noqa: N802
        """A queue that counts unfinished tasks, see :class:`fiber.queues.JoinableQueue`."""
        from fiber import queues

        return queues.JoinableQueue(maxsize, ctx=self.get_context())

    def SimpleQueue(self) -> queues.SimpleQueue[Any]:  # type: ignore[override]  # noqa: N802
        """A queue with ``put`` and ``get`` only, see :class:`fiber.queues.SimpleQueue`."""
        from fiber import queues

        return queues.SimpleQueue(ctx=self.get_context())

    # -- synchronization

    def Lock(self) -> synchronize.Lock:  # type: ignore[override]  # noqa: N802
        """A lock, see :class:`fiber.synchronize.Lock`."""
        from fiber import synchronize

        return synchronize.Lock(ctx=self.get_context())

    def RLock(self) -> synchronize.RLock:  # type: ignore[override]  # noqa: N802
        """A lock that its holder may acquire again, see :class:`fiber.synchronize.RLock`."""
        from fiber import synchronize

        return synchronize.RLock(ctx=self.get_context())

    def Condition(self, lock: Any = None) -> synchronize.Condition:  # type: ignore[override]  # noqa: N802
        """A condition, see :class:`fiber.synchronize.Condition`."""
        from fiber import synchronize

        return synchronize.Condition(lock, ctx=self.get_context())

    def Semaphore(self, value: int = 1) -> synchronize.Semaphore:  # type: ignore[override]  # noqa: N802
        """A semaphore, see :class:`fiber.synchronize.Semaphore`."""
        from fiber import synchronize

        return synchronize.Semaphore(value, ctx=self.get_context())

    def BoundedSemaphore(self, value: int = 1) -> synchronize.BoundedSemaphore:  # type: ignore[override]  # noqa: N802
        """A bounded semaphore, see :class:`fiber.synchronize.BoundedSemaphore`."""
        from fiber import synchronize

        return synchronize.BoundedSemaphore(value, ctx=self.get_context())

    def Event(self) -> synchronize.Event:  # type: ignore[override]  # noqa: N802
        """An event, see :class:`fiber.synchronize.Event`."""
        from fiber import synchronize

        return synchronize.Event(ctx=self.get_context())

    def Barrier(  # type: ignore[override]  # noqa: N802
        self,
        parties: int,
        action: Callable[..., Any] | None = None,
        timeout: float | None = None,
    ) -> synchronize.Barrier:
        """A barrier, see :class:`fiber.synchronize.Barrier`."""
        from fiber import synchronize

        return synchronize.Barrier(parties, action, timeout, ctx=self.get_context())

    # -- shared memory

    def RawValue(self, typecode_or_type: Any, *args: Any) -> Any:  # noqa: N802
        """A shared ctypes object, see :func:`fiber.sharedctypes.RawValue`."""
        from fiber import sharedctypes

        return sharedctypes.RawValue(typecode_or_type, *args)

    def RawArray(self, typecode_or_type: Any, size_or_initializer: Any) -> Any:  # noqa: N802
        """A shared ctypes array, see :func:`fiber.sharedctypes.RawArray`."""
        from fiber import sharedctypes

        return sharedctypes.RawArray(typecode_or_type, size_or_initializer)

    def Value(self, typecode_or_type: Any, *args: Any, lock: Any = True) -> Any:  # noqa: N802
        """A shared ctypes object with a lock, see :func:`fiber.sharedctypes.Value`."""
        from fiber import sharedctypes

        return sharedctypes.Value(typecode_or_type, *args, lock=lock, ctx=self.get_context())

    def Array(  # noqa: N802
        self, typecode_or_type: Any, size_or_initializer: Any, *, lock: Any = True
    ) -> Any:
        """A shared ctypes array with a lock, see :func:`fiber.sharedctypes.Array`."""
        from fiber import sharedctypes

        return sharedctypes.Array(
            typecode_or_type, size_or_initializer, lock=lock, ctx=self.get_context()
        )

    # -- how children start

    def freeze_support(self) -> None:
        """Check that a frozen program can start children; nothing in an interpreter.

        Raises:
            RuntimeError: the program is frozen and has not called :meth:`set_executable`.
        """
        if getattr(sys, "frozen", False) and _python() == sys.executable:
            msg = (
                f"children would start {sys.executable}, which is this program; call "
                "set_executable() with a Python that has fiber-core before freeze_support()"
            )
            raise RuntimeError(msg)

    def set_executable(self, executable: str) -> None:
        """Start the processes of this host with another Python; before the first one."""
        spawn.set_executable(executable)

    def set_forkserver_preload(self, module_names: list[str]) -> None:
        """Import modules once in the process that children are forked from, with this process's environment.

        A hint: a backend that does not fork ignores it.

        Args:
            module_names: names of modules, in place of the default ``["__main__"]``. This stands for the modules of
                installed packages to which the main module, or one of the program that it uses, refers when a
                process starts; the program's own modules are loaded by each child.

        Raises:
            TypeError: they are not names.
        """
        if not all(type(name) is str for name in module_names):
            msg = "module_names must be a list of strings"
            raise TypeError(msg)
        from fiber._agent.supervisor import preload

        preload.request(module_names)

    def allow_connection_pickling(self) -> None:
        """Nothing: connections are pickled without it."""

    def get_context(self, method: str | None = None) -> BaseContext:  # type: ignore[override]
        """The context of a start method; this one if omitted.

        Raises:
            ValueError: there is no method of that name on this platform.
        """
        if method is None:
            return self
        found: BaseContext | None = _concrete_contexts.get(method)
        if found is None:
            msg = f"cannot find context for {method!r}"
            raise ValueError(msg)
        return found

    def get_start_method(self, allow_none: bool = False) -> Any:
        """The name of its start method."""
        return self._name

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        """An error: the method of this context is fixed.

        Raises:
            ValueError: always.
        """
        msg = "cannot set start method of concrete context"
        raise ValueError(msg)

    @property
    def reducer(self) -> Any:
        """The module that pickles: :mod:`fiber.reduction`.

        Raises:
            ValueError: on setting it to anything else.
        """
        return importlib.import_module("fiber.reduction")

    @reducer.setter
    def reducer(self, reduction: Any) -> None:
        if reduction is not self.reducer:
            msg = (
                "what pickles for fiber cannot be replaced; say how a type is pickled by "
                "fiber.reduction.register() or copyreg.pickle()"
            )
            raise ValueError(msg)

    def _check_available(self) -> None:
        """Do nothing: a context exists only where its start method does."""


class FiberProcess(Process):
    """The process class of the context "fiber"."""

    _start_method = "fiber"


class ForkProcess(Process):
    """The process class of the context "fork"."""

    _start_method = "fork"


class SpawnProcess(Process):
    """The process class of the context "spawn"."""

    _start_method = "spawn"


class ForkServerProcess(Process):
    """The process class of the context "forkserver"."""

    _start_method = "forkserver"


class DefaultContext(BaseContext):
    """The context of the package's own names: that of the chosen start method, if any."""

    Process = Process

    def get_context(self, method: str | None = None) -> BaseContext:  # type: ignore[override]
        """The context of a start method; if omitted, of the chosen one or the default.

        Raises:
            ValueError: there is no method of that name on this platform.
        """
        return super().get_context(self.get_start_method() if method is None else method)

    def set_start_method(self, method: str | None, force: bool = False) -> None:
        """Choose a start method, also for children.

        Raises:
            RuntimeError: one was chosen before, or read, and not ``force``.
            ValueError: there is no method of that name on this platform.
        """
        if chosen_start_method() is not None and not force:
            msg = "context has already been set"
            raise RuntimeError(msg)
        forget = method is None and force
        choose_start_method(None if forget else self.get_context(method).get_start_method())

    def get_start_method(self, allow_none: bool = False) -> Any:
        """The name of the chosen start method.

        Args:
            allow_none: True for None where none was chosen; if False the default is chosen now.
        """
        if chosen_start_method() is None and not allow_none:
            choose_start_method(DEFAULT_START_METHOD)
        return chosen_start_method()

    def get_all_start_methods(self) -> list[str]:
        """All start methods of the platform, the default first."""
        return start_method_names()


class FiberContext(BaseContext):
    """The context "fiber", a start method that the stdlib does not have."""

    _name = "fiber"
    Process = FiberProcess


class ForkContext(BaseContext):
    """The context "fork"; its children start as all do, and inherit no memory."""

    _name = "fork"
    Process = ForkProcess


class SpawnContext(BaseContext):
    """The context "spawn"."""

    _name = "spawn"
    Process = SpawnProcess


class ForkServerContext(BaseContext):
    """The context "forkserver"."""

    _name = "forkserver"
    Process = ForkServerProcess


_concrete_contexts: dict[Any, Any] = {
    name: made
    for name, made in (
        ("fork", ForkContext()),
        ("spawn", SpawnContext()),
        ("forkserver", ForkServerContext()),
    )
    if name in start_method_names()
}
_concrete_contexts["fiber"] = FiberContext()
_default_context: DefaultContext = DefaultContext()
_as_given = {made: made for made in _concrete_contexts.values()}
_concrete_contexts.update(_as_given)


class _FoundToo(dict[Any, Any]):
    """The stdlib's contexts, with ours found by whoever looks one up and seen by nobody who lists them."""

    def __missing__(self, key: Any) -> Any:
        return {**_as_given, "fiber": _concrete_contexts["fiber"]}[key]


# a library hands what its user gave it, a name or a context, to multiprocessing.get_context(); what
# names there are is what this dict lists, from Python 3.14 on
vars(_stdlib)["_concrete_contexts"] = _FoundToo(vars(_stdlib)["_concrete_contexts"])


def _python() -> str:
    return os.fsdecode(spawn.get_executable())
