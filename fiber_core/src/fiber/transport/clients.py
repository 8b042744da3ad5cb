"""The connections of a process for calls to others, one for each address."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fiber.exceptions import PeerLostError
from fiber.transport.client import Client


class Clients:
    """Makes them on first use; those that are lost make room for new ones.

    Args:
        connect: makes the connection to a URL.
    """

    def __init__(self, connect: Callable[[str], Client]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._clients: dict[str, Client] = {}
        self._closed = False

    def get(self, url: str) -> Client:
        """The connection to a URL.

        Raises:
            TransportError: nobody listens there.
            PeerLostError: this process is ending.
        """
        with self._lock:
            if self._closed:
                msg = f"this process is ending and connects to {url} no more"
                raise PeerLostError(msg)
            for lost in [one for one in self._clients.values() if one.lost]:
                del self._clients[lost.url]
                lost.close()
            client = self._clients.get(url)
            if client is None:
                client = self._clients[url] = self._connect(url)
            return client

    def close(self) -> None:
        """Close them all. Idempotent."""
        with self._lock:
            self._closed = True
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()
