"""A queue or pipe at its owner: its lanes, served to threads here and to other processes.

The sides of a lane for threads of its owner: no wire in between.
"""

from __future__ import annotations

import functools
import queue
from collections import deque
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.owned import Shared
from fiber._objects.protocol import Mode, Op, Outcome, Word
from fiber._objects.queue import messages, progress
from fiber._objects.queue.messages import Item, Laden
from fiber._objects.queue.ready_fd import Bell
from fiber._objects.queue.requests import (
    Accepted,
    Broken,
    Drop,
    End,
    Give,
    Instructions,
    Nothing,
    Offer,
    Ready,
    Recall,
    Refused,
    Request,
    Revoke,
    Unready,
    Watch,
)
from fiber._objects.queue.state import Lane
from fiber._objects.waiting import Bidder, Waiter, pass_gate
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.store import Store


class LocalSource:
    """The reading side."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._lane = channel.lanes[number]

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item, see :class:`~fiber._objects.handle.Source`."""
        channel, lane = self._channel, self._lane
        with channel.lock:
            item = lane.take_now()
            if item is not None:
                self._taken()
                return item
            waiter = Waiter(None, mode=Mode.WAIT if block else Mode.NOWAIT)
            channel.carry(self._number, lane.ask(waiter))
        self._wait(waiter, timeout if block else None)
        return self._result(waiter)

    def ready(self, timeout: float | None) -> bool:
        """True where :meth:`take` would return or raise EOFError."""
        channel, lane = self._channel, self._lane
        with channel.lock:
            if lane.available or lane.has_ended:
                return True
            now = timeout is not None and timeout <= 0
            waiter = Waiter(None, mode=Mode.NOWAIT if now else Mode.WAIT, peek=True)
            channel.carry(self._number, lane.ask(waiter))
        self._wait(waiter, None if now else timeout)
        return waiter.answer in (Word.ITEMS, Word.END)

    def bell(self) -> Bell:
        """What tells of items."""
        with self._channel.lock:
            return self._channel.bell(self._number)

    def _wait(self, waiter: Waiter, timeout: float | None) -> None:
        try:
            pass_gate(waiter.gate, timeout)
        except BaseException:
            # an interrupted wait takes nothing with it
            with self._channel.lock:
                self._forget(waiter)
                if waiter.item is not None:
                    self._channel.carry(self._number, self._lane.untake(waiter.item))
            raise
        if waiter.answer is None:
            with self._channel.lock:
                self._forget(waiter)

    def _forget(self, waiter: Waiter) -> None:
        if waiter.answer is None:
            self._lane.cancel(waiter)

    def _taken(self) -> None:
        if self._lane.holds or self._lane.watchers:
            self._channel.carry(self._number, self._lane.advance())
        else:
            self._channel.changed(self._number)

    @staticmethod
    def _result(waiter: Waiter) -> Item:
        if waiter.item is not None:
            return waiter.item
        if waiter.answer is Word.END:
            raise EOFError
        raise queue.Empty


class LocalSink:
    """The writing side."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._lane = channel.lanes[number]

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Hand an item over, see :class:`~fiber._objects.handle.Sink`."""
        channel, lane = self._channel, self._lane
        with channel.lock:
            if lane.put_now(item):
                channel.changed(self._number)
                return
            bidder = Bidder(None, deque((item,)), wait=block)
            channel.carry(self._number, lane.offer(bidder))
        if bidder.outcome is None:
            self._wait(bidder, timeout if block else None)
        if bidder.outcome is Outcome.BROKEN:
            msg = f"nobody reads this {channel.shape.name} any more"
            raise BrokenPipeError(msg)
        if bidder.outcome is not Outcome.ACCEPTED:
            raise queue.Full

    def flush(self) -> None:
        """Nothing is on its way."""

    def deliver(self) -> None:
        """Nothing is on its way."""

    def abandon(self) -> None:
        """Nothing is on its way."""

    def _wait(self, bidder: Bidder, timeout: float | None) -> None:
        try:
            pass_gate(bidder.gate, timeout)
        finally:
            with self._channel.lock:
                if bidder.outcome is None:
                    self._lane.gate.withdraw(bidder)


#: seconds after which a reader that has items is asked to give them to one that waits
GRACE = 0.005


@values.define(eq=False)
class _PeerRequest(Request):
    peer: Peer = values.field(kw_only=True)


@values.define(eq=False)
class _PeerOffer(Offer):
    peer: Peer = values.field(kw_only=True)
    #: True where the writer waits for the outcome
    is_call: bool = values.field(default=False, kw_only=True)


