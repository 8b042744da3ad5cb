"""Routes: addresses that are reached through the tunnel, and the ports on loopback that lead to them.

``tunnel+tls+tcp://IDENT@HOST:PORT``: in the job of process IDENT, or in the program itself, at HOST:PORT as
seen from there.
"""

from __future__ import annotations

import functools
import re
import socket
import threading
from collections.abc import Callable

from fiber._base import values
from fiber._base.sockets import accept_on
from fiber._base.threads import Reactor
from fiber.exceptions import TransportError, WireError
from fiber.model.timing import Timing

_PARTS = r"tunnel\+(tls\+tcp|tcp)://([0-9A-Za-z.]+)@(\[[0-9a-fA-F:.%]+\]|[^\[\]:@/\s]+):(\d+)"
_ANYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - compared
_LAST_PORT = 65535


@values.frozen
class Route:
    """Address of a listener at the other end of a tunnel."""

    #: scheme of the listener
    scheme: str
    #: identity of the process that listens
    ident: str
    #: host there, without brackets
    host: str
    port: int

    @property
    def job(self) -> str:
        """Identity of the job that the process is of."""
        return self.ident.partition(".")[0]

    @property
    def place(self) -> str:
        """Host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def direct(self) -> str:
        """What is dialled where the listener is."""
        return f"{self.scheme}://{self.place}"

    def __str__(self) -> str:
        return f"tunnel+{self.scheme}://{self.ident}@{self.place}"


def route_to(url: str, ident: str) -> str | None:
    """The route to what a process listens on; None where it is no port."""
    scheme, _, rest = url.partition("://")
    host, _, port = rest.rpartition(":")
    return str(parse(f"tunnel+{scheme}://{ident}@{_ANYWHERE.get(host, host)}:{port}") or "") or None


def parse(url: str) -> Route | None:
    """The parts of a route; None for any other URL."""
    match = re.fullmatch(_PARTS, url)
    if match is None or int(match[4]) > _LAST_PORT:
        return None
    return Route(match[1], match[2], match[3].strip("[]"), int(match[4]))


_LOOPBACK = "127.0.0.1"
_BACKLOG = 512


class Ports:
    """Ports are opened from any thread, and accepted from once there is a reactor.

    Args:
        on_connection: called on the reactor's thread with a connection and where it is to go.
    """

    def __init__(self, on_connection: Callable[[Route, socket.socket], None]) -> None:
        self._on_connection = on_connection
        self._lock = threading.Lock()
        self._urls: dict[Route, str] = {}
        self._listeners: list[tuple[Route, socket.socket]] = []
        self._reactor: Reactor | None = None
        self._closed = False

    def resolve(self, route: Route) -> str:
        """What is dialled on this host in place of a route.

        Raises:
            TransportError: this process is ending, or has no descriptors left.
        """
        with self._lock:
            found = self._urls.get(route)
            if found is None:
                if self._closed:
                    msg = f"this process is ending and connects to {route} no more"
                    raise TransportError(msg)
                try:
                    listener = socket.create_server((_LOOPBACK, 0), backlog=_BACKLOG)
                except OSError as error:
                    msg = f"no port of this host for {route} can be had: {error}"
                    raise TransportError(msg) from error
                listener.setblocking(False)
                port = listener.getsockname()[1]
                found = self._urls[route] = f"{route.scheme}://{_LOOPBACK}:{port}"
                self._listeners.append((route, listener))
                if self._reactor is not None:
                    self._accept_on(self._reactor, route, listener)
            return found

    def forget(self, job: str) -> None:
        """A job has ended: listen for it no more; on the reactor's thread."""
        with self._lock:
            for route in [route for route in self._urls if route.job == job]:
                del self._urls[route]
            gone = [one for one in self._listeners if one[0].job == job]
            self._listeners = [one for one in self._listeners if one[0].job != job]
        for _, listener in gone:
            if self._reactor is not None:
                self._reactor.watch(listener.fileno(), None, None)
            listener.close()

    def serve(self, reactor: Reactor) -> None:
        """Accept from now on."""
        with self._lock:
            self._reactor = reactor
            for route, listener in self._listeners:
                self._accept_on(reactor, route, listener)

    def close(self) -> None:
        """Listen no more; on the reactor's thread, or once that has ended."""
        with self._lock:
            self._closed = True
            for _, listener in self._listeners:
                if self._reactor is not None:
                    self._reactor.watch(listener.fileno(), None, None)
                listener.close()
            self._listeners.clear()
            self._urls.clear()

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptors."""
        for _, listener in self._listeners:
            listener.close()

    def _accept_on(self, reactor: Reactor, route: Route, listener: socket.socket) -> None:
        accepted = functools.partial(self._accepted, route)
        pause = Timing().accept_pause
        reactor.call_soon(lambda: accept_on(reactor, listener, accepted, pause=pause))

    def _accepted(self, route: Route, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._on_connection(route, connection)


def connect(host: str, port: int) -> socket.socket:
    """A connection to a listener of this host that is being made; what is wrong shows when used.

    Raises:
        WireError: that is no address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        made.connect_ex((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        msg = f"{host}:{port} is no address of this host: {error}"
        raise WireError(msg) from error
    return made
