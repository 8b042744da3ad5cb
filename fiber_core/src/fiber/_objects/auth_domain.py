"""Realms: how processes of different runs reach each other's objects, who share an authkey alone.

A realm is whoever knows one authkey. Of it they derive credentials, and so recognise each other; its
name is derived from it too, and tells nobody the key. A process that takes part listens for its
realm at addresses of their own, beside the endpoint of its run, and serves there no other objects
than those that it has told somebody in the realm. Where it listens is written ``name@url``, so that
whoever dials knows with which credentials, and its identity there names its run besides.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterable
from multiprocessing import AuthenticationError, current_process
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._objects import addresses as places
from fiber._wire.client import Client, Clients
from fiber._wire.endpoint import Endpoint, Service
from fiber._wire.identity import Credentials
from fiber.exceptions import PeerLostError
from fiber.model import ListenAddress

if TYPE_CHECKING:
    from fiber._objects.address import Address
    from fiber._runtime.runtime import Runtime
    from fiber._wire.handshake import Hello

_PLACE = re.compile(r"([0-9a-f]{16})@(.*)", re.DOTALL)


class Realm:
    """What this process has to do with one authkey."""

    def __init__(self, credentials: Credentials) -> None:
        self.name = credentials.run_id
        self.credentials = credentials
        self.endpoints: list[Endpoint] = []
        #: own objects that somebody in the realm was told of
        self.served: dict[int, Service] = {}
        #: what others of the realm have listened on, by which we see where they may reach us
        self.neighbours: list[str] = []

    def place(self, url: str) -> str:
        """How a URL is written for whoever is not told the realm."""
        return f"{self.name}@{url}"

    def met(self, url: str) -> None:
        """Note where one of the realm listens."""
        if url not in self.neighbours:
            self.neighbours.append(url)


class Realms:
    """The realms of this process."""

    def __init__(self, node: Runtime) -> None:
        self._node = node
        #: identity of this process among processes of any run
        self.ident = f"{node.ident}@{node.run_id}"
        self._lock = threading.RLock()
        self._known: dict[str, Realm] = {}
        self._endpoints: list[Endpoint] = []
        self._resting: list[Endpoint] = []
        self._clients = Clients(self._connect)
        self._closed = False

    # -- which there are

    def of(self, authkey: bytes) -> Realm:
        """The realm of an authkey.

        Raises:
            ValueError: it is empty.
        """
        return self.learn(Credentials.of_authkey(authkey))

    def learn(self, credentials: Credentials, neighbours: Iterable[str] = ()) -> Realm:
        """The realm with these credentials."""
        with self._lock:
            realm = self._known.setdefault(credentials.run_id, Realm(credentials))
            for url in neighbours:
                realm.met(url)
            return realm

    def get(self, name: str) -> Realm:
        """The realm of a name.

        Raises:
            AuthenticationError: it is of an authkey that this process was never told.
        """
        realm = self._known.get(name)
        if realm is None:
            realm = self.of(current_process().authkey)
        if realm.name != name:
            msg = (
                "this object belongs to a program with another authkey; set "
                "current_process().authkey to that one before it is unpickled here"
            )
            raise AuthenticationError(msg)
        return realm

    def introduce(self, address: Address, name: str) -> Introduced:
        """An address for processes of this run that may not know its realm."""
        realm = self.get(name)
        return Introduced(address, realm.credentials, tuple(realm.neighbours))

    # -- own objects, and where they are served

    def serve(self, name: str, target: int, service: Service) -> tuple[str, ...]:
        """Have an object answer the peers of a realm; where they dial, which may be nowhere yet."""
        realm = self.get(name)
        with self._lock:
            realm.served[target] = service
            if not realm.endpoints:
                for url in places.near(realm.neighbours, self._node):
                    self.open(realm, url)
            for endpoint in realm.endpoints:
                endpoint.serve(target, service)
            urls = [url for endpoint in realm.endpoints for url in endpoint.urls]
        found = [one for url in urls for one in places.reachable(url)]
        found += [way for url in urls if (way := self._node.router.through_hub(url)) is not None]
        return tuple(map(realm.place, found))

    def withdraw(self, target: int) -> None:
        """An object is there no more."""
        with self._lock:
            for realm in self._known.values():
                if realm.served.pop(target, None) is not None:
                    for endpoint in realm.endpoints:
                        endpoint.withdraw(target)

    def open(self, realm: Realm | None, url: str) -> Endpoint:
        """Listen at one more address; for this run where there is no realm.

        Raises:
            TransportError: the address cannot be bound.
        """
        node = self._node
        credentials, hello = self._who(realm)
        with self._lock:
            if self._closed:
                msg = "this process is ending and listens no more"
                raise PeerLostError(msg)
            endpoint = Endpoint(credentials, hello, node.reactor, max_frame=node.config.max_frame)
            endpoint.realm = None if realm is None else realm.name
            try:
                bound = endpoint.listen(ListenAddress(bind_url=url))
            except BaseException:
                endpoint.close()
                raise
            self._endpoints.append(endpoint)
            if realm is not None:
                realm.endpoints.append(endpoint)
                realm.met(bound)
                for target, service in realm.served.items():
                    endpoint.serve(target, service)
        return endpoint

    def rest(self, endpoint: Endpoint) -> None:
        """Nobody is let in any more, and those who are in keep it open."""
        with self._lock:
            self._resting.append(endpoint)

    def wake(self, realm: Realm | None, url: str) -> Endpoint | None:
        """The endpoint of an address that is free but for those who came in before."""
        name = None if realm is None else realm.name
        with self._lock:
            for endpoint in self._resting:
                if endpoint.realm == name and url in endpoint.urls:
                    self._resting.remove(endpoint)
                    return endpoint
        return None

    def shut(self, endpoint: Endpoint) -> None:
        """Listen there no more, and cut off whoever came by it; idempotent."""
        with self._lock:
            known = [realm.endpoints for realm in self._known.values()]
            for endpoints in (self._endpoints, self._resting, *known):
                with contextlib.suppress(ValueError):
                    endpoints.remove(endpoint)
        for url in endpoint.urls:
            self._node.router.withdraw(url)
        endpoint.close()

    # -- others

    def client(self, place: str) -> Client:
        """The connection to a place, made on first use.

        Raises:
            TransportError: nobody listens there, or what does is not of that realm.
            AuthenticationError: the realm is of an authkey that this process was never told.
        """
        return self._clients.get(place)

    def _connect(self, place: str) -> Client:
        match = _PLACE.fullmatch(place)
        assert match is not None, place
        return self.dial(self.get(match[1]), match[2])

    def dial(self, realm: Realm | None, url: str) -> Client:
        """A new connection; for this run where there is no realm.

        Raises:
            TransportError: nobody listens there, or what does is not of that realm.
        """
        node = self._node
        credentials, hello = self._who(realm)
        way = node.router.way(url)
        if way.startswith("tls+"):
            credentials = credentials.with_certificate()
        client = Client(way, credentials, hello, node.reactor, max_frame=node.config.max_frame)
        if realm is not None:
            realm.met(url)
        return client

    def _who(self, realm: Realm | None) -> tuple[Credentials, Hello]:
        hello = self._node.hello
        if realm is None:
            # that which its endpoint made, if any, is not known to all processes of the run
            return self._node.credentials.derived(), hello
        return realm.credentials, values.evolve(hello, ident=self.ident)

    def release(self, places: Iterable[str]) -> list[Client]:
        """The connections to one process, which are used no more and are the caller's to close."""
        return self._clients.release(places)

    def close(self) -> None:
        """Close every connection and listen nowhere. Idempotent."""
        with self._lock:
            self._closed = True
        self._clients.close()
        for endpoint in list(self._endpoints):
            self.shut(endpoint)


@values.frozen
class Introduced:
    """An address with its realm's credentials, for the private ways of a run."""

    address: Address
    credentials: Credentials
    neighbours: tuple[str, ...]

    def __reduce__(self) -> Any:
        return introduced, (self.address, self.credentials.to_json(), self.neighbours)


def introduced(address: Address, credentials: dict[str, Any], neighbours: Iterable[str]) -> Address:
    """Take an address with its realm's credentials."""
    from fiber._objects import store  # it imports this module

    store.current().realms.learn(Credentials.from_json(credentials), neighbours)
    return address
