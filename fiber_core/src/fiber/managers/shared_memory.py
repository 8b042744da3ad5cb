"""``SharedMemoryManager``, which has no meaning between machines and says so."""

from __future__ import annotations

from typing import Any

from fiber.managers.base import BaseManager

__all__ = ["SharedMemoryManager"]


class SharedMemoryManager(BaseManager):
    """Not offered: blocks of ``multiprocessing.shared_memory`` are bound to one host.

    What attaches to such a block also has it removed when it ends, unless it is a child that the
    standard library has started. :class:`fiber.Array <fiber.sharedctypes.Array>` is in shared
    memory on one host, and served across hosts.

    Raises:
        NotImplementedError: whenever one is made.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        msg = (
            "SharedMemoryManager is not offered: its blocks are bound to one host and to processes "
            "of the standard library; use fiber.Array or fiber.RawArray, which are shared memory "
            "where they can be, or the Array, list and dict of fiber.Manager()"
        )
        raise NotImplementedError(msg)
