"""Listeners that processes of other programs, or of this run, connect to with an authkey.

::

    listener = open_listener(address, family, authkey, on_connect=lambda peer: handle)
    listener.address                        # resolved: the real port
    listener.close()

    handle = connect_to(address, family, authkey)      # in the other process

``on_connect`` is called on the handler thread for each authenticated peer, and must not block. Its
value, usually a handle of a shared object, is pickled for the peer's auth domain; ``connect_to``
unpickles it, and the handle uses the same connection from then on.

Other answers to such a peer must be pickled by ``encode(value, auth_domain=peer.auth_domain)`` of
``handle``, with addresses of objects from ``address_in(peer.auth_domain)``, so that the peer can
reach them.

With None for ``authkey`` the listener is for processes of this run only, by the run's credentials.
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

from fiber._objects import listener_addresses, protocol, store
from fiber._objects.handle import encode
from fiber._objects.queue.messages import ItemWithReferences
from fiber._wire.client import Client
from fiber._wire.endpoint import Endpoint, Peer
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import HandshakeError, PeerLostError, TransportError

log = logging.getLogger("fiber")

#: target that connecting processes call
TARGET = 2**64 - 2
# the number of that call: its answer was unpickled
_RECEIVED = struct.Struct("<Q")


class AuthListener:
    """A listener; made by :func:`open_listener`."""

    def __init__(
        self,
        endpoint: Endpoint,
        address: listener_addresses.Address,
        on_connect: Callable[[Peer], Any],
        process: store.Store,
    ) -> None:
        #: its address as the stdlib writes it
        self.address = address
        self._endpoint = endpoint
        self._on_connect = on_connect
        self._store = process
        # references in answers that were not confirmed, by peer and call
        self._unconfirmed: dict[tuple[Peer, int], list[Any]] = {}
        self._lock = threading.Lock()
        self._closed = False
        endpoint.serve(TARGET, self)

    def close(self) -> None:
        """Accept no more connections; established ones stay. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if isinstance(self.address, str):
            _unlink(self.address)
        if self._endpoint.peers():
            self._store.auth_domains.park(self._endpoint)
        else:
            self._store.auth_domains.close_endpoint(self._endpoint)

    # -- the service

    def on_message(self, peer: Peer, message: Message) -> None:
        """Answer a connecting process, or take its confirmation."""
        if message.kind is not Frame.CALL:
            (number,) = protocol.read(_RECEIVED, message.body)
            self._unconfirmed.pop((peer, number), None)
            return
        if self._closed:
            peer.send(Frame.ERROR, TARGET, message.id)
            return
        item = encode(self._on_connect(peer), auth_domain=peer.auth_domain)
        if isinstance(item, ItemWithReferences):
            self._unconfirmed[peer, message.id] = item.references()
        body = item.pickled if isinstance(item, ItemWithReferences) else item
        peer.send(Frame.REPLY, TARGET, message.id, [body])

    def on_peer_lost(self, peer: Peer) -> None:
        """Drop the references in the unconfirmed answers to a lost peer."""
        for key in [key for key in self._unconfirmed if key[0] is peer]:
            self._store.void_references(self._unconfirmed.pop(key))
        if self._closed and not self._endpoint.peers():
            self._store.call_soon(
                functools.partial(self._store.auth_domains.close_endpoint, self._endpoint)
            )


def open_listener(
    address: Any, family: str | None, authkey: bytes | None, on_connect: Callable[[Peer], Any]
) -> AuthListener:
    """Listen at an address.

    Raises:
        ValueError: there is no such family; or the authkey is empty.
        TypeError: the authkey is not bytes.
        OSError: the address cannot be bound.
    """
    check_authkey(authkey)
    process = store.current()
    family = family or (listener_addresses.family_of(address) if address else None)
    if family is not None:
        listener_addresses.check_family(family)
    if not address:
        family, address = listener_addresses.any_address(family, process.node)
    assert family is not None
    url = listener_addresses.listen_url(address, family)
    auth_domain = None if authkey is None else process.auth_domains.of(authkey)
    endpoint = process.auth_domains.unpark(auth_domain, url)
    if endpoint is None:
        listener_addresses.probe(address, family)
        endpoint = process.auth_domains.open(auth_domain, url)
        if family == "AF_UNIX":
            listener_addresses.publish(endpoint, address)
    return AuthListener(
        endpoint, listener_addresses.address_of(endpoint.urls[0], family), on_connect, process
    )


def connect_to(address: Any, family: str | None, authkey: bytes | None) -> Any:
    """Connect to a listener; the value that its ``on_connect`` returned.

    Raises:
        AuthenticationError: the other side has another authkey, or is of another run.
        OSError: no listener, such as ConnectionRefusedError and FileNotFoundError.
    """
    check_authkey(authkey)
    family = family or listener_addresses.family_of(address)
    listener_addresses.check_family(family)
    process = store.current()
    url = listener_addresses.dial_url(address, family)
    auth_domain = None if authkey is None else process.auth_domains.of(authkey)
    try:
        if auth_domain is not None:
            client = process.auth_domains.client(auth_domain.qualified(url))
            # the URL that worked is dialled again, whatever URLs the process listens at
            process.add_route(client.peer.ident, auth_domain.qualified(url))
            try:
                return _request_handle(client, process)
            except PeerLostError as error:
                log.debug("fiber: %s", error)
            finally:
                process.close_client_soon(client.peer.ident, auth_domain.qualified(url))
            # the client was connected to an earlier listener of the same address
        client = process.auth_domains.dial(auth_domain, url)
        try:
            return _request_handle(client, process)
        finally:
            client.close()
    except HandshakeError as error:
        if error.proven:
            raise
        reason = "the other side has another authkey"
        if auth_domain is None:
            reason = "the other side is of another run; give both programs the same authkey"
        msg = f"{reason}: {error}"
        raise AuthenticationError(msg) from error
    except TransportError as error:
        listener_addresses.raise_system_error(
            address, family, error, timeout=process.timing.connect
        )
        msg = f"no listener accepts connections at {address!r}: {error}"
        raise ConnectionRefusedError(msg) from error


def _request_handle(client: Client, process: store.Store) -> Any:
    answer = client.call(TARGET, ())
    answer.wait()
    value = pickle.loads(answer.result())
    # unconfirmed references are dropped with the connection
    process.sync(client.peer.ident)
    client.cast(TARGET, [_RECEIVED.pack(answer.number)])
    return value


def check_authkey(authkey: Any) -> None:
    """Check an authkey.

    Raises:
        TypeError: it is not bytes.
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
