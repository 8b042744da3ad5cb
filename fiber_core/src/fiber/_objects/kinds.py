"""What stands for an object of each kind in other processes than its owner's."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fiber._objects.address import Kind

if TYPE_CHECKING:
    from fiber._objects.remote import Remote

# by name: a process that has no object of a kind does not import what it takes
_CLASSES = {
    Kind.QUEUE: ("fiber._objects.queue.remote_channel", "RemoteChannel"),
    Kind.PIPE: ("fiber._objects.queue.remote_channel", "RemoteChannel"),
    Kind.ONE_WAY: ("fiber._objects.queue.remote_channel", "RemoteChannel"),
    Kind.TASKS: ("fiber._objects.queue.remote_tasks", "RemoteTasks"),
    Kind.LOCK: ("fiber._objects.sync.remote_permits", "RemotePermits"),
    Kind.RLOCK: ("fiber._objects.sync.remote_permits", "RemotePermits"),
    Kind.SEMAPHORE: ("fiber._objects.sync.remote_permits", "RemotePermits"),
    Kind.MEMORY: ("fiber._objects.memory.remote", "RemoteMemory"),
    Kind.CONDITION: ("fiber._objects.sync.remote_condition", "RemoteCondition"),
    Kind.EVENT: ("fiber._objects.sync.remote_event", "RemoteEvent"),
    Kind.BARRIER: ("fiber._objects.sync.remote_barrier", "RemoteBarrier"),
    Kind.BLOCK: ("fiber._objects.blocks.remote", "RemoteBlock"),
    Kind.STORAGE: ("fiber._objects.remote", "Remote"),
    Kind.REFERENT: ("fiber._objects.managed.remote_referent", "RemoteReferent"),
}


def remote_class(kind: Kind) -> type[Remote]:
    """The class whose instances stand for objects of a kind."""
    module, name = _CLASSES[kind]
    found: type[Remote] = getattr(importlib.import_module(module), name)
    return found
