"""Ends of pipes: sockets with references, and their way to other processes.

A process that cannot have a descriptor, on another host or with another authkey, is served by a bridge:
the process that has the end makes a pipe that lives in it, gives the other one an end of that, and passes
messages on. Other processes that hold the same end as it take part: each message goes to one of them.

Both ends of a pipe as one, a queue, have many readers as a rule: an item is passed on only while the other
process asks for one, and is put back, behind the others, where that ends before it has it.
"""

from __future__ import annotations

import logging
import pickle
import queue
import secrets
import select
import threading
from typing import TYPE_CHECKING, Any, cast

from fiber._base.threads import TURN
from fiber._objects import protocol
from fiber._objects.address import NO_REFERENCE, Address, Kind, Shape
from fiber._objects.handle import ChannelObject, decode, encode, encode_into
from fiber._objects.owned_object import OwnedObject
from fiber._objects.pipe import memories, packets
from fiber._objects.pipe.packets import INLINE, Packet, PacketLoop, PacketSocket
from fiber._objects.protocol import Op
from fiber._objects.queue.channel import Channel
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._objects.queue.requests import Deliver
from fiber._objects.remote_object import Owner, without_traceback
from fiber._wire.descriptors import ReadyFd
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._objects.store import Store

log = logging.getLogger("fiber")


def pair(process: Store, *, duplex: bool, auth_domain: str | None = None) -> tuple[End, End]:
    """The two ends of a new pipe.

    Args:
        process: store of this process.
        duplex: False where the first reads and the second writes.
        auth_domain: whose processes hold one of its ends, by its descriptor too.
    """
    first, second = PacketSocket.pair(process.await_receipt)
    kinds = (Kind.SOCKET, Kind.SOCKET) if duplex else (Kind.READING_SOCKET, Kind.WRITING_SOCKET)
    ends = End(process, kinds[0], first), End(process, kinds[1], second)
    for end in ends:
        end.near_domain = auth_domain
    return ends


def loop(process: Store) -> End:
    """Both ends of a new pipe as one object: a queue."""
    return End(process, Kind.SOCKET_QUEUE, PacketLoop.new(process.await_receipt))


