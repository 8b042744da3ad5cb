"""Routes: addresses that are reached through the tunnel; pure.

``tunnel+tls+tcp://IDENT@HOST:PORT``: in the job of process IDENT, or in the program itself, at HOST:PORT as
seen from there.
"""

from __future__ import annotations

import re

from fiber._base import values

__all__ = ["Route", "is_route", "parse", "route_to"]

#: in front of a URL, maybe behind the name of an auth domain
_ROUTE = r"(?:[0-9a-f]{16}@)?tunnel\+"
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


def is_route(url: str) -> bool:
    """True for an address that is reached through the tunnel alone."""
    return re.match(_ROUTE, url) is not None
