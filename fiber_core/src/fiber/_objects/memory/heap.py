"""The heap of a process in shared memory, and the objects by which processes share its allocations.

Small allocations are side by side in arenas (see :mod:`fiber._objects.memory.backing`), a large one
has an arena of its own. :class:`Memory` is an allocation at its owner, :class:`RemoteMemory` what
stands for it in processes that cannot map it, and :class:`MemoryHandle` what a ctypes object keeps,
and is pickled by.

Protocol: both messages are calls. ``READ`` is answered with the bytes, ``WRITE``, whose bytes
follow, with nothing. Neither is for more than :data:`MAX_BYTES`, so that the owner's handler thread
is never busy for long.
"""

from __future__ import annotations

import bisect
import enum
import struct
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._objects import store
from fiber._objects.address import Kind
from fiber._objects.handle import Handle
from fiber._objects.memory.backing import HEAD, Arena, Folder, Location, map_arena
from fiber._objects.owned_object import OwnedObject
from fiber._objects.protocol import read
from fiber._objects.remote_object import RemoteObject
from fiber._wire.client import PendingCall
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Buffer, Message
from fiber._wire.frames import Kind as Frame
from fiber.exceptions import TransportError, WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


class FreeList:
    """Free ranges of memory, allocated first fit; pure.

    Args:
        size: bytes in all.
        begin: bytes at the beginning that are never free.
    """

    def __init__(self, size: int, begin: int = 0) -> None:
        self._all = [(begin, size)]
        # begin and end of each, in order, none touching the next
        self._free = list(self._all)

    @property
    def is_whole(self) -> bool:
        """True where nothing is allocated."""
        return self._free == self._all

    def allocate(self, size: int) -> int | None:
        """Allocate ``size`` bytes, at least 1: where they begin; None where there is no room."""
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                left = [(begin + size, end)] if begin + size < end else []
                self._free[index : index + 1] = left
                return begin
        return None

    def free(self, begin: int, size: int) -> None:
        """Free an allocated range; it joins free neighbours."""
        end = begin + size
        index = bisect.bisect(self._free, (begin, end))
        before = self._free[index - 1 : index] if index else []
        after = self._free[index : index + 1]
        first, last = index, index
        if before and before[0][1] == begin:
            begin, first = before[0][0], index - 1
        if after and after[0][0] == end:
            end, last = after[0][1], index + 1
        self._free[first:last] = [(begin, end)]


#: allocations begin at multiples of a cache line, so that users of neighbours share none
_CACHE_LINE = 64
#: bytes of an arena for many allocations, and of the largest of these
_ARENA = 2**18
_MAX_IN_ARENA = 2**15


@values.frozen(eq=False)
class Allocation:
    """A part of an arena."""

    arena: Arena
    #: where it begins in the arena, and its bytes
    begin: int
    size: int

    @property
    def view(self) -> memoryview:
        """Its bytes, to read and write."""
        return memoryview(self.arena.memory)[self.begin : self.begin + self.size]


class Heap:
    """The allocations of one process. Thread-safe.

    Args:
        folder: returns the folder for files, where memory has no descriptors.
        ident: the process's identity within the run.
    """

    def __init__(self, folder: Folder, ident: str) -> None:
        self._folder = folder
        self._ident = ident
        self._lock = threading.Lock()
        self._arenas: dict[Arena, FreeList] = {}

    def allocate(self, size: int) -> Allocation:
        """Allocate bytes, all zeros.

        Raises:
            OSError: there is no room for them.
        """
        room = _round_up(size)
        if room > _MAX_IN_ARENA:
            arena = Arena(room, self._folder, self._ident)
            return Allocation(arena, HEAD, size)
        with self._lock:
            allocation = self._allocate(room, size)
        allocation.view[:] = bytes(size)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Free an allocation."""
        with self._lock:
            free_list = self._arenas.get(allocation.arena)
            if free_list is None:
                allocation.arena.close()
                return
            free_list.free(allocation.begin, _round_up(allocation.size))
            # one empty arena is kept for the next allocation
            if free_list.is_whole and len(self._arenas) > 1:
                del self._arenas[allocation.arena]
                allocation.arena.close()

    def _allocate(self, room: int, size: int) -> Allocation:
        for arena, free_list in self._arenas.items():
            begin = free_list.allocate(room)
            if begin is not None:
                return Allocation(arena, begin, size)
        arena = Arena(_ARENA - HEAD, self._folder, self._ident)
        free_list = self._arenas[arena] = FreeList(arena.size, HEAD)
        found = free_list.allocate(room)
        assert found is not None
        return Allocation(arena, found, size)


_heaps: weakref.WeakKeyDictionary[Store, Heap] = weakref.WeakKeyDictionary()
_making = threading.Lock()


def heap_of(store: Store) -> Heap:
    """The heap of a process, made on first use."""
    with _making:
        found = _heaps.get(store)
        if found is None:
            node = store.node
            found = _heaps[store] = Heap(lambda: node.directory, store.ident)
        return found


def _round_up(size: int) -> int:
    return max(1, -(-size // _CACHE_LINE)) * _CACHE_LINE


class Op(enum.IntEnum):
    """First byte of a message to the owner."""

    READ = 96
    WRITE = 97


#: bytes of one message at most
MAX_BYTES = 2**20

#: position, bytes
READ = struct.Struct("<BQQ")
#: position
WRITE = struct.Struct("<BQ")


class Memory(OwnedObject):
    """An allocation at its owner, which answers processes that cannot map it.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, store: Store, size: int) -> None:
        super().__init__(store, Kind.MEMORY)
        self._heap = heap_of(store)
        self._allocation: Allocation | None = self._heap.allocate(size)
        #: location of its arena, for processes of this host
        self.location: Location = self._allocation.arena.location
        #: its position in the arena, and its bytes
        self.begin, self.size = self._allocation.begin, size

    @property
    def view(self) -> memoryview:
        """Its bytes, readable and writable; while it is held."""
        assert self._allocation is not None
        return self._allocation.view

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        if op not in (Op.READ, Op.WRITE) or message.kind is not Frame.CALL:
            super()._on_request(peer, message, op)
            return
        if self._allocation is None:
            # freed while the message was in transit
            peer.send(Frame.ERROR, self.target, message.id, [])
            return
        body: list[Buffer] = []
        if op == Op.READ:
            _, begin, size = read(READ, message.body)
            self._check(begin, size)
            body.append(bytes(self.view[begin : begin + size]))
        else:
            _, begin = read(WRITE, message.body)
            data = message.body[WRITE.size :]
            self._check(begin, len(data))
            self.view[begin : begin + len(data)] = data
        peer.send(Frame.REPLY, self.target, message.id, body)

    def _check(self, begin: int, size: int) -> None:
        if size > MAX_BYTES or begin + size > self.size:
            msg = f"{size} bytes from {begin} on are asked of {self.size} bytes of memory"
            raise WireError(msg)

    def _on_end_closed(self, end: int) -> None:
        allocation, self._allocation = self._allocation, None
        if allocation is not None:
            self._heap.free(allocation)


