"""``SyncManager``: a manager of locks, queues, containers and pools."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from fiber.managers import standard
from fiber.managers.base import BaseManager

__all__ = ["Manager", "SyncManager"]


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