class Channel(Shared):
    """A queue or a pipe."""

    def __init__(self, store: Store, kind: Kind, maxsize: int = 0) -> None:
        super().__init__(store, kind, maxsize)
        self.lanes = [
            Lane(maxsize=lane.maxsize, max_bytes=lane.max_bytes) for lane in self.shape.lanes
        ]
        self._bells: list[Bell | None] = [None] * len(self.lanes)
        # batches of each writer that are in, and of how many of them it has heard
        self._counts: dict[tuple[Peer, int], list[int]] = {}
        # writers that hear of theirs once the reactor has read what came with the last one
        self._acknowledging: set[tuple[Peer, int]] = set()

    # -- for threads here

    def source(self, lane: int) -> LocalSource:
        """The reading side of a lane."""
        return LocalSource(self, lane)

    def sink(self, lane: int) -> LocalSink:
        """The writing side of a lane."""
        return LocalSink(self, lane)

    def size(self, lane: int) -> int:
        """Items in a lane."""
        with self.lock:
            return self.lanes[lane].size

    # -- for threads here, with the lock held

    def carry(self, lane: int, instructions: Instructions) -> None:
        """Do what a lane says."""
        for one in instructions:
            match one:
                case Give():
                    self._give(lane, one)
                case Accepted():
                    self._judge(Outcome.ACCEPTED, lane, one.offer)
                case Nothing():
                    self._without(Word.NOTHING, lane, one.request)
                case Ready():
                    self._without(Word.READY, lane, one.request)
                case Unready():
                    self._without(Word.UNREADY, lane, one.request)
                case Recall():
                    self._tell(one.reader, lane, Word.RECALL)
                case Watch():
                    self._store.call_later(GRACE, functools.partial(self._overdue, lane))
                case End():
                    self._without(Word.END, lane, one.request)
                case Refused():
                    self._judge(Outcome.FULL, lane, one.offer)
                case Broken():
                    self._judge(Outcome.BROKEN, lane, one.offer)
                case Revoke():
                    self._tell(one.writer, lane, Word.REVOKE)
                case Drop():
                    self._let_go_of(one.items)
        self.changed(lane)

    def changed(self, lane: int) -> None:
        """Items came or went."""
        bell = self._bells[lane]
        if bell is not None:
            state = self.lanes[lane]
            bell.set(bool(state.available) or state.has_ended)
        if self._store.is_closing:
            self._store.drained()

    def bell(self, lane: int) -> Bell:
        """A descriptor that tells of items for threads here."""
        bell = self._bells[lane]
        if bell is None:
            bell = self._bells[lane] = Bell()
            self.carry(lane, self.lanes[lane].watch_here(True))
        return bell

    def is_awaited(self, lane: int) -> bool:
        """True while another process is going to read a lane."""
        return self._references.is_awaited(self.shape.lanes[lane].readers)

    # -- the end of the owner

    def hurry(self) -> None:
        """Have readers say at once what they hand out: the owner is about to end."""
        with self.lock:
            for number, lane in enumerate(self.lanes):
                for reader in lane.readers:
                    self._tell(reader, number, Word.HURRY)

    def is_drained(self) -> bool:
        """True where nobody elsewhere can get anything more."""
        with self.lock:
            return all(
                lane.is_settled or not self.is_awaited(number)
                for number, lane in enumerate(self.lanes)
            )

    # -- references

    def _arrive(self, peer: Peer, end: int, slot: int, mark: bytes, page: bytes) -> bool:
        words = self._store.page(peer, page, mark) if 0 < slot < progress.SLOTS else None
        lane = self.shape.lane_read_by(end)
        if lane is not None:
            read = None if words is None else progress.reader_of(words, slot)
            self.lanes[lane].open(peer, read)
        written = self.shape.lane_written_by(end)
        if written is not None and self.lanes[written].readers_gone:
            self._tell(peer, written, Word.BROKEN)
        return words is not None

    def _leave(self, peer: Peer, end: int) -> None:
        lane = self.shape.lane_read_by(end)
        if lane is not None:
            self.carry(lane, self.lanes[lane].lose(peer))
        written = self.shape.lane_written_by(end)
        if written is not None:
            self._counts.pop((peer, written), None)
            self.carry(written, self.lanes[written].lose_writer(peer))

    def _left(self, end: int) -> None:
        lane = self.shape.lane_read_by(end)
        bell = None if lane is None else self._bells[lane]
        if lane is not None and bell is not None:
            bell.close()
            self._bells[lane] = None
            self.carry(lane, self.lanes[lane].watch_here(False))

    def _end_closed(self, end: int) -> None:
        for number, shape in enumerate(self.shape.lanes):
            lane = self.lanes[number]
            if shape.writers == end:
                self.carry(number, lane.close_writers())
            if shape.readers == end:
                self.carry(number, lane.close_readers())
                for peer in self._references.peers(shape.writers):
                    self._tell(peer, number, Word.BROKEN)

    # -- other processes

    def _answer(self, peer: Peer, message: Message, op: int) -> None:
        body = message.body
        if len(body) < 2 or body[1] >= len(self.lanes):
            msg = f"a message names a lane that a {self.shape.name} does not have"
            raise WireError(msg)
        number = body[1]
        lane = self.lanes[number]
        if op == Op.PUT:
            self._put(peer, number, body[protocol.PUT.size :], None)
        elif op == Op.OFFER:
            self._put(peer, number, body[protocol.OFFER.size :], message)
        elif op == Op.ASK:
            _, _, mode, want, settled, session = protocol.read(protocol.ASK, body)
            if mode > Mode.STANDING or not want:
                msg = f"a reader asks for {want} items in mode {mode}"
                raise WireError(msg)
            request = _PeerRequest(peer, session, want, Mode(mode), peer=peer)
            self.carry(number, lane.ask(request, settled))
        elif op == Op.SETTLE:
            self.carry(number, lane.settle(peer, protocol.read(protocol.SETTLE, body)[2]))
        elif op == Op.GIVE:
            _, _, after, upto = protocol.read(protocol.GIVE, body)
            self.carry(number, lane.give_back(peer, after, upto))
        elif op == Op.CANCEL:
            self.carry(number, lane.cancel_all(peer))
        elif op == Op.WITHDRAW:
            offer = lane.gate.find(peer, protocol.read(protocol.WITHDRAW, body)[2])
            if offer is not None and lane.gate.withdraw(offer):
                self.carry(number, [Refused(offer)])
        elif op == Op.GIVE_UP:
            count = protocol.read(protocol.GIVE_UP, body)[2]
            self.carry(number, lane.give_up(peer, count))
        elif op == Op.SIZE:
            size = protocol.SIZED.pack(lane.size)
            peer.send(Frame.REPLY, self.target, message.id, [size])
        else:
            super()._answer(peer, message, op)

    def _put(self, peer: Peer, number: int, batch: memoryview, call: Message | None) -> None:
        came = deque(messages.unpack(batch))
        for item in came:
            if isinstance(item, Laden):
                # nonsense is this peer's fault now, and would be nobody's later
                item.tickets()
        lane = self.lanes[number]
        if call is None:
            self.carry(number, lane.put(_PeerOffer(peer, came, peer=peer)))
            return
        _, _, wait = protocol.read(protocol.OFFER, call.body)
        offer = _PeerOffer(peer, came, call.id, bool(wait), peer=peer, is_call=True)
        self.carry(number, lane.offer(offer))

    def _tell(self, peer: object, lane: int, word: Word) -> None:
        if isinstance(peer, Peer):
            peer.send(Frame.CAST, self.target, 0, [protocol.WORD.pack(word, lane)])

    # -- carrying out

    def _give(self, lane: int, one: Give) -> None:
        request = one.request
        if isinstance(request, Waiter):
            request.settle(Word.ITEMS, one.items[0] if one.items else None)
        elif isinstance(request, _PeerRequest):
            head = protocol.ANSWER.pack(Word.ITEMS, lane, request.number, one.kept, one.first)
            request.peer.send(Frame.CAST, self.target, 0, [head, *messages.pack(one.items)])

    def _without(self, word: Word, lane: int, request: Request) -> None:
        if isinstance(request, Waiter):
            request.settle(word, None)
        elif isinstance(request, _PeerRequest):
            head = protocol.ANSWER.pack(word, lane, request.number, 0, 0)
            request.peer.send(Frame.CAST, self.target, 0, [head])

    def _judge(self, outcome: Outcome, lane: int, offer: Offer) -> None:
        if isinstance(offer, Bidder):
            offer.settle(outcome)
        elif isinstance(offer, _PeerOffer):
            if offer.is_call:
                may_send = outcome is Outcome.ACCEPTED and offer.peer.alive
                count = self.lanes[lane].grant(offer.peer) if may_send else 0
                answer = protocol.OUTCOME.pack(outcome, count)
                offer.peer.send(Frame.REPLY, self.target, offer.number, [answer])
            elif outcome is Outcome.BROKEN:
                self._tell(offer.peer, lane, Word.BROKEN)
            else:
                self._took(offer.peer, lane)

    def _took(self, peer: Peer, lane: int) -> None:
        """A batch is in; its writer hears of some at a time."""
        if not peer.alive:
            return
        writer = peer, lane
        counts = self._counts.setdefault(writer, [0, 0])
        counts[0] += 1
        if counts[0] - counts[1] >= protocol.TAKEN_AFTER and writer not in self._acknowledging:
            self._acknowledging.add(writer)
            self._store.call_soon(functools.partial(self._acknowledge, writer))

    def _acknowledge(self, writer: tuple[Peer, int]) -> None:
        with self.lock:
            self._acknowledging.discard(writer)
            counts = self._counts.get(writer)
            if counts is None:
                return
            counts[1] = counts[0]
            peer, lane = writer
            word = protocol.TAKEN.pack(Word.TAKEN, lane, counts[0])
            peer.send(Frame.CAST, self.target, 0, [word])

    def _overdue(self, lane: int) -> None:
        with self.lock:
            self.carry(lane, self.lanes[lane].overdue())

    def _let_go_of(self, dropped: list[Item]) -> None:
        for item in dropped:
            if isinstance(item, Laden):
                self._store.void_all(item.tickets())
