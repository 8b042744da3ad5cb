"""Ends of pipes: sockets with references, and their way to other processes."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import queue
import secrets
import socket
import threading
from typing import TYPE_CHECKING, Any, cast

from fiber._objects import protocol
from fiber._objects.address import Address, Kind
from fiber._objects.handle import encode, encode_into
from fiber._objects.owned_object import OwnedObject
from fiber._objects.owner_connection import Owner, without_traceback
from fiber._objects.pipe import bridge
from fiber._objects.pipe.bridge import FarEnd
from fiber._objects.pipe.packets import CLOSE_ON_EXEC, INLINE, Packet, PacketSocket
from fiber._objects.protocol import Op
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._wire import descriptors, fork
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._objects.handle import ChannelObject
    from fiber._objects.store import Store

log = logging.getLogger("fiber")

_BYTES = frozenset({bytes, bytearray})
_CONTAINERS = frozenset({tuple, list, dict})
#: most parts of a container that are looked at
_FEW = 16


def is_possible(process: Store) -> bool:
    """True where a run's pipes can be sockets: its processes are on this host, which is Linux."""
    return hasattr(os, "memfd_create") and process.is_one_host


def pair(process: Store, *, duplex: bool) -> tuple[End, End]:
    """The two ends of a new pipe; where it is not ``duplex`` the first reads and the second writes."""
    first, second = PacketSocket.pair(process.await_receipt)
    kinds = (Kind.SOCKET, Kind.SOCKET) if duplex else (Kind.READING_SOCKET, Kind.WRITING_SOCKET)
    return End(process, kinds[0], first), End(process, kinds[1], second)


class End(OwnedObject):
    """One end of a pipe in this process: shared object, reader and writer at once.

    Args:
        process: store of this process.
        kind: of an end that reads, writes or does both.
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

    def put_value(self, value: Any) -> None:
        """Pickle a value and put it; large ones are copied once less than by ``put(encode(value))``."""
        way = self._way or self._arrived()
        if isinstance(way, PacketSocket) and _is_large(value):
            packet, references = encode_into(Packet, value)
            if references:
                way.put(ItemWithReferences.of(references, packet.getvalue()))
                packet.close(is_sent=False)
            else:
                way.send(packet)
        else:
            way.put(encode(value, auth_domain=way.auth_domain))

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
        is_sent = isinstance(way, PacketSocket) and self._is_near(peer) and _send(way, name, token)
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

    def _is_near(self, peer: Peer) -> bool:
        host = None if peer.hello is None else peer.hello.host
        return peer.auth_domain is None and host == self._store.host

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
    """

    def __init__(self, process: Store, owner: Owner, target: int, reference_id: int) -> None:
        self._store = process
        self._owner = owner
        self._lock = threading.Lock()
        self._found: PacketSocket | FarEnd | None = None
        self._error: PeerLostError | None = None
        self._token = secrets.token_bytes(16)
        name = secrets.token_bytes(16)
        self._inbox = descriptors.OwnedSocket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(_abstract(name))
        fork.register(self)
        try:
            message = protocol.FETCH.pack(Op.FETCH, reference_id, name, self._token)
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

    def abandon(self) -> None:
        """In a process forked by user code: close the descriptor."""
        self._inbox.close()

    def _fail(self, error: PeerLostError) -> None:
        self._error = error
        without_traceback(error)

    def _take(self, answer: memoryview) -> PacketSocket | FarEnd:
        (was_sent,) = protocol.read(protocol.FETCHED, answer)
        if not was_sent:
            address, end, reference_id = pickle.loads(answer[protocol.FETCHED.size :])
            shared = self._store.hold(address, end, reference_id)
            return FarEnd(cast("ChannelObject", shared), end)
        flags = socket.MSG_DONTWAIT | CLOSE_ON_EXEC
        while True:
            # it was sent before the answer
            token, found, _, _ = socket.recv_fds(self._inbox, len(self._token), 1, flags)
            if secrets.compare_digest(token, self._token):
                break
            for one in found:
                os.close(one)
        if not found:
            msg = "there is no descriptor left for the end of a pipe; see `ulimit -n`"
            raise OSError(errno.EMFILE, msg)
        return PacketSocket(found[0], self._store.await_receipt)


def fetched(process: Store, owner: Owner, address: Address, reference_id: int) -> End:
    """An end that is loaded from a pickle of another process."""
    fetching = Fetching(process, owner, address.target, reference_id)
    return End(process, address.kind, fetching=fetching)


def _is_large(value: Any) -> bool:
    """True for bytes and arrays, or a container with one, that do not fit into the message itself."""
    if type(value) in _CONTAINERS:
        parts = value.values() if type(value) is dict else value
        return len(value) <= _FEW and any(map(_is_large_array, parts))
    return _is_large_array(value)


def _is_large_array(value: Any) -> bool:
    if type(value) in _BYTES:
        return len(value) > INLINE
    size = getattr(value, "nbytes", 0)
    return type(size) is int and size > INLINE


def _send(way: PacketSocket, name: bytes, token: bytes) -> bool:
    """Send a descriptor; False where no process of this network namespace waits for it."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as courier:
            courier.setblocking(False)
            courier.connect(_abstract(name))
            socket.send_fds(courier, [token], [way.fileno()])
    except OSError as error:
        log.debug("fiber: the descriptor of a pipe could not be sent: %s", error)
        return False
    return True


def _abstract(name: bytes) -> bytes:
    """Address of a socket that has no file, and is gone with its process."""
    return b"\0fiber-" + name.hex().encode()
