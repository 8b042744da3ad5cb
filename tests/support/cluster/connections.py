"""The open connections of the API server, so that an outage can cut them."""

from __future__ import annotations

import attrs
from aiohttp import web

__all__ = ["Connections"]


@attrs.define
class Connections:
    """Cuts what is open."""

    def cut(self, server: web.Server[web.Request]) -> int:
        """Abort every connection, as a server does that is killed."""
        cut = 0
        for handler in list(server.connections):
            transport = handler.transport
            if transport is not None:
                transport.abort()
                cut += 1
        return cut
