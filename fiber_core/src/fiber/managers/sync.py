"""``SyncManager``, a manager of locks, queues, containers and pools, with its types' proxies; ``SharedMemoryManager``.

The latter unlinks the blocks of shared memory that were made by it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import types
from collections.abc import Callable, Iterable, MutableMapping, MutableSequence
from multiprocessing.managers import Array, Namespace, Value  # type: ignore[attr-defined] # the stubs do not tell
from typing import TYPE_CHECKING, Any, ClassVar

from fiber._base.threads import wait_until
from fiber.managers.base import BaseManager, BaseProxy, MakeProxyType, Server

if TYPE_CHECKING:
    from fiber import shared_memory

__all__ = ["Manager", "SharedMemoryManager", "SharedMemoryServer", "SyncManager"]


class IteratorProxy(BaseProxy):
    """An iterator or generator in the manager."""

    _exposed_ = ("__next__", "send", "throw", "close")

    def __iter__(self) -> IteratorProxy:
        return self

    def __next__(self, *args: Any) -> Any:
        return self._callmethod("__next__", args)

    def send(self, *args: Any) -> Any:
        """Resume a generator with a value."""
        return self._callmethod("send", args)

    def throw(self, *args: Any) -> Any:
        """Resume a generator with an exception."""
        return self._callmethod("throw", args)

    def close(self, *args: Any) -> Any:
        """End a generator."""
        return self._callmethod("close", args)


class AcquirerProxy(BaseProxy):
    """A lock or semaphore in the manager; it is held by a thread, of whichever process."""

    _exposed_: tuple[str, ...] = ("acquire", "release", "locked")

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire it; False if it was not free (in time)."""
        args = (blocking,) if timeout is None else (blocking, timeout)
        acquired: bool = self._callmethod("acquire", args)
        return acquired

    def release(self) -> None:
        """Release it."""
        self._callmethod("release")

    def locked(self) -> bool:
        """Return whether the lock is held; only where the manager's Python has that for such an object."""
        is_locked: bool = self._callmethod("locked")
        return is_locked

    def __enter__(self) -> Any:
        return self._callmethod("acquire")

    def __exit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        self._callmethod("release")


class ConditionProxy(AcquirerProxy):
    """A condition in the manager."""

    _exposed_ = ("acquire", "release", "locked", "wait", "notify", "notify_all")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified; False if not in time."""
        notified: bool = self._callmethod("wait", (timeout,))
        return notified

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` waiting threads."""
        self._callmethod("notify", (n,))

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        self._callmethod("notify_all")

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until a predicate, evaluated here, is true; its last value."""
        return wait_until(predicate, self.wait, timeout)


class EventProxy(BaseProxy):
    """An event in the manager."""

    _exposed_ = ("is_set", "set", "clear", "wait")

    def is_set(self) -> bool:
        """True once it is set."""
        found: bool = self._callmethod("is_set")
        return found

    def set(self) -> None:
        """Set it and wake all waiting threads."""
        self._callmethod("set")

    def clear(self) -> None:
        """Clear it."""
        self._callmethod("clear")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False if not in time."""
        found: bool = self._callmethod("wait", (timeout,))
        return found


class BarrierProxy(BaseProxy):
    """A barrier in the manager."""

    _exposed_ = ("__getattribute__", "wait", "abort", "reset")

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties wait; the index of this one."""
        number: int = self._callmethod("wait", (timeout,))
        return number

    def abort(self) -> None:
        """Break it."""
        self._callmethod("abort")

    def reset(self) -> None:
        """Bring it back to its first state."""
        self._callmethod("reset")

    @property
    def parties(self) -> int:
        """Number of parties."""
        number: int = self._callmethod("__getattribute__", ("parties",))
        return number

    @property
    def n_waiting(self) -> int:
        """Number of waiting parties."""
        number: int = self._callmethod("__getattribute__", ("n_waiting",))
        return number

    @property
    def broken(self) -> bool:
        """True where it is broken."""
        found: bool = self._callmethod("__getattribute__", ("broken",))
        return found


class NamespaceProxy(BaseProxy):
    """A namespace in the manager; attributes that begin with ``_`` are the proxy's own."""

    _exposed_ = ("__getattribute__", "__setattr__", "__delattr__")

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            return object.__getattribute__(self, key)
        return self._callmethod("__getattribute__", (key,))

    def __setattr__(self, key: str, value: Any) -> None:
        if key.startswith("_"):
            object.__setattr__(self, key, value)
        else:
            self._callmethod("__setattr__", (key, value))

    def __delattr__(self, key: str) -> None:
        if key.startswith("_"):
            object.__delattr__(self, key)
        else:
            self._callmethod("__delattr__", (key,))