# most messages that are in transit
_WINDOW = 8


class RemoteMemory(RemoteObject):
    """An allocation of another process, read and written by messages."""

    def read(self, begin: int, size: int) -> bytes:
        """Read ``size`` bytes from ``begin`` on.

        Raises:
            PeerLostError: its process is gone, or the allocation is.
        """
        requests: Iterator[Sequence[Buffer]] = (
            [READ.pack(Op.READ, begin + at, min(MAX_BYTES, size - at))]
            for at in range(0, size, MAX_BYTES)
        )
        return b"".join(self._exchange(requests))

    def write(self, parts: Iterable[tuple[int, Buffer]]) -> None:
        """Write parts, each a position and bytes; they are written when this returns.

        Raises:
            PeerLostError: its process is gone, or the allocation is.
        """
        requests: Iterator[Sequence[Buffer]] = (
            [WRITE.pack(Op.WRITE, begin + at), bytes(data[at : at + MAX_BYTES])]
            for begin, data in parts
            for at in range(0, len(data), MAX_BYTES)
        )
        for _ in self._exchange(requests):
            pass

    def _exchange(self, messages: Iterator[Sequence[Buffer]]) -> Iterator[memoryview]:
        """Send calls, a few of which are in transit at a time, and yield their answers."""
        waiting: deque[PendingCall] = deque()
        try:
            for message in messages:
                waiting.append(self.call(message))
                if len(waiting) == _WINDOW:
                    yield _answer(waiting.popleft())
            while waiting:
                yield _answer(waiting.popleft())
        except TransportError as error:
            raise self.loss_error(error) from error


def _answer(pending: PendingCall) -> memoryview:
    pending.wait()
    return pending.result()


class MemoryHandle(Handle):
    """Handle of an allocation, by which ctypes objects keep and share it. Use :meth:`of_size`."""

    _object: Memory | RemoteMemory

    #: its bytes where this process maps them, else None
    view: memoryview | None = None
    #: True once a ctypes object, or its stand-in, was made over it
    is_used = False

    @classmethod
    def of_size(cls, size: int) -> MemoryHandle:
        """Allocate bytes of this process, all zeros.

        Raises:
            OSError: there is no room for it.
        """
        memory = Memory(store.current(), size)
        memory.hold(0)
        handle = cls.__new__(cls)
        handle._restore(memory.size, memory.begin, memory.location)  # noqa: SLF001 - its own
        handle._attach(memory, 0)  # noqa: SLF001 - its own
        return handle

    def _open(self) -> None:
        found: Any = None
        if isinstance(self._object, Memory):
            found = self._object.view
        elif self._object.is_same_host:
            memory = map_arena(self._location, lambda: store.current().node.directory)
            found = memory and memoryview(memory)[self._begin : self._begin + self.size]
        self.view = found

    def _state(self) -> tuple[Any, ...]:
        location = self._location
        return self.size, self._begin, location.name, location.pid, location.size, location.tag

    def _restore(self, size: int, begin: int, *location: Any) -> None:
        #: its bytes
        self.size = size
        self._begin = begin
        self._location = location[0] if isinstance(location[0], Location) else Location(*location)

    def __deepcopy__(self, memo: Any) -> MemoryHandle:
        # a copy of the object over it has memory of its own, see ctypes_objects.rebuild
        return self

    # -- for remote instances

    def read(self, begin: int, size: int) -> bytes:
        """Read ``size`` bytes from ``begin`` on.

        Raises:
            PeerLostError: its process is gone, or the allocation is.
        """
        if self.view is not None:
            return bytes(self.view[begin : begin + size])
        assert isinstance(self._object, RemoteMemory)
        return self._object.read(begin, size)

    def write(self, parts: Sequence[tuple[int, Buffer]]) -> None:
        """Write parts, each a position and bytes.

        Raises:
            PeerLostError: its process is gone, or the allocation is.
        """
        if self.view is None:
            assert isinstance(self._object, RemoteMemory)
            self._object.write(parts)
            return
        for begin, data in parts:
            self.view[begin : begin + len(data)] = data

    @property
    def maker(self) -> str:
        """Identity of the process that made it."""
        return self._object.address.ident
