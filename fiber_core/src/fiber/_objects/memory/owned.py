"""A block of memory in the process that made it: answers those who cannot map it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.memory import protocol
from fiber._objects.memory.arena import Place
from fiber._objects.memory.heap import Block, heap_of
from fiber._objects.memory.protocol import MOST, Op
from fiber._objects.owned import Shared
from fiber._objects.protocol import read
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Buffer, Message
from fiber._wire.frames import Kind as Frame
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


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
            _, begin, size = read(protocol.READ, message.body)
            self._check(begin, size)
            body.append(bytes(self.view[begin : begin + size]))
        else:
            _, begin = read(protocol.WRITE, message.body)
            data = message.body[protocol.WRITE.size :]
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
