"""A queue or pipe in its owner's process: serves the owner's threads and other processes.

:class:`Channel` has a :class:`~fiber._objects.queue.state.QueueState` for each direction (one of a
queue or a one-way pipe, two of a duplex pipe) and executes its commands: it wakes threads and sends
messages. :class:`LocalReader` and :class:`LocalWriter` are what the owner's own handles use.

All of it is guarded by the channel's lock, which is held for short only, by the owner's threads and
by the handler thread. Threads wait outside of it, each for a lock of its own.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._base.entry_points import load_object
from fiber._base.threads import TURN, wait_for_wakeup
from fiber._objects import protocol
from fiber._objects.address import Kind
from fiber._objects.owned_object import OwnedObject
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.protocol import Mode, Notice, Op, Outcome, Step
from fiber._objects.queue import messages, progress
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._objects.queue.requests import (
    Accepted,
    Broken,
    Commands,
    Deliver,
    Drop,
    End,
    Nothing,
    Offer,
    OpenBypass,
    Ready,
    Recall,
    Refused,
    Request,
    Revoke,
    StartTimer,
    Unready,
)
from fiber._objects.queue.state import QueueState
from fiber._wire.descriptors import OwnedSocket, ReadyFd
from fiber._wire.endpoint import Endpoint, Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.remote_object import ItemStream
    from fiber._objects.store import Store
    from fiber._wire.reading import Action


def _acquired_lock() -> threading.Lock:
    wakeup = threading.Lock()
    wakeup.acquire()
    return wakeup


@values.define(eq=False)
class WaitingReader(Request):
    """Request of a thread of the owner, which waits for an item."""

    wakeup: threading.Lock = values.field(factory=_acquired_lock)
    answer: Notice | None = None
    item: Item | None = None
    #: wakes the thread where it reads messages itself while it waits
    wake: Callable[[], None] | None = None

    def settle(self, answer: Notice, item: Item | None) -> None:
        """Wake the thread; with the object's lock held."""
        self.answer, self.item = answer, item
        self.wakeup.release()
        if self.wake is not None:
            self.wake()


@values.define(eq=False)
class WaitingWriter(Offer):
    """Offer of a thread of the owner, which waits for room for its item."""

    wakeup: threading.Lock = values.field(factory=_acquired_lock)
    outcome: Outcome | None = None

    def settle(self, outcome: Outcome) -> None:
        """Wake the thread; with the object's lock held."""
        self.outcome = outcome
        self.wakeup.release()


