"""``SharedMemoryManager``: unlinks the blocks of shared memory that were made by it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fiber.managers.base import BaseManager
from fiber.managers.server import Server

if TYPE_CHECKING:
    from fiber import shared_memory

__all__ = ["SharedMemoryManager", "SharedMemoryServer"]


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
