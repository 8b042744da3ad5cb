"""Doors: addresses where processes of other programs, or of this run, come in with an authkey.

Whoever serves something opens one, with what a newcomer gets; whoever wants it enters::

    door = open_door(address, family, authkey, welcome=lambda peer: handle)
    door.address                            # resolved: the real port
    door.close()

    handle = enter(address, family, authkey)

``welcome`` is called for each newcomer that has proved itself, on the handler thread, where it must
not wait; what it returns, a handle of a shared object say, is pickled for the newcomer's realm. It
is loaded there by ``enter``, and talks to the object here from then on, by the same connection.

In other answers to a peer, pickle with ``handle.encode(value, realm=peer.realm)`` and name objects
by ``shared.address_in(peer.realm)``, so that the peer can reach what is in them.

Where ``authkey`` is None the door is for processes of this run only, by the run's own credentials.
"""

from __future__ import annotations

import functools
import logging
import os
import pickle
import struct
import threading
from collections.abc import Callable
from multiprocessing import AuthenticationError
from typing import Any

from fiber._objects import addresses, protocol, store
from fiber._objects.handle import encode
from fiber._objects.queue.messages import Laden
from fiber._wire.client import Client
from fiber._wire.endpoint import Endpoint, Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import HandshakeError, PeerLostError, TransportError

log = logging.getLogger("fiber")

#: the number that newcomers call
TARGET = 2**64 - 2
# what the answer to a call of that number told has arrived
_HAS = struct.Struct("<Q")


class Door:
    """An address that is listened on; made by :func:`open_door`."""

    def __init__(
        self,
        endpoint: Endpoint,
        address: addresses.Address,
        welcome: Callable[[Peer], Any],
        own: store.Store,
    ) -> None:
        #: where it is, as the stdlib writes it
        self.address = address
        self._endpoint = endpoint
        self._welcome = welcome
        self._store = own
        # tickets of what was told and has not arrived, by newcomer and call
        self._told: dict[tuple[Peer, int], list[Any]] = {}
        self._lock = threading.Lock()
        self._closed = False
        endpoint.serve(TARGET, self)

    def close(self) -> None:
        """Let nobody in any more; those who are in go on. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if isinstance(self.address, str):
            _unlink(self.address)
        if self._endpoint.peers():
            self._store.realms.rest(self._endpoint)
        else:
            self._store.realms.shut(self._endpoint)

    # -- the service

    def on_message(self, peer: Peer, message: Message) -> None:
        """Somebody comes in, or has what was told."""
        if message.kind is not Frame.CALL:
            (number,) = protocol.read(_HAS, message.body)
            self._told.pop((peer, number), None)
            return
        if self._closed:
            peer.send(Frame.ERROR, TARGET, message.id)
            return
        item = encode(self._welcome(peer), realm=peer.realm)
        if isinstance(item, Laden):
            self._told[peer, message.id] = item.tickets()
        body = item.pickled if isinstance(item, Laden) else item
        peer.send(Frame.REPLY, TARGET, message.id, [body])

    def on_peer_lost(self, peer: Peer) -> None:
        """Somebody is gone; what was on the way does not arrive."""
        for key in [key for key in self._told if key[0] is peer]:
            self._store.void_all(self._told.pop(key))
        if self._closed and not self._endpoint.peers():
            self._store.call_soon(functools.partial(self._store.realms.shut, self._endpoint))


def open_door(
    address: Any, family: str | None, authkey: bytes | None, welcome: Callable[[Peer], Any]
) -> Door:
    """Listen at an address.

    Raises:
        ValueError: no such family; or the authkey is empty.
        TypeError: the authkey is no bytes.
        OSError: the address cannot be bound.
    """
    check_authkey(authkey)
    own = store.current()
    family = family or (addresses.family_of(address) if address else None)
    if family is not None:
        addresses.check_family(family)
    if not address:
        family, address = addresses.any_address(family, own.node)
    assert family is not None
    url = addresses.listen_url(address, family)
    realm = None if authkey is None else own.realms.of(authkey)
    endpoint = own.realms.wake(realm, url)
    if endpoint is None:
        addresses.probe(address, family)
        endpoint = own.realms.open(realm, url)
        if family == "AF_UNIX":
            addresses.publish(endpoint, address)
    return Door(endpoint, addresses.address_of(endpoint.urls[0], family), welcome, own)


def enter(address: Any, family: str | None, authkey: bytes | None) -> Any:
    """Come in at an address; what is there for us.

    Raises:
        AuthenticationError: the other side has another authkey, or is of another run.
        OSError: nobody listens there, such as ConnectionRefusedError and FileNotFoundError.
    """
    check_authkey(authkey)
    family = family or addresses.family_of(address)
    addresses.check_family(family)
    own = store.current()
    url = addresses.dial_url(address, family)
    realm = None if authkey is None else own.realms.of(authkey)
    try:
        if realm is not None:
            known = own.realms.client(realm.place(url))
            # by which it was reached it is reached again, whatever it calls itself
            own.meet(known.peer.ident, realm.place(url))
            try:
                return _knock(known, own)
            except PeerLostError as error:
                log.debug("fiber: %s", error)
            finally:
                own.part_soon(known.peer.ident, realm.place(url))
            # a connection from before the address was given up, and perhaps listened on again
        client = own.realms.dial(realm, url)
        try:
            return _knock(client, own)
        finally:
            client.close()
    except HandshakeError as error:
        if error.proven:
            raise
        who = "the other side has another authkey"
        if realm is None:
            who = "the other side is of another run; give both programs the same authkey"
        msg = f"{who}: {error}"
        raise AuthenticationError(msg) from error
    except TransportError as error:
        addresses.complain(address, family, error)
        msg = f"nobody lets us in at {address!r}: {error}"
        raise ConnectionRefusedError(msg) from error


def _knock(client: Client, own: store.Store) -> Any:
    answer = client.call(TARGET, ())
    answer.wait()
    value = pickle.loads(answer.result())
    # with the end of the connection goes what was not used of what it told
    own.sync(client.peer.ident)
    client.cast(TARGET, [_HAS.pack(answer.number)])
    return value


def check_authkey(authkey: Any) -> None:
    """Refuse what is no authkey.

    Raises:
        TypeError: it is no bytes.
        ValueError: it is empty.
    """
    if authkey is None:
        return
    if not isinstance(authkey, bytes):
        msg = "authkey should be a byte string"
        raise TypeError(msg)
    if not authkey:
        msg = "authkey is empty, which keeps nobody out; None lets in processes of this run only"
        raise ValueError(msg)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108 - as it was given
    except OSError as error:
        log.debug("fiber: %s was removed by somebody else: %s", path, error)
