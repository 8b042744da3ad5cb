"""Auth domains: processes of different runs that share an authkey reach each other's objects.

An auth domain is the set of processes that know one authkey. They derive a key from it and prove it to
each other by a key exchange; its name is derived too, and is told to proven processes only. A member
process listens for the domain on endpoints of their own, beside the endpoint of its run, and serves
only objects there that it has exported to the domain. The URL is written ``name@url``
(*qualified*), so that a dialler knows the credentials; the process's identity in the domain
includes its run.

Apart from ``store``, so that credentials and endpoints of other programs are in one place.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable
from multiprocessing import AuthenticationError, current_process
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._objects import listener_addresses
from fiber._wire.client import Client, ClientPool
from fiber._wire.endpoint import Endpoint, Service
from fiber._wire.handshake import Credentials
from fiber.exceptions import PeerLostError
from fiber.model import ListenAddress

if TYPE_CHECKING:
    from fiber._runtime.runtime import Runtime
    from fiber._wire.handshake import Hello

_QUALIFIED = re.compile(r"([0-9a-f]{16})@(.*)", re.DOTALL)


class AuthDomain:
    """State of this process in one auth domain."""

    def __init__(self, credentials: Credentials) -> None:
        self.name = credentials.run_id
        self.credentials = credentials
        self.endpoints: list[Endpoint] = []
        #: objects exported to the domain, by target
        self.served: dict[int, Service] = {}
        #: URLs that other members have listened on; they show on which networks to listen
        self.neighbours: list[str] = []

    def qualified(self, url: str) -> str:
        """The URL with the domain's name."""
        return f"{self.name}@{url}"

    def add_neighbour(self, url: str) -> None:
        """Note a URL that a member listens on."""
        if url not in self.neighbours:
            self.neighbours.append(url)