class End(OwnedObject):
    """One end of a pipe in this process: shared object, reader and writer at once.

    Args:
        process: store of this process.
        kind: of an end that reads, writes or does both; or of both ends as one.
        way: its socket, or end of a bridge; None where it is fetched from another process.
        fetching: fetches it.
    """

    def __init__(
        self,
        process: Store,
        kind: Kind,
        way: PacketSocket | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        super().__init__(process, kind)
        self._way: PacketSocket | FarEnd | None = way
        self._fetching = fetching
        #: auth domain whose processes on this host may have the descriptor, beside those of this run
        self.near_domain: str | None = None

    # -- reader and writer

    def reader(self, direction: int) -> End:
        """Its reading side."""
        return self

    def writer(self, direction: int) -> End:
        """Its writing side."""
        return self

    def size(self, direction: int) -> int:
        """Raises NotImplementedError: the kernel does not count messages."""
        raise NotImplementedError

    def takes_memory(self) -> bool:
        """False: its items are no objects of a queue."""
        return False

    def take(self, block: bool, timeout: float | None) -> Item:
        """The next item."""
        way = self._way or self._arrived()
        if block and timeout is None:
            return way.take()
        if not way.poll(timeout if block else 0):
            raise queue.Empty
        return way.take(wait=False)

    def poll(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would not; False when none came in time."""
        return (self._way or self._arrived()).poll(timeout)

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return (self._way or self._arrived()).fileno()

    def put(self, item: Item, block: bool, timeout: float | None) -> None:
        """Put an item; waits while there is no room."""
        (self._way or self._arrived()).put(item)

    def put_value(self, value: Any, auth_domain: str | None = None) -> None:
        """Pickle a value and put it; large ones are copied once less than by ``put(encode(value))``.

        Args:
            value: any picklable value.
            auth_domain: name of the auth domain that loads it, where the handle knows; of this run if None.
        """
        way = self._way or self._arrived()
        auth_domain = auth_domain or way.auth_domain
        if isinstance(way, PacketSocket) and memories.is_larger(value, INLINE):
            packet, references = encode_into(Packet, value, auth_domain=auth_domain)
            if references:
                way.put(ItemWithReferences.of(references, packet.getvalue()))
                packet.close(is_sent=False)
            else:
                way.send(packet)
        else:
            way.put(encode(value, auth_domain=auth_domain))

    def flush(self) -> None:
        """Does nothing: the kernel has all items."""

    abandon = flush

    def deliver(self) -> None:
        """Wait until all items arrive even if this process dies."""
        if isinstance(self._way, FarEnd):
            self._way.deliver()

    def detach(self) -> PacketSocket | None:
        """Its socket, which is the caller's from now on, once it has come; None where it is a bridge."""
        way = self._way or self._arrived()
        if not isinstance(way, PacketSocket):
            return None
        self._way = self._fetching = None
        return way

    # -- references

    def address_in(self, auth_domain: str | None) -> Address:
        """Address for processes of an auth domain, of this run if None; exports the object.

        Raises:
            PeerLostError: it was not fetched before its process ended.
            RuntimeError: they cannot reach the process that has it.
        """
        way = self._way or self._arrived()
        if auth_domain is not None and isinstance(way, FarEnd):
            way.shared.address_in(auth_domain)
        return super().address_in(auth_domain)

    def is_drained(self) -> bool:
        """True where no other process will load it."""
        with self.lock:
            way = self._way
            return (
                not self._references.is_arriving(0)
                or not isinstance(way, PacketSocket)
                or way.is_hung_up
            )

    def _on_end_closed(self, end: int) -> None:
        way, self._way = self._way, None
        if way is not None:
            way.close()
        elif self._fetching is not None:
            self._fetching.discard()

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        if op != Op.FETCH:
            super()._on_request(peer, message, op)
            return
        _, reference_id, name, token = protocol.read(protocol.FETCH, message.body)
        way = self._way
        if way is None:
            peer.send(Frame.ERROR, self.target, message.id)
            return
        is_sent = self._is_sent(way, peer, name, token)
        answer = protocol.FETCHED.pack(is_sent)
        if not is_sent:
            try:
                answer += _lay_bridge(self._store, way, self.shape, peer)
            except OSError as error:
                log.warning("fiber: %s cannot have the end of a pipe: %s", peer, error)
                peer.send(Frame.ERROR, self.target, message.id)
                return
        peer.send(Frame.REPLY, self.target, message.id, [answer])
        self._references.use(reference_id)
        self._review()

    def _review(self) -> None:
        super()._review()
        # it may be what the exit of this process waits for
        self._store.drained()

    def _is_sent(self, way: PacketSocket | FarEnd, peer: Peer, name: bytes, token: bytes) -> bool:
        return (
            isinstance(way, PacketSocket)
            and self._store.is_near(peer, self.near_domain)
            and packets.send_descriptors(way.filenos(), name, token)
        )

    # -- the fetching of one that was loaded

    def _arrived(self) -> PacketSocket | FarEnd:
        """Wait until it was fetched."""
        if self._fetching is None:
            msg = "handle is closed"
            raise OSError(msg)
        way = self._fetching.found()
        with self.lock:
            if self._way is None:
                self._way = way
        return way


class Fetching:
    """The way of an end from the process that pickled it to this one.

    Args:
        process: store of this process.
        owner: connection to the process that has it.
        target: number of the end there.
        reference_id: of the pickle.
        count: descriptors that it has.
    """

    def __init__(
        self, process: Store, owner: Owner, target: int, reference_id: int, count: int
    ) -> None:
        self._store = process
        self._count = count
        self._owner = owner
        self._lock = threading.Lock()
        self._found: PacketSocket | FarEnd | None = None
        self._error: PeerLostError | None = None
        self._inbox = packets.Inbox()
        try:
            message = protocol.FETCH.pack(
                Op.FETCH, reference_id, self._inbox.name, self._inbox.token
            )
            self._pending = owner.call(target, [message])
        except PeerLostError as error:
            self._fail(error)

    def found(self) -> PacketSocket | FarEnd:
        """Wait for it.

        Raises:
            PeerLostError: its process ended before, or did not have it any more.
            OSError: there is no descriptor left for it.
        """
        with self._lock:
            if self._error is not None:
                raise PeerLostError(str(self._error)) from self._error
            if self._found is None:
                self._pending.wait()
                try:
                    self._found = self._take(self._pending.result())
                except PeerLostError as error:
                    self._fail(error)
                    raise
                finally:
                    self._inbox.close()
                    self._store.retire_soon(self._owner)
            return self._found

    def discard(self) -> None:
        """Let go what is on its way."""
        self._store.run_in_background(lambda: self.found().close())

    def _fail(self, error: PeerLostError) -> None:
        self._error = error
        without_traceback(error)

    def _take(self, answer: memoryview) -> PacketSocket | FarEnd:
        (was_sent,) = protocol.read(protocol.FETCHED, answer)
        if not was_sent:
            address, end, reference_id = pickle.loads(answer[protocol.FETCHED.size :])
            shared = self._store.hold(address, end, reference_id)
            return FarEnd(cast("ChannelObject", shared), end)
        # it was sent before the answer
        found = self._inbox.take(self._count)
        return PacketSocket.of(found, self._store.await_receipt)


def fetched(process: Store, owner: Owner, address: Address, reference_id: int) -> End:
    """An end that is loaded from a pickle of another process."""
    count = 2 if address.kind is Kind.SOCKET_QUEUE else 1
    fetching = Fetching(process, owner, address.target, reference_id, count)
    return End(process, address.kind, fetching=fetching)


#: ends of the pipe that a bridge makes: of the process that makes it, and of the other one
_NEAR, _FAR = 0, 1


class FarEnd:
    """The end of a bridge that another process has made.

    Args:
        shared: the pipe, which was held for it.
        end: its end.
    """

    def __init__(self, shared: ChannelObject, end: int) -> None:
        self.shared = shared
        #: name of the auth domain that loads what is sent
        self.auth_domain = shared.auth_domain
        self._end = end
        read, written = shared.shape.direction_read_by(end), shared.shape.direction_written_by(end)
        assert read is not None
        assert written is not None
        self._reader, self._writer = shared.reader(read), shared.writer(written)

    def take(self, *, wait: bool = True) -> Item:
        """Take the next item, as from a :class:`PacketSocket`."""
        return self._reader.take(wait, None)

    def put(self, item: Item) -> None:
        """Put an item."""
        self._writer.put(item, True, None)

    def poll(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would not; False when none came in time."""
        return self._reader.poll(timeout)

    def fileno(self) -> int:
        """A descriptor that is readable while :meth:`take` would not wait."""
        return self._reader.fileno()

    def deliver(self) -> None:
        """Wait until all items arrive even if this process dies."""
        self._writer.deliver()

    def pickled(self, auth_domain: str | None) -> bytes:
        """Pickle of address, end and reference id, for a process that asks this one."""
        reference_id = secrets.randbits(63) | 1
        self.shared.issue(reference_id, self._end, 1)
        return pickle.dumps((self.shared.address_in(auth_domain), self._end, reference_id))

    def close(self) -> None:
        """Let it go; to be called once."""
        self.shared.drop(self._end)


class _Passage(Channel):
    """The pipe that a bridge makes for a queue, which tells of demand."""

    # the next item is not for this process unless it asks again
    _few_in_pipe = 1

    def __init__(self, store: Store) -> None:
        super().__init__(store, Kind.PIPE)
        self._far_reads = self.shape.direction_read_by(_FAR)
        #: readable while the other process asks for an item
        self.demand = ReadyFd()
        #: items that it did not take
        self.left: list[Item] = []

    def changed(self, direction: int) -> None:
        """See :meth:`Channel.changed`."""
        super().changed(direction)
        if direction == self._far_reads:
            self.demand.set(self.states[direction].is_wanting)

    def deliver(self, direction: int, one: Deliver) -> None:
        """See :meth:`Channel.deliver`."""
        super().deliver(direction, one)
        # the other process may ask for nothing more now
        self.changed(direction)

    def _drop_items(self, dropped: list[Item]) -> None:
        self.left += dropped


def _lay_bridge(process: Store, way: PacketSocket | FarEnd, shape: Shape, peer: Peer) -> bytes:
    """Pickle of address, end and reference id of an end for a peer, which is counted as its holder."""
    if isinstance(way, FarEnd):
        return way.pickled(peer.auth_domain)
    channel = _Passage(process) if isinstance(way, PacketLoop) else Channel(process, Kind.PIPE)
    channel.hold(_NEAR)
    address = channel.address_in(peer.auth_domain)
    channel.expect(peer, _FAR)
    bridge = _Bridge(way.duplicate(), channel, is_read=shape.direction_read_by(0) is not None)
    threading.Thread(target=bridge.carry, name="fiber-bridge", daemon=True).start()
    return pickle.dumps((address, _FAR, NO_REFERENCE))


class _Bridge:
    """Passes messages on until either side ends.

    Args:
        near: the end, which belongs to this object from then on.
        channel: the pipe of the other process.
        is_read: False for an end that only writes.
    """

    def __init__(self, near: PacketSocket, channel: Channel, *, is_read: bool) -> None:
        there, back = channel.shape.direction_read_by(_FAR), channel.shape.direction_read_by(_NEAR)
        assert there is not None
        assert back is not None
        self._near = near
        self._channel = channel
        self._writer, self._reader = channel.writer(there), channel.reader(back)
        self._passage = channel if isinstance(channel, _Passage) else None
        self._events = select.POLLIN if is_read else 0

    def carry(self) -> None:
        """Pass messages on; the thread's work."""
        try:
            while True:
                self._pass_some()
        except (EOFError, BrokenPipeError):
            return
        finally:
            self._channel.drop(_NEAR)
            if self._passage is not None:
                self._return_left(self._passage)
            self._near.close()

    def _pass_some(self) -> None:
        poll = select.poll()
        poll.register(self._reader.fileno(), select.POLLIN)
        if self._is_wanted():
            poll.register(self._near.fileno(), self._events)
        elif self._passage is not None:
            poll.register(self._passage.demand.fd, select.POLLIN)
        # in turns: nothing tells of a demand that has ended
        for descriptor, events in poll.poll(1000 * TURN):
            if descriptor == self._reader.fileno():
                self._near.put(self._reader.take(True, None))
            elif descriptor != self._near.fileno():
                continue
            elif not events & select.POLLIN:
                raise EOFError
            elif self._is_wanted():
                self._pass_one()

    def _is_wanted(self) -> bool:
        return self._passage is None or self._passage.demand.is_ready

    def _pass_one(self) -> None:
        try:
            item = self._near.take(wait=False)
        except queue.Empty:
            # another holder of the end was faster
            return
        try:
            self._writer.put(_readable(item, self._channel.auth_domain), True, None)
        except BrokenPipeError:
            if self._passage is not None and not self._passage.left:
                self._passage.left.append(item)
            raise

    def _return_left(self, passage: _Passage) -> None:
        for item in passage.left:
            self._near.put(item)
        passage.demand.close()


def _readable(item: Item, auth_domain: str | None) -> Item:
    """An item for the other process: objects in it have addresses of their own in an auth domain."""
    if auth_domain is None or not isinstance(item, ItemWithReferences):
        return item
    return encode(decode(item), auth_domain=auth_domain)