class ValueProxy(BaseProxy):
    """A value in the manager."""

    _exposed_ = ("get", "set")

    def get(self) -> Any:
        """The value."""
        return self._callmethod("get")

    def set(self, value: Any) -> None:
        """Change it."""
        self._callmethod("set", (value,))

    value = property(get, set)

    __class_getitem__: Any = classmethod(types.GenericAlias)


BaseListProxy = MakeProxyType(
    "BaseListProxy",
    (
        *("__add__", "__contains__", "__delitem__", "__getitem__", "__len__", "__mul__"),
        *("__reversed__", "__rmul__", "__setitem__", "append", "clear", "copy", "count", "extend"),
        *("index", "insert", "pop", "remove", "reverse", "sort", "__imul__"),
    ),
)


class ListProxy(BaseListProxy):  # type: ignore[misc,valid-type] # made at run time
    """A list in the manager."""

    def __iadd__(self, value: Iterable[Any]) -> ListProxy:
        self._callmethod("extend", (value,))
        return self

    def __imul__(self, value: int) -> ListProxy:
        self._callmethod("__imul__", (value,))
        return self

    __class_getitem__: Any = classmethod(types.GenericAlias)


_BaseDictProxy = MakeProxyType(
    "DictProxy",
    (
        *("__contains__", "__delitem__", "__getitem__", "__ior__", "__iter__", "__len__", "__or__"),
        *("__reversed__", "__ror__", "__setitem__", "clear", "copy", "fromkeys", "get", "items"),
        *("keys", "pop", "popitem", "setdefault", "update", "values"),
    ),
)


class DictProxy(_BaseDictProxy):  # type: ignore[misc,valid-type] # made at run time
    """A dict in the manager."""

    _method_to_typeid_: ClassVar = {"__iter__": "Iterator"}

    def __ior__(self, value: Any) -> DictProxy:
        self._callmethod("__ior__", (value,))
        return self

    __class_getitem__: Any = classmethod(types.GenericAlias)


# as the stdlib since Python 3.14
MutableSequence.register(BaseListProxy)
MutableMapping.register(_BaseDictProxy)


_BaseSetProxy = MakeProxyType(
    "_BaseSetProxy",
    (
        *("__and__", "__class_getitem__", "__contains__", "__iand__", "__ior__", "__isub__"),
        *("__iter__", "__ixor__", "__len__", "__or__", "__rand__", "__ror__", "__rsub__"),
        *("__rxor__", "__sub__", "__xor__", "__ge__", "__gt__", "__le__", "__lt__", "add"),
        *("clear", "copy", "difference", "difference_update", "discard", "intersection"),
        *("intersection_update", "isdisjoint", "issubset", "issuperset", "pop", "remove"),
        *("symmetric_difference", "symmetric_difference_update", "union", "update"),
    ),
)


class SetProxy(_BaseSetProxy):  # type: ignore[misc,valid-type] # made at run time
    """A set in the manager."""

    _method_to_typeid_: ClassVar = {"__iter__": "Iterator"}

    def __ior__(self, value: Any) -> SetProxy:
        self._callmethod("__ior__", (value,))
        return self

    def __iand__(self, value: Any) -> SetProxy:
        self._callmethod("__iand__", (value,))
        return self

    def __ixor__(self, value: Any) -> SetProxy:
        self._callmethod("__ixor__", (value,))
        return self

    def __isub__(self, value: Any) -> SetProxy:
        self._callmethod("__isub__", (value,))
        return self

    __class_getitem__: Any = classmethod(types.GenericAlias)


ArrayProxy = MakeProxyType("ArrayProxy", ("__len__", "__getitem__", "__setitem__"))


BasePoolProxy = MakeProxyType(
    "PoolProxy",
    (
        *("apply", "apply_async", "close", "imap", "imap_unordered", "join"),
        *("map", "map_async", "starmap", "starmap_async", "terminate"),
    ),
)


class PoolProxy(BasePoolProxy):  # type: ignore[misc,valid-type] # made at run time
    """A pool whose master is the manager's process."""

    _method_to_typeid_: ClassVar = {
        "apply_async": "AsyncResult",
        "map_async": "AsyncResult",
        "starmap_async": "AsyncResult",
        "imap": "Iterator",
        "imap_unordered": "Iterator",
    }

    def __enter__(self) -> PoolProxy:
        return self

    def __exit__(self, exc_type: object, exc_val: object, exc_tb: object) -> None:
        self.terminate()


