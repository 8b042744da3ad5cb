"""``SyncManager``, a manager of locks, queues, containers and pools, and ``SharedMemoryManager``.

The latter unlinks the blocks of shared memory that were made by it.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fiber.managers import standard
from fiber.managers.base import BaseManager
from fiber.managers.server import Server

if TYPE_CHECKING:
    from fiber import shared_memory

__all__ = ["Manager", "SharedMemoryManager", "SharedMemoryServer", "SyncManager"]


class SyncManager(BaseManager):
    """A manager of the types that threads share: locks, queues, containers, namespaces, pools.

    :func:`fiber.Manager` makes one and starts it.
    """

    Queue: Callable[..., Any]
    JoinableQueue: Callable[..., Any]
    Event: Callable[..., standard.EventProxy]
    Lock: Callable[..., standard.AcquirerProxy]
    RLock: Callable[..., standard.AcquirerProxy]
    Semaphore: Callable[..., standard.AcquirerProxy]
    BoundedSemaphore: Callable[..., standard.AcquirerProxy]
    Condition: Callable[..., standard.ConditionProxy]
    Barrier: Callable[..., standard.BarrierProxy]
    Pool: Callable[..., Any]
    list: Callable[..., Any]
    dict: Callable[..., Any]
    set: Callable[..., Any]
    Value: Callable[..., standard.ValueProxy]
    Array: Callable[..., Any]
    Namespace: Callable[..., standard.NamespaceProxy]


def _pool(*args: Any, **kwds: Any) -> Any:
    from fiber.pool import Pool

    return Pool(*args, **kwds)


SyncManager.register("Queue", queue.Queue)
SyncManager.register("JoinableQueue", queue.Queue)
SyncManager.register("Event", threading.Event, standard.EventProxy)
SyncManager.register("Lock", threading.Lock, standard.AcquirerProxy)
SyncManager.register("RLock", threading.RLock, standard.AcquirerProxy)
SyncManager.register("Semaphore", threading.Semaphore, standard.AcquirerProxy)
SyncManager.register("BoundedSemaphore", threading.BoundedSemaphore, standard.AcquirerProxy)
SyncManager.register("Condition", threading.Condition, standard.ConditionProxy)
SyncManager.register("Barrier", threading.Barrier, standard.BarrierProxy)
SyncManager.register("Pool", _pool, standard.PoolProxy)
SyncManager.register("list", list, standard.ListProxy)
SyncManager.register("dict", dict, standard.DictProxy)
SyncManager.register("set", set, standard.SetProxy)
SyncManager.register("Value", standard.Value, standard.ValueProxy)
SyncManager.register("Array", standard.Array, standard.ArrayProxy)
SyncManager.register("Namespace", standard.Namespace, standard.NamespaceProxy)

# types of values of a pool's methods
SyncManager.register("Iterator", proxytype=standard.IteratorProxy, create_method=False)
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
