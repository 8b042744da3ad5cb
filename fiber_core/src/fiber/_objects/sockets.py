"""Sockets of the program as arguments and in queues: their descriptors, for processes of this host.

The receiver has a socket of its own for the same connection, as in ``multiprocessing``. Until it has, the
sender keeps a copy open, so that the program may close its socket once it was sent.
"""

from __future__ import annotations

import os
import socket
import weakref
from typing import TYPE_CHECKING, Any

from fiber._objects import protocol, store
from fiber._objects.address import Address, Kind
from fiber._objects.handle import issue
from fiber._objects.owned_object import OwnedObject
from fiber._objects.pipe import packets
from fiber._objects.pipe.end import Fetching
from fiber._objects.protocol import Op
from fiber._objects.references import ANY
from fiber._wire import codec
from fiber._wire.codec import MessageEnvelope
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message

if TYPE_CHECKING:
    from fiber._objects.owner_connection import Owner
    from fiber._objects.store import Store

# what was made for the sockets of a pickle, by their ids: a pickle may be begun twice
_made: weakref.WeakKeyDictionary[Any, dict[int, tuple[Address, int]]] = weakref.WeakKeyDictionary()


class SharedSocket(OwnedObject):
    """Copy of a socket's descriptor, open for as long as somebody is to have one.

    Args:
        process: store of this process.
        descriptor: the copy, closed at the end.
    """

    def __init__(self, process: Store, descriptor: int) -> None:
        super().__init__(process, Kind.DESCRIPTOR)
        self._descriptor = descriptor

    def copy(self) -> int:
        """A new descriptor, which the caller closes."""
        return os.dup(self._descriptor)

    def is_drained(self) -> bool:
        """True where no other process will load it."""
        with self.lock:
            return not self._references.is_arriving(0)

    def _review(self) -> None:
        super()._review()
        # it may be what the exit of this process waits for
        self._store.drained()

    def _on_end_closed(self, end: int) -> None:
        os.close(self._descriptor)

    def _on_request(self, peer: Peer, message: Message, op: int) -> None:
        if op != Op.FETCH:
            super()._on_request(peer, message, op)
            return
        _, reference_id, name, token = protocol.read(protocol.FETCH, message.body)
        is_sent = self._store.is_near(peer) and packets.send_descriptors(
            [self._descriptor], name, token
        )
        peer.send(Frame.REPLY, self.target, message.id, [protocol.FETCHED.pack(is_sent)])
        self._references.use(reference_id)
        self._review()


class _Fetching(Fetching):
    """The way of a descriptor from the process that sent it to this one."""

    def _take(self, answer: memoryview) -> Any:
        (was_sent,) = protocol.read(protocol.FETCHED, answer)
        if not was_sent:
            msg = (
                "a socket that was sent cannot be had here: its process is of another host or network "
                "namespace; connect to its address, or use fiber.Pipe"
            )
            raise OSError(msg)
        return self._inbox.take(self._count)[0]


def fetched(process: Store, owner: Owner, address: Address, reference_id: int) -> SharedSocket:
    """The copy of another process's socket that a pickle stands for.

    Raises:
        PeerLostError: its process ended before.
        OSError: there is no descriptor left for it, or it cannot be had on this host.
    """
    found: Any = _Fetching(process, owner, address.target, reference_id, 1).found()
    return SharedSocket(process, found)


def reduce(sock: socket.socket) -> Any:
    """Pickle of a socket in what Fiber carries between processes; nowhere else it has one.

    Raises:
        TypeError: its receiver may be on another host, or it is no process of this run.
    """
    envelope = codec.envelope()
    msg = f"cannot pickle {type(sock).__name__!r} object"
    if envelope is None:
        raise TypeError(msg)
    process = store.current()
    if getattr(envelope, "auth_domain", None) is not None or not process.has_descriptors:
        msg = (
            f"{msg}: its receiver may be on another host, or is no process of this run; connect there "
            "to the socket's address, or use fiber.Pipe"
        )
        raise TypeError(msg)
    made = _made.setdefault(envelope, {})
    if id(sock) not in made:
        made[id(sock)] = _lent(SharedSocket(process, os.dup(sock.fileno())), envelope)
    kinds = int(sock.family), int(sock.type), sock.proto
    return _load, (*made[id(sock)], *kinds, sock.gettimeout())


def _lent(shared: SharedSocket, envelope: Any) -> tuple[Address, int]:
    """Address and reference for a pickle in an envelope."""
    address = shared.address
    if isinstance(envelope, MessageEnvelope):
        reference_id = issue(shared, 0, envelope.uses)
        parts = address.ident, address.urls, address.target, reference_id
        envelope.references[reference_id] = parts
    else:
        reference_id = issue(shared, 0, getattr(envelope, "processes", ANY))
        void = weakref.finalize(envelope, shared.void, reference_id)
        void.atexit = False
        envelope.on_release(void)
    return address, reference_id


def _load(
    address: Address, reference_id: int, family: int, kind: int, proto: int, timeout: float | None
) -> socket.socket:
    shared: Any = store.current().hold(address, 0, reference_id)
    try:
        found = socket.socket(family, kind, proto, fileno=shared.copy())
    finally:
        shared.drop(0)
    found.settimeout(timeout)
    return found