class SyncManager(BaseManager):
    """A manager of the types that threads share: locks, queues, containers, namespaces, pools.

    :func:`fiber.Manager` makes one and starts it.
    """

    Queue: Callable[..., Any]
    JoinableQueue: Callable[..., Any]
    Event: Callable[..., EventProxy]
    Lock: Callable[..., AcquirerProxy]
    RLock: Callable[..., AcquirerProxy]
    Semaphore: Callable[..., AcquirerProxy]
    BoundedSemaphore: Callable[..., AcquirerProxy]
    Condition: Callable[..., ConditionProxy]
    Barrier: Callable[..., BarrierProxy]
    Pool: Callable[..., Any]
    list: Callable[..., Any]
    dict: Callable[..., Any]
    set: Callable[..., Any]
    Value: Callable[..., ValueProxy]
    Array: Callable[..., Any]
    Namespace: Callable[..., NamespaceProxy]


def _pool(*args: Any, **kwds: Any) -> Any:
    from fiber.pool import Pool

    return Pool(*args, **kwds)


SyncManager.register("Queue", queue.Queue)
SyncManager.register("JoinableQueue", queue.Queue)
SyncManager.register("Event", threading.Event, EventProxy)
SyncManager.register("Lock", threading.Lock, AcquirerProxy)
SyncManager.register("RLock", threading.RLock, AcquirerProxy)
SyncManager.register("Semaphore", threading.Semaphore, AcquirerProxy)
SyncManager.register("BoundedSemaphore", threading.BoundedSemaphore, AcquirerProxy)
SyncManager.register("Condition", threading.Condition, ConditionProxy)
SyncManager.register("Barrier", threading.Barrier, BarrierProxy)
SyncManager.register("Pool", _pool, PoolProxy)
SyncManager.register("list", list, ListProxy)
SyncManager.register("dict", dict, DictProxy)
SyncManager.register("set", set, SetProxy)
SyncManager.register("Value", Value, ValueProxy)
SyncManager.register("Array", Array, ArrayProxy)
SyncManager.register("Namespace", Namespace, NamespaceProxy)

# types of values of a pool's methods
SyncManager.register("Iterator", proxytype=IteratorProxy, create_method=False)
SyncManager.register(
    "AsyncResult", exposed=("get", "ready", "successful", "wait"), create_method=False
)


def Manager() -> SyncManager:  # noqa: N802 - the stdlib's name
    """A started manager of every type that ``multiprocessing.Manager()`` has.

    Its process ends with :meth:`~fiber.managers.BaseManager.shutdown`, when it is collected, or
    with this one.
    """
    manager = SyncManager()
    manager.start()
    return manager


class SharedMemoryServer(Server):
    """A server that knows blocks of shared memory by name and unlinks them at its end."""

    public = (*Server.public, "track_segment", "release_segment", "list_segments")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: names of the blocks
        self._segments: set[str] = set()
        super().__init__(*args, **kwargs)

    def close(self) -> None:
        """Make no more objects, and unlink all blocks."""
        super().close()
        for name in tuple(self._segments):
            # a user may have unlinked it
            with contextlib.suppress(FileNotFoundError):
                self.release_segment(name)

    # -- methods for managers; on caller threads

    def track_segment(self, name: str) -> None:
        """Unlink a block at the end."""
        self._segments.add(name)

    def release_segment(self, name: str) -> None:
        """Unlink a block now."""
        from fiber.shared_memory import SharedMemory

        self._segments.discard(name)
        with contextlib.closing(SharedMemory(name)) as block:
            block.unlink()

    def list_segments(self) -> list[str]:
        """Names of the blocks that are unlinked at the end."""
        return sorted(self._segments)


class SharedMemoryManager(BaseManager):
    """A manager that makes blocks of shared memory, and unlinks them when it is shut down.

    For backends whose processes share the program's host; making a block raises
    :class:`~fiber.exceptions.CapabilityError` on others, where ``fiber.Array`` and
    :func:`fiber.Manager` work.
    """

    _Server = SharedMemoryServer

    def SharedMemory(self, size: int) -> shared_memory.SharedMemory:  # noqa: N802 - the stdlib's name
        """Make a block.

        Args:
            size: bytes.
        """
        from fiber.shared_memory import SharedMemory

        block = SharedMemory(create=True, size=size)
        self._track(block)
        return block

    def ShareableList(  # noqa: N802 - the stdlib's name
        self, sequence: Iterable[Any]
    ) -> shared_memory.ShareableList:
        """Make a list in a block of its own.

        Args:
            sequence: its items.
        """
        from fiber.shared_memory import ShareableList

        made: shared_memory.ShareableList = ShareableList(sequence)
        self._track(made.shm)
        return made

    def _track(self, block: Any) -> None:
        try:
            self._call_server("track_segment", block.name)
        except BaseException:
            block.close()
            block.unlink()
            raise
