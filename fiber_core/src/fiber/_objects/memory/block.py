"""What holds a block of memory for a ctypes object, and how it is pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fiber._objects import store
from fiber._objects.handle import Handle
from fiber._objects.memory.arena import Place, map_arena
from fiber._objects.memory.owned import Memory
from fiber._objects.memory.remote import RemoteMemory
from fiber._wire.frames import Buffer


class Hold(Handle):
    """Holds a block as long as it lives. Use :meth:`of_size`."""

    _object: Memory | RemoteMemory

    #: its bytes where this process maps them
    view: memoryview | None = None
    #: the object that is made over it, or stands for it, has been made
    is_used = False

    @classmethod
    def of_size(cls, size: int) -> Hold:
        """A new block of this process, all zeros.

        Raises:
            OSError: there is no room for it.
        """
        memory = Memory(store.current(), size)
        memory.hold(0)
        hold = cls.__new__(cls)
        hold._restore(memory.size, memory.begin, memory.place)  # noqa: SLF001 - its own
        hold._take_hold(memory, 0)  # noqa: SLF001 - its own
        return hold

    def _open(self) -> None:
        found: Any = None
        if isinstance(self._object, Memory):
            found = self._object.view
        elif self._object.is_near:
            memory = map_arena(self._place, lambda: store.current().node.directory)
            found = memory and memoryview(memory)[self._begin : self._begin + self.size]
        self.view = found

    def _state(self) -> tuple[Any, ...]:
        place = self._place
        return self.size, self._begin, place.name, place.pid, place.size, place.mark

    def _restore(self, size: int, begin: int, *place: Any) -> None:
        #: its bytes
        self.size = size
        self._begin = begin
        self._place = place[0] if isinstance(place[0], Place) else Place(*place)

    def __deepcopy__(self, memo: Any) -> Hold:
        # a copy of the object over it has memory of its own, see instances.py
        return self

    # -- for what stands for the object where the block is not mapped

    def read(self, begin: int, size: int) -> bytes:
        """Some of its bytes.

        Raises:
            PeerLostError: its process is gone, or the block is.
        """
        if self.view is not None:
            return bytes(self.view[begin : begin + size])
        assert isinstance(self._object, RemoteMemory)
        return self._object.read(begin, size)

    def write(self, parts: Sequence[tuple[int, Buffer]]) -> None:
        """Write bytes, each part from where it says.

        Raises:
            PeerLostError: its process is gone, or the block is.
        """
        if self.view is None:
            assert isinstance(self._object, RemoteMemory)
            self._object.write(parts)
            return
        for begin, data in parts:
            self.view[begin : begin + len(data)] = data

    @property
    def maker(self) -> str:
        """Identity of the process that it lives in."""
        return self._object.address.ident
