"""The connections of a process for calls to others, one for each address."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable

from fiber._wire.client import Client
from fiber.exceptions import PeerLostError


class Clients:
    """Makes them on first use; those that are lost make room for new ones.

    One thread dials an address, and holds up nobody who dials another: a host that does not answer
    costs only those who ask for it.

    Args:
        connect: makes the connection to an address.
        way: what is dialled in place of an address; raises TransportError where nothing can be.
    """

    def __init__(
        self, connect: Callable[[str], Client], way: Callable[[str], str] = lambda url: url
    ) -> None:
        self._connect = connect
        self._way = way
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        # as long as somebody dials
        self._dialling: weakref.WeakValueDictionary[str, threading.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._closed = False

    def get(self, address: str) -> Client:
        """The connection to an address.

        Raises:
            TransportError: nobody listens there.
            PeerLostError: this process is ending.
        """
        address = self._way(address)
        found = self._found(address)
        if found is not None:
            return found
        with self._lock:
            dialling = self._dialling.setdefault(address, threading.Lock())
        with dialling:
            found = self._found(address)
            if found is None:
                self._refuse_if_closed(address)
                found = self._connect(address)
                for client in self._keep(address, found):
                    client.close()
                self._refuse_if_closed(address)
        return found

    def release(self, addresses: Iterable[str]) -> list[Client]:
        """Those of some addresses, which are used no more and are the caller's to close."""
        with self._lock:
            found = (self._clients.pop(address, None) for address in addresses)
            return [client for client in found if client is not None]

    def close(self) -> None:
        """Close them all. Idempotent."""
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()

    def _found(self, address: str) -> Client | None:
        client = self._clients.get(address)
        return None if client is None or client.lost else client

    def _keep(self, address: str, made: Client) -> list[Client]:
        """Remember a new connection; those that are to be closed now, itself where it is too late."""
        with self._lock:
            if self._closed:
                return [made]
            lost = [key for key, client in self._clients.items() if client.lost]
            closing = [self._clients.pop(key) for key in lost]
            self._clients[address] = made
            return closing

    def _refuse_if_closed(self, address: str) -> None:
        if self._closed:
            msg = f"this process is ending and connects to {address} no more"
            raise PeerLostError(msg)
