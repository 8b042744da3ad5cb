"""What holds a block of memory for a ctypes object, and how it is pickled.

What processes tell each other about memory; layouts only.

Both messages are calls. A ``READ`` is answered with the bytes, a ``WRITE``, whose bytes follow,
with nothing. Neither is for more than ``MOST`` bytes, so that the owner never copies much at once.

A block of memory in the process that made it: answers those who cannot map it.

A block of memory of another process, read and written by messages.

Where the blocks of one process are: small ones side by side, a large one by itself.

Which parts of a stretch of memory are free; pure.
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
from fiber._objects.memory.backing import HEAD, Arena, Folder, Place, map_arena
from fiber._objects.owned import Shared
from fiber._objects.protocol import read
from fiber._objects.remote import Remote
from fiber._wire.client import Pending
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Buffer, Message
from fiber._wire.frames import Kind as Frame
from fiber.exceptions import TransportError, WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


class Ranges:
    """Hands out parts of ``size`` bytes, the first that is large enough.

    Args:
        size: bytes in all.
        begin: bytes at the beginning that are not to be had.
    """

    def __init__(self, size: int, begin: int = 0) -> None:
        self._all = [(begin, size)]
        # begin and end of each, in order, none touching the next
        self._free = list(self._all)

    @property
    def is_whole(self) -> bool:
        """True where nothing is handed out."""
        return self._free == self._all

    def take(self, size: int) -> int | None:
        """Where a part of at least one byte begins from now on; None where there is no room."""
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                left = [(begin + size, end)] if begin + size < end else []
                self._free[index : index + 1] = left
                return begin
        return None

    def give(self, begin: int, size: int) -> None:
        """Take a part back that was handed out."""
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


#: blocks begin at multiples of a cache line, so that none is slowed down by its neighbours' users
_LINE = 64
#: bytes of an arena for many blocks, and of the largest of these
_SHARED = 2**18
_LARGEST = 2**15


@values.frozen(eq=False)
class Block:
    """A part of an arena."""

    arena: Arena
    #: where it begins, and its bytes
    begin: int
    size: int

    @property
    def view(self) -> memoryview:
        """Its bytes, to read and write."""
        return memoryview(self.arena.memory)[self.begin : self.begin + self.size]


class Heap:
    """The blocks of one process.

    Args:
        folder: where files would be.
        ident: the process's identity within the run.
    """

    def __init__(self, folder: Folder, ident: str) -> None:
        self._folder = folder
        self._ident = ident
        self._lock = threading.Lock()
        self._arenas: dict[Arena, Ranges] = {}

    def take(self, size: int) -> Block:
        """A new block, all zeros.

        Raises:
            OSError: there is no room for it.
        """
        room = _rounded(size)
        if room > _LARGEST:
            arena = Arena(room, self._folder, self._ident)
            return Block(arena, HEAD, size)
        with self._lock:
            block = self._find(room, size)
        block.view[:] = bytes(size)
        return block

    def give(self, block: Block) -> None:
        """A block is used no more."""
        with self._lock:
            ranges = self._arenas.get(block.arena)
            if ranges is None:
                block.arena.close()
                return
            ranges.give(block.begin, _rounded(block.size))
            # one is kept for what comes next
            if ranges.is_whole and len(self._arenas) > 1:
                del self._arenas[block.arena]
                block.arena.close()

    def _find(self, room: int, size: int) -> Block:
        for arena, ranges in self._arenas.items():
            begin = ranges.take(room)
            if begin is not None:
                return Block(arena, begin, size)
        arena = Arena(_SHARED - HEAD, self._folder, self._ident)
        ranges = self._arenas[arena] = Ranges(arena.size, HEAD)
        found = ranges.take(room)
        assert found is not None
        return Block(arena, found, size)


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


def _rounded(size: int) -> int:
    return max(1, -(-size // _LINE)) * _LINE


class Op(enum.IntEnum):
    """What a holder says to the owner."""

    READ = 96
    WRITE = 97


#: bytes of one message at most
MOST = 2**20

#: where, how many
READ = struct.Struct("<BQQ")
#: where
WRITE = struct.Struct("<BQ")


class Memory(Shared):
    """A block.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, store: Store, size: int) -> None:
        super().__init__(store, Kind.MEMORY)
        self._heap = heap_of(store)
        self._block: Block | None = self._heap.take(size)
        #: where it is, for processes on this host
        self.place: Place = self._block.arena.place
        #: where in the arena it begins, and its bytes
        self.begin, self.size = self._block.begin, size

    @property
    def view(self) -> memoryview:
        """Its bytes, to read and write; for those who hold it."""
        assert self._block is not None
        return self._block.view

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        if op not in (Op.READ, Op.WRITE) or message.kind is not Frame.CALL:
            super()._answer(peer, message, op)
            return
        if self._block is None:
            # let go of while the message was on its way
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
        if size > MOST or begin + size > self.size:
            msg = f"{size} bytes from {begin} on are asked of {self.size} bytes of memory"
            raise WireError(msg)

    def _end_closed(self, end: int) -> None:
        block, self._block = self._block, None
        if block is not None:
            self._heap.give(block)


# messages on their way at most
_WINDOW = 8


class RemoteMemory(Remote):
    """One for each block and process."""

    def read(self, begin: int, size: int) -> bytes:
        """Some of its bytes.

        Raises:
            PeerLostError: its process is gone, or the block is.
        """
        asked: Iterator[Sequence[Buffer]] = (
            [READ.pack(Op.READ, begin + at, min(MOST, size - at))] for at in range(0, size, MOST)
        )
        return b"".join(self._exchange(asked))

    def write(self, parts: Iterable[tuple[int, Buffer]]) -> None:
        """Write bytes, each part from where it says; they are there when this returns.

        Raises:
            PeerLostError: its process is gone, or the block is.
        """
        said: Iterator[Sequence[Buffer]] = (
            [WRITE.pack(Op.WRITE, begin + at), bytes(data[at : at + MOST])]
            for begin, data in parts
            for at in range(0, len(data), MOST)
        )
        for _ in self._exchange(said):
            pass

    def _exchange(self, messages: Iterator[Sequence[Buffer]]) -> Iterator[memoryview]:
        """The answers to messages, a few of which are on their way at a time."""
        waiting: deque[Pending] = deque()
        try:
            for message in messages:
                waiting.append(self.call(message))
                if len(waiting) == _WINDOW:
                    yield _answer(waiting.popleft())
            while waiting:
                yield _answer(waiting.popleft())
        except TransportError as error:
            raise self.loss(error) from error


def _answer(pending: Pending) -> memoryview:
    pending.wait()
    return pending.result()


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
