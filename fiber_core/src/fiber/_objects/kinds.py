"""What stands for an object of each kind in other processes than its owner's."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fiber.objects.address import Kind

if TYPE_CHECKING:
    from fiber.objects.remote import Remote

# by name: a process that has no object of a kind does not import what it takes
_CLASSES = {
    Kind.QUEUE: ("fiber.objects.remote_channel", "RemoteChannel"),
    Kind.PIPE: ("fiber.objects.remote_channel", "RemoteChannel"),
    Kind.ONE_WAY: ("fiber.objects.remote_channel", "RemoteChannel"),
    Kind.TASKS: ("fiber.objects.remote_tasks", "RemoteTasks"),
    Kind.LOCK: ("fiber.objects.sync.remote_permits", "RemotePermits"),
    Kind.RLOCK: ("fiber.objects.sync.remote_permits", "RemotePermits"),
    Kind.SEMAPHORE: ("fiber.objects.sync.remote_permits", "RemotePermits"),
    Kind.MEMORY: ("fiber.objects.memory.remote", "RemoteMemory"),
    Kind.CONDITION: ("fiber.objects.sync.remote_condition", "RemoteCondition"),
    Kind.EVENT: ("fiber.objects.sync.remote_event", "RemoteEvent"),
    Kind.BARRIER: ("fiber.objects.sync.remote_barrier", "RemoteBarrier"),
    Kind.BLOCK: ("fiber.objects.blocks.remote", "RemoteBlock"),
    Kind.STORAGE: ("fiber.objects.remote", "Remote"),
    Kind.REFERENT: ("fiber.objects.remote_referent", "RemoteReferent"),
}


def remote_class(kind: Kind) -> type[Remote]:
    """The class whose instances stand for objects of a kind."""
    module, name = _CLASSES[kind]
    found: type[Remote] = getattr(importlib.import_module(module), name)
    return found
