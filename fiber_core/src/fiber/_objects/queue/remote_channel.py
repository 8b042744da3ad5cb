"""A queue or pipe as another process than its owner's sees it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from fiber._objects import protocol
from fiber._objects.address import Address
from fiber._objects.owner import Owner
from fiber._objects.protocol import Op, Word
from fiber._objects.queue import messages
from fiber._objects.queue.reader import RemoteSource
from fiber._objects.queue.writer import DirectSink, RemoteSink
from fiber._objects.remote import NO_PAGE, Remote
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._objects.store import Store

_ANSWERS = (Word.ITEMS, Word.NOTHING, Word.END, Word.READY, Word.UNREADY)


class RemoteChannel(Remote):
    """Its lanes, each with the side or sides that are held here."""

    _source_class: type[Any] = RemoteSource

    def __init__(self, store: Store, address: Address, owner: Owner) -> None:
        super().__init__(store, address, owner)
        self._sources: dict[int, RemoteSource] = {}
        self._sinks: dict[int, RemoteSink] = {}
        self._sessions = itertools.count(1)

    # -- for handles

    def source(self, lane: int) -> RemoteSource:
        """The reading side of a lane."""
        with self._lock:
            return self._sources[lane]

    def sink(self, lane: int) -> RemoteSink:
        """The writing side of a lane."""
        with self._lock:
            return self._sinks[lane]

    def size(self, lane: int) -> int:
        """Items in a lane."""
        try:
            sink, source = self._sinks.get(lane), self._sources.get(lane)
            if sink is not None:
                sink.send_all()
            if source is not None:
                source.tell()
            pending = self.call([protocol.SIZE.pack(Op.SIZE, lane)])
            pending.wait()
            return int(protocol.read(protocol.SIZED, pending.result())[0])
        except PeerLostError as error:
            raise self.loss(error) from error

    # -- what the owner says, and its loss

    def fail(self, error: BaseException) -> None:
        """The owner is gone, or the object is."""
        # without the lock, which may be held over sending: the handler thread comes here
        for source in list(self._sources.values()):
            source.fail(error)
        for sink in list(self._sinks.values()):
            sink.fail(error)

    def on_word(self, message: Message) -> None:
        """On the handler thread: the owner says something unasked."""
        body = message.body
        word, lane = protocol.read(protocol.WORD, body)
        source, sink = self._sources.get(lane), self._sinks.get(lane)
        if word in _ANSWERS:
            _, _, session, kept, first = protocol.read(protocol.ANSWER, body)
            if source is not None and source.session == session:
                batch = body[protocol.ANSWER.size :]
                came = messages.unpack(batch) if word == Word.ITEMS else ()
                source.answered(word, bool(kept), first, came)
        elif word == Word.TAKEN and sink is not None:
            sink.taken(protocol.read(protocol.TAKEN, body)[2])
        elif word == Word.RECALL and source is not None:
            self.soon(source.give_back)
        elif word == Word.HURRY and source is not None:
            source.hurry()
        elif word == Word.REVOKE and sink is not None:
            self.soon(sink.give_up)
        elif word == Word.BROKEN and sink is not None:
            sink.mark_broken()

    # -- the end

    def flush(self) -> None:
        """Send all that was put."""
        for sink in list(self._sinks.values()):
            if not sink.is_abandoned:
                sink.send_all()

    def give_back(self) -> None:
        """This process ends: what was not handed out goes back."""
        for source in list(self._sources.values()):
            source.close()

    # -- ends

    def _heard(self, slot: int, seen: bool) -> None:
        for source in list(self._sources.values()):
            if source.slot.index == slot and not seen:
                source.unseen()

    def _open(self, end: int) -> tuple[int, bytes, bytes]:
        lane = self._shape.lane_written_by(end)
        if lane is not None:
            is_pipe = self._shape.ends > 1
            sink = DirectSink if is_pipe and self._owner.keeps else RemoteSink
            self._sinks[lane] = sink(self, lane)
        lane = self._shape.lane_read_by(end)
        if lane is None:
            return NO_PAGE
        slot = self._owner.slot()
        self._sources[lane] = self._source_class(self, lane, slot, next(self._sessions))
        return slot.index, *self._owner.page()

    def _close(self, end: int) -> None:
        read, written = self._shape.lane_read_by(end), self._shape.lane_written_by(end)
        sink = None if written is None else self._sinks.pop(written)
        source = None if read is None else self._sources.pop(read)
        if sink is not None:
            sink.send_all()
        if source is not None:
            source.close()
            self._owner.release(source.slot)
