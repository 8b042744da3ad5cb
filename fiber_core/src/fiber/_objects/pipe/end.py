"""Ends of pipes: sockets with references, and their way to other processes."""

from __future__ import annotations

import logging
import pickle
import queue
import threading
from typing import TYPE_CHECKING, Any, cast

from fiber._objects import protocol
from fiber._objects.address import Address, Kind
from fiber._objects.handle import encode, encode_into
from fiber._objects.owned_object import OwnedObject
from fiber._objects.pipe import bridge, memories, packets
from fiber._objects.pipe.bridge import FarEnd
from fiber._objects.pipe.packets import INLINE, Packet, PacketLoop, PacketSocket
from fiber._objects.protocol import Op
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._objects.remote_object import Owner, without_traceback
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._objects.handle import ChannelObject
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
                answer += bridge.lay(self._store, way, self.shape, peer)
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