class AuthDomains:
    """The auth domains of this process, their endpoints and clients."""

    def __init__(self, node: Runtime) -> None:
        self._node = node
        #: identity of this process among processes of any run
        self.ident = f"{node.ident}@{node.run_id}"
        self._lock = threading.RLock()
        self._known: dict[str, AuthDomain] = {}
        self._endpoints: list[Endpoint] = []
        self._parked: list[Endpoint] = []
        self._clients = ClientPool(self._connect)
        self._closed = False

    # -- domains

    def of(self, authkey: bytes) -> AuthDomain:
        """The auth domain of an authkey.

        Raises:
            ValueError: it is empty.
        """
        return self.learn(Credentials.of_authkey(authkey))

    def learn(self, credentials: Credentials, neighbours: Iterable[str] = ()) -> AuthDomain:
        """The auth domain with these credentials; made if it is new."""
        with self._lock:
            auth_domain = self._known.setdefault(credentials.run_id, AuthDomain(credentials))
            for url in neighbours:
                auth_domain.add_neighbour(url)
            return auth_domain

    def get(self, name: str) -> AuthDomain:
        """The auth domain of a name.

        Raises:
            AuthenticationError: this process does not know its authkey.
        """
        auth_domain = self._known.get(name)
        if auth_domain is None:
            auth_domain = self.of(current_process().authkey)
        if auth_domain.name != name:
            msg = (
                "this object belongs to a program with another authkey; set "
                "current_process().authkey to that one before it is unpickled here"
            )
            raise AuthenticationError(msg)
        return auth_domain

    # -- objects of this process, and the endpoints that serve them

    def serve(self, name: str, target: int, service: Service) -> tuple[str, ...]:
        """Serve an object to an auth domain; the qualified URLs, of which there may be none yet."""
        auth_domain = self.get(name)
        with self._lock:
            auth_domain.served[target] = service
            if not auth_domain.endpoints:
                for url in listener_addresses.listen_urls_near(auth_domain.neighbours, self._node):
                    self.open(auth_domain, url)
            for endpoint in auth_domain.endpoints:
                endpoint.serve(target, service)
            urls = [url for endpoint in auth_domain.endpoints for url in endpoint.urls]
        found = [one for url in urls for one in listener_addresses.reachable(url)]
        found += [
            route for url in urls if (route := self._node.router.tunnel_route(url)) is not None
        ]
        return tuple(map(auth_domain.qualified, found))

    def withdraw(self, target: int) -> None:
        """Stop serving an object."""
        with self._lock:
            for auth_domain in self._known.values():
                if auth_domain.served.pop(target, None) is not None:
                    for endpoint in auth_domain.endpoints:
                        endpoint.withdraw(target)

    def open(self, auth_domain: AuthDomain | None, url: str) -> Endpoint:
        """Listen at one more URL, for an auth domain or, if None, for this run.

        Raises:
            TransportError: the address cannot be bound.
        """
        node = self._node
        credentials, hello = self._identity(auth_domain)
        with self._lock:
            if self._closed:
                msg = "this process is ending and listens no more"
                raise PeerLostError(msg)
            endpoint = Endpoint(
                credentials,
                hello,
                node.reactor,
                max_frame=node.config.max_frame,
                timing=node.timing,
            )
            endpoint.auth_domain = None if auth_domain is None else auth_domain.name
            try:
                bound = endpoint.listen(ListenAddress(bind_url=url))
            except BaseException:
                endpoint.close()
                raise
            self._endpoints.append(endpoint)
            if auth_domain is not None:
                auth_domain.endpoints.append(endpoint)
                auth_domain.add_neighbour(bound)
                for target, service in auth_domain.served.items():
                    endpoint.serve(target, service)
        return endpoint

    def park(self, endpoint: Endpoint) -> None:
        """Keep the endpoint of a closed listener for its connected peers."""
        with self._lock:
            self._parked.append(endpoint)

    def unpark(self, auth_domain: AuthDomain | None, url: str) -> Endpoint | None:
        """Reuse the parked endpoint of an address; None without one."""
        name = None if auth_domain is None else auth_domain.name
        with self._lock:
            for endpoint in self._parked:
                if endpoint.auth_domain == name and url in endpoint.urls:
                    self._parked.remove(endpoint)
                    return endpoint
        return None

    def close_endpoint(self, endpoint: Endpoint) -> None:
        """Close an endpoint and its connections; idempotent."""
        with self._lock:
            known = [auth_domain.endpoints for auth_domain in self._known.values()]
            for endpoints in (self._endpoints, self._parked, *known):
                with contextlib.suppress(ValueError):
                    endpoints.remove(endpoint)
        for url in endpoint.urls:
            self._node.router.withdraw(url)
        endpoint.close()

    # -- connections to other processes

    def client(self, qualified: str) -> Client:
        """Client for a qualified URL, connected on first use.

        Raises:
            TransportError: it cannot be connected, or the listener is not of that auth domain.
            AuthenticationError: this process does not know the authkey.
        """
        return self._clients.get(qualified)

    def _connect(self, qualified: str) -> Client:
        match = _QUALIFIED.fullmatch(qualified)
        assert match is not None, qualified
        return self.dial(self.get(match[1]), match[2])

    def dial(self, auth_domain: AuthDomain | None, url: str) -> Client:
        """A new connection, in an auth domain or, if None, in this run.

        Raises:
            TransportError: it cannot be connected, or the listener is not of that auth domain.
        """
        node = self._node
        credentials, hello = self._identity(auth_domain)
        client = Client(
            node.router.resolve(url),
            credentials,
            hello,
            node.reactor,
            max_frame=node.config.max_frame,
            timing=node.timing,
        )
        if auth_domain is not None:
            auth_domain.add_neighbour(url)
        return client

    def _identity(self, auth_domain: AuthDomain | None) -> tuple[Credentials, Hello]:
        hello = self._node.hello
        if auth_domain is None:
            return self._node.credentials.exchanged(), hello
        return auth_domain.credentials, values.evolve(hello, ident=self.ident)

    def release(self, urls: Iterable[str]) -> list[Client]:
        """Remove the clients of qualified URLs; the caller closes them."""
        return self._clients.release(urls)

    def close(self) -> None:
        """Close all connections and endpoints. Idempotent."""
        with self._lock:
            self._closed = True
        self._clients.close()
        for endpoint in list(self._endpoints):
            self.close_endpoint(endpoint)
