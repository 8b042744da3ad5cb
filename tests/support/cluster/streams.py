"""Exec, attach and port-forward over WebSocket."""

from __future__ import annotations

import attrs
from aiohttp import web

from .authority import User
from .kubelet import Kubelet
from .refusals import Refused
from .requests import Asked
from .store import Object

__all__ = ["Streams"]


@attrs.define
class Streams:
    """Joins a WebSocket to a process or a port of a pod."""

    kubelet: Kubelet

    async def answer(
        self, request: web.Request, asked: Asked, pod: Object, user: User
    ) -> web.StreamResponse:
        """Serve the stream until it ends."""
        message = "Upgrade request required"
        raise Refused.bad_request(message)
