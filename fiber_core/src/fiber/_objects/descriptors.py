"""Descriptors and sockets of the program as arguments and in queues, for processes of this host.

The receiver has a descriptor of its own for the same open file or connection, as in ``multiprocessing``.
Until it has, the sender keeps a copy open, so that the program may close its own once it was sent.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._objects import protocol, store
from fiber._objects.address import Address, Kind
from fiber._objects.handle import issue_for_message, issue_until_released
from fiber._objects.owned_object import OwnedObject
from fiber._objects.pipe import packets
from fiber._objects.pipe.end import Fetching
from fiber._objects.protocol import Op
from fiber._wire import codec
from fiber._wire.codec import MessageEnvelope
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message

if TYPE_CHECKING:
    from fiber._objects.remote_object import Owner
    from fiber._objects.store import Store

# what was made for the objects of a pickle, by their ids, since a pickle may be begun twice, and the
# objects, so that no other one gets the id
_made: weakref.WeakKeyDictionary[Any, dict[int, tuple[Any, Address, int]]]
_made = weakref.WeakKeyDictionary()


class SharedDescriptor(OwnedObject):
    """Copy of a descriptor, open for as long as somebody is to have one.

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
                "a descriptor that was sent cannot be had here: its process is of another host or network "
                "namespace; send the address or path that it is open for, or use fiber.Pipe"
            )
            raise OSError(msg)
        return self._inbox.take(self._count)[0]


def fetched(process: Store, owner: Owner, address: Address, reference_id: int) -> SharedDescriptor:
    """The copy of another process's descriptor that a pickle stands for.

    Raises:
        PeerLostError: its process ended before.
        OSError: there is no descriptor left for it, or it cannot be had on this host.
    """
    found: Any = _Fetching(process, owner, address.target, reference_id, 1).found()
    return SharedDescriptor(process, found)


def reduce_socket(sock: socket.socket) -> Any:
    """Pickle of a socket in what Fiber carries between processes; nowhere else it has one.

    Raises:
        TypeError: its receiver may be on another host, or it is no process of this run.
    """
    lent = _lent(sock, sock.fileno(), "the socket's address, and connect to it there")
    kinds = int(sock.family), int(sock.type), sock.proto
    return _load_socket, (*lent, *kinds, sock.gettimeout())


def reduce_copy(copy: Any, descriptor: int, load: Callable[[int], Any]) -> Any:
    """Pickle of an object that stands for an open descriptor, in what Fiber carries between processes.

    Args:
        copy: the object.
        descriptor: its descriptor.
        load: makes the receiver's object of a new descriptor, which is that object's.

    Raises:
        TypeError: its receiver may be on another host, or it is no process of this run.
    """
    lent = _lent(copy, descriptor, "the path or address that the descriptor is open for")
    return _load_copy, (*lent, load)


def _lent(original: Any, descriptor: int, otherwise: str) -> tuple[Address, int]:
    """Address and reference for a pickle of an object that has a descriptor.

    Raises:
        TypeError: see above; it says what can be sent otherwise.
    """
    envelope = codec.envelope()
    msg = f"cannot pickle {type(original).__name__!r} object"
    if envelope is None:
        raise TypeError(msg)
    process = store.current()
    if getattr(envelope, "auth_domain", None) is not None or not process.has_descriptors:
        msg = (
            f"{msg}: its receiver may be on another host, or is no process of this run; send {otherwise}, "
            "or use fiber.Pipe"
        )
        raise TypeError(msg)
    made = _made.setdefault(envelope, {})
    is_message = isinstance(envelope, MessageEnvelope)
    if id(original) not in made or (is_message and id(original) not in envelope.references):
        shared = SharedDescriptor(process, os.dup(descriptor))
        reference_id = (
            issue_for_message(original, shared, 0, envelope)
            if is_message
            else issue_until_released(shared, 0, envelope)
        )
        made[id(original)] = original, shared.address, reference_id
    return made[id(original)][1:]


def _load_socket(
    address: Address, reference_id: int, family: int, kind: int, proto: int, timeout: float | None
) -> socket.socket:
    found = socket.socket(family, kind, proto, fileno=_load(address, reference_id))
    found.settimeout(timeout)
    return found


def _load_copy(address: Address, reference_id: int, load: Callable[[int], Any]) -> Any:
    return load(_load(address, reference_id))


def _load(address: Address, reference_id: int) -> int:
    """A new descriptor for the open file of the one that a pickle stands for."""
    shared: Any = store.current().hold(address, 0, reference_id)
    try:
        descriptor: int = shared.copy()
    finally:
        shared.drop(0)
    return descriptor