class LocalReader:
    """Reader of one direction for threads of the owner, a ``handle.Reader``."""

    def __init__(self, channel: Channel, direction: int) -> None:
        self._channel = channel
        self._direction = direction
        self._state = channel.states[direction]

    def take(self, block: bool, timeout: float | None) -> Item:
        """Take the next item."""
        channel, state = self._channel, self._state
        with channel.lock:
            item = state.take_now()
            if item is not None:
                self._taken()
                return item
            waiting_reader = WaitingReader(None, mode=Mode.WAIT if block else Mode.NOWAIT)
            if not state.wait_now(waiting_reader):
                channel.execute(self._direction, state.request(waiting_reader))
        self._wait(waiting_reader, timeout if block else None)
        if waiting_reader.item is not None:
            return waiting_reader.item
        if waiting_reader.answer is Notice.END:
            raise EOFError
        raise queue.Empty

    def poll(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would return or raise EOFError; False when none came in time."""
        channel, state = self._channel, self._state
        with channel.lock:
            if state.available or state.has_ended:
                return True
            now = timeout is not None and timeout <= 0
            waiting_reader = WaitingReader(None, mode=Mode.NOWAIT if now else Mode.WAIT, peek=True)
            channel.execute(self._direction, state.request(waiting_reader))
        self._wait(waiting_reader, None if now else timeout)
        return waiting_reader.answer in (Notice.ITEMS, Notice.END)

    def ready_fd(self) -> ReadyFd:
        """Descriptor that is readable while :meth:`take` would not wait."""
        with self._channel.lock:
            return self._channel.ready_fd(self._direction)

    def fileno(self) -> int:
        """The number of that descriptor: selectors take what has one, as a queue's ``_reader``."""
        return self.ready_fd().fd

    def _wait(self, waiting_reader: WaitingReader, timeout: float | None) -> None:
        try:
            # the usual case first, without the frames of a loop
            if timeout is None and self._read(waiting_reader, TURN):
                return
            wait_for_wakeup(
                waiting_reader.wakeup, timeout, functools.partial(self._read, waiting_reader)
            )
        except BaseException:
            # an interrupted wait loses no item
            with self._channel.lock:
                self._forget(waiting_reader)
                if waiting_reader.item is not None:
                    self._channel.execute(
                        self._direction, self._state.undo_take(waiting_reader.item)
                    )
            raise
        if waiting_reader.answer is None:
            with self._channel.lock:
                self._forget(waiting_reader)

    def _read(self, waiting_reader: WaitingReader, seconds: float) -> bool | None:
        """Read messages until there is an answer; None where others read them."""
        channel, endpoint = self._channel, self._channel.endpoint
        if endpoint is None or waiting_reader.peek or self._state.window.maxsize:
            return None
        writer = channel.only_writer(self._direction)
        # items in memory are the handler thread's: one thread receives their descriptors
        has_memory = writer is not None and writer.state.get(DESCRIPTOR_STREAM) is not None
        reading = None if has_memory else endpoint.reading_of(writer)
        if reading is None:
            return None
        waiting_reader.wake = reading.wake
        look = functools.partial(channel.look, self._direction, waiting_reader)

        def is_over() -> bool:
            return waiting_reader.answer is not None

        if not endpoint.wait(reading, channel.target, look, is_over, seconds):
            return None
        return waiting_reader.answer is not None

    def _forget(self, waiting_reader: WaitingReader) -> None:
        if waiting_reader.answer is None:
            self._state.cancel(waiting_reader)

    def _taken(self) -> None:
        if self._state.has_waiting_writers or self._state.pollers:
            self._channel.execute(self._direction, self._state.advance())
        else:
            self._channel.changed(self._direction)


class LocalWriter:
    """Writer of one direction for threads of the owner, a ``handle.Writer``."""

    def __init__(self, channel: Channel, direction: int) -> None:
        self._channel = channel
        self._direction = direction
        self._state = channel.states[direction]

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Put an item in."""
        channel, state = self._channel, self._state
        with channel.lock:
            delivery = state.deliver_now(item)
            if delivery is not None:
                # nothing else has changed: there is no item more or less than before
                channel.deliver(self._direction, delivery)
                return
            if state.put_now(item):
                channel.changed(self._direction)
                return
            waiting_writer = WaitingWriter(None, deque((item,)), wait=block)
            channel.execute(self._direction, state.offer(waiting_writer))
        if waiting_writer.outcome is None:
            self._wait(waiting_writer, timeout if block else None)
        if waiting_writer.outcome is Outcome.BROKEN:
            msg = f"this {channel.shape.name} has no reader any more"
            raise BrokenPipeError(msg)
        if waiting_writer.outcome is not Outcome.ACCEPTED:
            raise queue.Full

    def flush(self) -> None:
        """Do nothing: each put is in the queue when it returns."""

    def deliver(self) -> None:
        """Do nothing: each put is in the queue when it returns."""

    def abandon(self) -> None:
        """Do nothing: each put is in the queue when it returns."""

    def _wait(self, waiting_writer: WaitingWriter, timeout: float | None) -> None:
        try:
            wait_for_wakeup(waiting_writer.wakeup, timeout)
        finally:
            with self._channel.lock:
                if waiting_writer.outcome is None:
                    self._state.window.withdraw(waiting_writer)


#: key of the stream in a peer's state; targets are not negative, and -1 is that of its pages
DESCRIPTOR_STREAM = -2
#: seconds after which prefetched items are recalled for a reader that waits
GRACE = 0.005


@values.define(eq=False)
class _PeerRequest(Request):
    peer: Peer = values.field(kw_only=True)


@values.define(eq=False)
class _PeerOffer(Offer):
    peer: Peer = values.field(kw_only=True)
    #: bytes of all its items
    size: int = values.field(kw_only=True)
    #: True where the writer waits for the outcome
    is_call: bool = values.field(default=False, kw_only=True)


class Channel(OwnedObject):
    """A queue or pipe at its owner."""

    #: items that a request of a pipe's reader is for at least: an only reader need not ask for each
    _few_in_pipe = 64

    def __init__(self, store: Store, kind: Kind, maxsize: int = 0) -> None:
        super().__init__(store, kind, maxsize)
        self.states = [
            QueueState(maxsize=one.maxsize, max_bytes=one.max_bytes)
            for one in self.shape.directions
        ]
        self._ready_fds: list[ReadyFd | None] = [None] * len(self.states)
        # of each writer: batches that are in, those of them that were acknowledged, bytes of the others
        self._counts: dict[tuple[Peer, int], list[int]] = {}
        # of each direction: the writers of the last two batches
        self._latest: list[tuple[Peer | None, Peer | None]] = [(None, None)] * len(self.states)
        # writers that are acknowledged once the reactor has read what came with their last batch
        self._acknowledging: set[tuple[Peer, int]] = set()
        self._least_items = self._few_in_pipe if self.shape.ends > 1 else 1
        # readers whose progress is seen here: what they have unpickled is not given to others
        self._seen: set[Peer] = set()
        # ends of bypasses whose writers have not fetched them, by direction
        self._writing_ends: dict[int, OwnedSocket] = {}

    # -- for handles of this process

    def reader(self, direction: int) -> LocalReader:
        """Make a reader of a direction."""
        return LocalReader(self, direction)

    def writer(self, direction: int) -> LocalWriter:
        """Make a writer of a direction."""
        return LocalWriter(self, direction)

    def takes_memory(self) -> bool:
        """True where items in memory may be put."""
        return self._store.has_descriptors

    def size(self, direction: int) -> int:
        """Number of items in a direction."""
        with self.lock:
            return self.states[direction].size

    # -- the same, with the lock held

    def execute(self, direction: int, commands: Commands) -> None:
        """Execute commands of a direction's state."""
        for one in commands:
            match one:
                case Deliver():
                    self.deliver(direction, one)
                case Accepted():
                    self._answer_offer(Outcome.ACCEPTED, direction, one.offer)
                case Nothing():
                    self._answer_without_items(Notice.NOTHING, direction, one.request)
                case Ready():
                    self._answer_without_items(Notice.READY, direction, one.request)
                case Unready():
                    self._answer_without_items(Notice.UNREADY, direction, one.request)
                case Recall():
                    self._send_notice(one.reader, direction, Notice.RECALL)
                case OpenBypass():
                    session = one.request.number
                    about = one.number, session, one.count
                    self._send_step(one.request.reader, direction, Step.OPEN, *about)
                case StartTimer():
                    self._store.call_later(GRACE, functools.partial(self._on_timer, direction))
                case End():
                    self._answer_without_items(Notice.END, direction, one.request)
                case Refused():
                    self._answer_offer(Outcome.FULL, direction, one.offer)
                case Broken():
                    self._answer_offer(Outcome.BROKEN, direction, one.offer)
                case Revoke():
                    self._send_notice(one.writer, direction, Notice.REVOKE)
                case Drop():
                    self._drop_items(one.items)
        self.changed(direction)

    def changed(self, direction: int) -> None:
        """Update the ready descriptor of a direction whose items changed."""
        ready_fd = self._ready_fds[direction]
        if ready_fd is not None:
            state = self.states[direction]
            ready_fd.set(bool(state.available) or state.has_ended)
        if self._store.is_closing:
            self._store.drained()

    def ready_fd(self, direction: int) -> ReadyFd:
        """Ready descriptor of a direction for threads of the owner, made on first use."""
        ready_fd = self._ready_fds[direction]
        if ready_fd is None:
            ready_fd = self._ready_fds[direction] = ReadyFd()
            self.execute(direction, self.states[direction].set_owner_polls(True))
        return ready_fd

    def only_writer(self, direction: int) -> Peer | None:
        """The process that has put all the last batches into a direction; None where several have."""
        latest, last_but_one = self._latest[direction]
        return latest if latest is last_but_one else None

    def is_awaited(self, direction: int) -> bool:
        """True while another process reads a direction, or is about to."""
        return self._references.is_expected(self.shape.directions[direction].readers)

    # -- the end of the owner

    def request_flush(self) -> None:
        """Ask readers to report at once what they have handed out: the owner is about to end."""
        with self.lock:
            for direction, state in enumerate(self.states):
                for reader in state.readers:
                    self._send_notice(reader, direction, Notice.REPORT_NOW)
                # of what it takes there it reports nothing
                self.execute(direction, state.close_bypass())

    def is_drained(self) -> bool:
        """True where other processes can get nothing more."""
        with self.lock:
            return all(
                state.is_settled or not self.is_awaited(direction)
                for direction, state in enumerate(self.states)
            )

    # -- references

    def _on_attach(self, peer: Peer, end: int, slot: int, tag: bytes, page: bytes) -> bool:
        words = self._store.page(peer, page, tag) if 0 < slot < progress.SLOTS else None
        direction = self.shape.direction_read_by(end)
        if direction is not None:
            read = None if words is None else progress.progress_of(words, slot)
            self.states[direction].add_reader(peer, read)
            if read is not None:
                self._seen.add(peer)
        written = self.shape.direction_written_by(end)
        if written is not None and self.states[written].readers_gone:
            self._send_notice(peer, written, Notice.BROKEN)
        return words is not None

    def _on_detach(self, peer: Peer, end: int) -> None:
        self._seen.discard(peer)
        direction = self.shape.direction_read_by(end)
        if direction is not None:
            self.execute(direction, self.states[direction].remove_reader(peer))
        written = self.shape.direction_written_by(end)
        if written is not None:
            self._counts.pop((peer, written), None)
            # where it was about to be fetched
            self._writing_ends.pop(written, None)
            if peer in self._latest[written]:
                self._latest[written] = None, None
            self.execute(written, self.states[written].remove_writer(peer))

    def _on_local_detach(self, end: int) -> None:
        direction = self.shape.direction_read_by(end)
        ready_fd = None if direction is None else self._ready_fds[direction]
        if direction is not None and ready_fd is not None:
            ready_fd.close()
            self._ready_fds[direction] = None
            self.execute(direction, self.states[direction].set_owner_polls(False))

    def _on_end_closed(self, end: int) -> None:
        for direction, shape in enumerate(self.shape.directions):
            state = self.states[direction]
            if shape.writers == end:
                self.execute(direction, state.close_writers())
            if shape.readers == end:
                self.execute(direction, state.close_readers())
                for peer in self._references.peers(shape.writers):
                    self._send_notice(peer, direction, Notice.BROKEN)

    # -- other processes

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        body = message.body
        if len(body) < 2 or body[1] >= len(self.states):
            msg = f"a message names a direction that a {self.shape.name} does not have"
            raise WireError(msg)
        direction = body[1]
        state = self.states[direction]
        if op == Op.PUT:
            self._put(peer, direction, body[protocol.PUT.size :], None)
        elif op == Op.PUT_COPY:
            self._put_copy(peer, direction, body)
        elif op == Op.OFFER:
            self._put(peer, direction, body[protocol.OFFER.size :], message)
        elif op == Op.REQUEST:
            _, _, mode, max_items, settled, session = protocol.read(protocol.REQUEST, body)
            if mode > Mode.STANDING or not max_items:
                msg = f"a reader asks for {max_items} items in mode {mode}"
                raise WireError(msg)
            max_items = max(max_items, self._least_items)
            request = _PeerRequest(peer, session, max_items, Mode(mode), peer=peer)
            self.execute(direction, state.request(request, settled))
        elif op == Op.SETTLE:
            self.execute(direction, state.settle(peer, protocol.read(protocol.SETTLE, body)[2]))
        elif op == Op.GIVE_BACK:
            _, _, after, upto, number = protocol.read(protocol.GIVE_BACK, body)
            self.execute(direction, state.give_back(peer, after, upto, number))
        elif op == Op.CANCEL:
            self.execute(direction, state.cancel_all(peer))
        elif op == Op.WITHDRAW:
            offer = state.window.find(peer, protocol.read(protocol.WITHDRAW, body)[2])
            if offer is not None and state.window.withdraw(offer):
                self.execute(direction, [Refused(offer)])
        elif op == Op.RETURN_CREDIT:
            count = protocol.read(protocol.RETURN_CREDIT, body)[2]
            self.execute(direction, state.return_credit(peer, count))
        elif op == Op.OPEN_STREAM:
            self._open_stream(peer, message)
        elif op == Op.FETCH_BYPASS:
            self._send_bypass(peer, direction, message)
        elif op == Op.SIZE:
            size = protocol.SIZED.pack(state.size)
            peer.send(Frame.REPLY, self.target, message.id, [size])
        else:
            super()._on_request(peer, message, op)

    @functools.cached_property
    def _run_endpoint(self) -> Endpoint:
        return self._store.node.endpoint

    @property
    def endpoint(self) -> Endpoint | None:
        """Where its messages come; None while none do."""
        return self._run_endpoint if self.target else None

    def look(
        self, direction: int, reader: WaitingReader, peer: Peer, body: memoryview
    ) -> Action | None:
        """What a thread of the owner that waits for an item does with a message; None for others'."""
        if len(body) < protocol.PUT.size or body[0] != Op.PUT or body[1] != direction:
            return None
        if peer.state.get(DESCRIPTOR_STREAM) is not None:
            return None
        item = messages.sole(body, protocol.PUT.size)
        if item is None:
            return None
        is_passed_on = is_counted = False

        def put() -> bool:
            nonlocal is_passed_on, is_counted
            with self.lock:
                if is_passed_on or (
                    reader.answer is None and self.states[direction].pass_on(reader)
                ):
                    is_passed_on = True
                    reader.answer, reader.item = Notice.ITEMS, item
                    if not is_counted:
                        self._count_batch(peer, direction, len(item))
                    is_counted = True
                else:
                    # another thread has put an item
                    self._put(peer, direction, body[protocol.PUT.size :], None)
                return is_passed_on

        return put

    def _put(self, peer: Peer, direction: int, batch: memoryview, call: Message | None) -> None:
        state = self.states[direction]
        # the usual case first, of a small item for the process that waits: in the middle of its way
        one = messages.sole(batch) if call is None and DESCRIPTOR_STREAM not in peer.state else None
        if one is not None:
            delivery = state.deliver_now(one)
            if delivery is not None:
                self.deliver(direction, delivery)
                self._count_batch(peer, direction, len(one))
                if state.bypass.is_due(peer, delivery.request.reader):
                    self._offer_bypass(direction, peer, delivery.request.reader)
                return
        items = deque((one,) if one is not None else self._arrived(peer, messages.unpack(batch)))
        for item in items:
            if isinstance(item, ItemWithReferences):
                # raises now, while the peer that sent a malformed list is known
                item.references()
        size = sum(map(len, items))
        if call is None:
            self.execute(direction, state.put(_PeerOffer(peer, items, peer=peer, size=size)))
            return
        _, _, wait = protocol.read(protocol.OFFER, call.body)
        offer = _PeerOffer(peer, items, call.id, bool(wait), peer=peer, size=size, is_call=True)
        self.execute(direction, state.offer(offer))

    # -- a bypass

    def _offer_bypass(self, direction: int, writer: Peer, reader: Hashable) -> None:
        near = self._store.has_descriptors and self._store.is_near(writer)
        if near and self.kind is Kind.QUEUE and reader in self._seen and reader != writer:
            number = self.states[direction].bypass.offer(writer, reader)
            self._send_step(reader, direction, Step.RECEIVE, number)

    def _send_bypass(self, peer: Peer, direction: int, message: Message) -> None:
        """Send its end to the reader, and then the other one to the writer."""
        _, _, number, name, token = protocol.read(protocol.FETCH_BYPASS, message.body)
        bypass, end = self.states[direction].bypass, None
        if number == bypass.number and not bypass.is_open:
            # there may be too many descriptors
            with contextlib.suppress(OSError):
                if peer == bypass.reader:
                    pair = load_object("fiber._objects.queue.bypass_socket:pair")
                    end, self._writing_ends[direction] = pair()
                elif peer == bypass.writer:
                    end = self._writing_ends.pop(direction, None)
        lend = load_object("fiber._objects.queue.bypass_socket:lend")
        is_sent = end is not None and lend(end, name, token)
        peer.send(Frame.REPLY, self.target, message.id, [protocol.FETCHED.pack(is_sent)])
        if is_sent and peer == bypass.reader:
            self._send_step(bypass.writer, direction, Step.SEND, number)

    def _put_copy(self, peer: Peer, direction: int, body: memoryview) -> None:
        _, _, number, count = protocol.read(protocol.PUT_COPY, body)
        item = messages.sole(body, protocol.PUT_COPY.size)
        if item is None:
            msg = "a copy of what went through a bypass is no single item"
            raise WireError(msg)
        state = self.states[direction]
        if state.hold_copy(peer, number, count, item):
            self._count_batch(peer, direction, len(item))
            return
        offer = _PeerOffer(peer, deque((item,)), peer=peer, size=len(item))
        self.execute(direction, state.put_copy(offer, number, count))

    def _send_step(
        self,
        peer: Hashable,
        direction: int,
        step: Step,
        number: int,
        session: int = 0,
        count: int = 0,
    ) -> None:
        if isinstance(peer, Peer):
            about = step, number, session, count
            notice = protocol.BYPASS.pack(Notice.BYPASS, direction, *about)
            peer.send(Frame.CAST, self.target, 0, [notice])

    # -- items in memory

    def _open_stream(self, peer: Peer, message: Message) -> None:
        _, _, name, token = protocol.read(protocol.OPEN_STREAM, message.body)
        is_sent = False
        if self._store.has_descriptors and self._store.is_near(peer):
            is_sent = load_object("fiber._objects.queue.descriptor_stream:accept_stream")(
                peer, name, token
            )
        if message.kind is Frame.CALL:
            peer.send(Frame.REPLY, self.target, message.id, [protocol.STREAM_OPENED.pack(is_sent)])

    @staticmethod
    def _arrived(peer: Peer, items: Sequence[Item]) -> Sequence[Item]:
        stream: ItemStream | None = peer.state.get(DESCRIPTOR_STREAM)  # type: ignore[assignment] # ours alone
        return items if stream is None else stream.receive_items(items)

    def _sent(self, peer: Peer, items: Sequence[Item]) -> Sequence[Item]:
        stream: ItemStream | None = peer.state.get(DESCRIPTOR_STREAM)  # type: ignore[assignment] # ours alone
        if stream is not None and stream.is_open and peer in self._seen:
            return stream.send_items(items)
        return [item.copy() if type(item) is ItemInMemory else item for item in items]

    def _send_notice(self, peer: object, direction: int, notice: Notice) -> None:
        if isinstance(peer, Peer):
            peer.send(Frame.CAST, self.target, 0, [protocol.NOTICE.pack(notice, direction)])

    # -- executing commands

    def deliver(self, direction: int, one: Deliver) -> None:
        """Send items to the reader that asked for them."""
        request = one.request
        if isinstance(request, WaitingReader):
            request.settle(Notice.ITEMS, one.items[0] if one.items else None)
        elif isinstance(request, _PeerRequest):
            head = protocol.ANSWER.pack(
                Notice.ITEMS, direction, request.number, one.kept, one.first
            )
            items: Sequence[Item] = one.items
            if ItemInMemory in map(type, items):
                items = self._sent(request.peer, items)
            request.peer.send(Frame.CAST, self.target, 0, [head, *messages.pack(items)])

    def _answer_without_items(self, notice: Notice, direction: int, request: Request) -> None:
        if isinstance(request, WaitingReader):
            request.settle(notice, None)
        elif isinstance(request, _PeerRequest):
            head = protocol.ANSWER.pack(notice, direction, request.number, 0, 0)
            request.peer.send(Frame.CAST, self.target, 0, [head])

    def _answer_offer(self, outcome: Outcome, direction: int, offer: Offer) -> None:
        if isinstance(offer, WaitingWriter):
            offer.settle(outcome)
        elif isinstance(offer, _PeerOffer):
            if offer.is_call:
                may_send = outcome is Outcome.ACCEPTED and offer.peer.alive
                count = self.states[direction].grant(offer.peer) if may_send else 0
                answer = protocol.OUTCOME.pack(outcome, count)
                offer.peer.send(Frame.REPLY, self.target, offer.number, [answer])
            elif outcome is Outcome.BROKEN:
                self._send_notice(offer.peer, direction, Notice.BROKEN)
            else:
                self._count_batch(offer.peer, direction, offer.size)

    def _count_batch(self, peer: Peer, direction: int, size: int) -> None:
        """Count a batch that is in; several are acknowledged together."""
        if not peer.alive:
            return
        self._latest[direction] = peer, self._latest[direction][0]
        writer = peer, direction
        counts = self._counts.get(writer) or self._counts.setdefault(writer, [0, 0, 0])
        counts[0] += 1
        counts[2] += size
        is_small = counts[2] < protocol.SMALL_BYTES // 2
        after = protocol.SMALL_TAKEN_AFTER if is_small else protocol.TAKEN_AFTER
        if counts[0] - counts[1] >= after and writer not in self._acknowledging:
            # in this order: a thread of the user's, which counts too, may be interrupted in between
            self._store.call_soon(functools.partial(self._acknowledge, writer))
            self._acknowledging.add(writer)

    def _acknowledge(self, writer: tuple[Peer, int]) -> None:
        with self.lock:
            self._acknowledging.discard(writer)
            counts = self._counts.get(writer)
            if counts is None:
                return
            counts[1], counts[2] = counts[0], 0
            peer, direction = writer
            notice = protocol.TAKEN.pack(Notice.TAKEN, direction, counts[0])
            peer.send(Frame.CAST, self.target, 0, [notice])

    def _on_timer(self, direction: int) -> None:
        with self.lock:
            self.execute(direction, self.states[direction].on_timer())

    def _drop_items(self, dropped: list[Item]) -> None:
        for item in dropped:
            if isinstance(item, ItemWithReferences):
                self._store.void_references(item.references())
