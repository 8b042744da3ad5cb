"""Exec and attach over WebSocket, in the channel protocols of the kubelet and the API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import Any

import attrs
from aiohttp import WSMsgType, web

from .authority import Authority, User
from .dockerwire import EngineError
from .forwarding import forward
from .kinds import PODS
from .kubelet import Kubelet
from .podlogs import which_container
from .refusals import Refused
from .requests import Asked
from .runtime import Running, Session
from .store import Object

__all__ = ["Streams"]

_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_PLAIN, _BASE64 = "channel.k8s.io", "base64.channel.k8s.io"
_PROTOCOLS = (_V5, _V4, _PLAIN, _BASE64)
_ERROR, _RESIZE, _CLOSE = 3, 4, 255
_PIECE = 32768


@attrs.define
class Streams:
    """Joins a WebSocket to a process or a port of a pod."""

    kubelet: Kubelet
    authority: Authority

    async def answer(
        self, request: web.Request, asked: Asked, pod: Object, user: User
    ) -> web.StreamResponse:
        """Serve the stream until it ends."""
        meta = pod["metadata"]
        if request.headers.get("Upgrade", "").lower() != "websocket":
            message = "Upgrade request required"
            raise Refused.bad_request(message)
        part = asked.subresource
        # a stream is a GET by its protocol, and a creation by what it does
        if not self.authority.allows(user, "create", "", "pods", part, asked.namespace, asked.name):
            raise Refused.forbidden(PODS, asked.name, "")
        if not pod["spec"].get("nodeName"):
            raise Refused.bad_request(f"pod {meta['name']} does not have a host assigned")
        node = pod["spec"]["nodeName"]
        if self.kubelet.lost(node):
            host = self.kubelet.host_ip(node)
            text = f"error dialing backend: dial tcp {host}:10250: connect: connection refused"
            raise Refused(500, "", text)
        worker = self.kubelet.worker(pod)
        if part == "portforward":
            box = worker.boxes[0] if worker is not None else None
            running = box is not None and box.running
            return await forward(request, asked, pod, box.handle if box and running else None)
        name = which_container(pod, asked.query.get("container"))
        box = worker.box(name) if worker is not None else None
        if box is None or not box.running:
            text = f'container not found ("{name}")'
            if part == "attach":
                text = f"container {name} not found in pod {meta['name']}_{meta['namespace']}"
            return web.Response(status=500, text=text)
        if not any(asked.flag(stream) for stream in ("stdin", "stdout", "stderr")):
            text = "you must specify at least 1 of stdin, stdout, stderr"
            return web.Response(status=400, text=text)
        offered = request.headers.get("Sec-WebSocket-Protocol", "")
        if offered and not {word.strip() for word in offered.split(",")} & set(_PROTOCOLS):
            return web.Response(status=403)
        socket = web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=0)
        await socket.prepare(request)
        await _Talk(socket, asked, request.query.getall("command", [])).lead(box.handle)
        return socket


class _Talk:
    """One exec or attach."""

    def __init__(self, socket: web.WebSocketResponse, asked: Asked, argv: list[str]) -> None:
        self._socket, self._asked, self._argv = socket, asked, argv
        self._protocol = socket.ws_protocol or ""
        self._wanted = {1: asked.flag("stdout"), 2: asked.flag("stderr")}

    async def lead(self, handle: Running) -> None:
        """Start it, and carry both ways until it has ended."""
        tty, stdin = self._asked.flag("tty"), self._asked.flag("stdin")
        try:
            await self._send(1, b"")
            if self._asked.subresource == "attach":
                session = await handle.attach(stdin=stdin)
            else:
                session = await handle.exec(self._argv, stdin=stdin, tty=tty)
        except EngineError as error:
            await self._finish(_internal(error.message))
            return
        hears = asyncio.ensure_future(self._hear(session, stdin=stdin))
        says = asyncio.ensure_future(self._say(session))
        try:
            await asyncio.wait({hears, says}, return_when=asyncio.FIRST_COMPLETED)
            if says.done():
                with contextlib.suppress(ConnectionError):
                    await self._finish(says.result())
        finally:
            for task in (hears, says):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task
            await session.close()

    async def _say(self, session: Session) -> Object:

        try:
            while (piece := await session.read()) is not None:
                channel, data = piece
                if self._wanted.get(channel):
                    for start in range(0, len(data), _PIECE):
                        await self._send(channel, data[start : start + _PIECE])
        except EngineError as error:
            return _internal(error.message)
        if self._asked.subresource == "attach":
            return {"metadata": {}, "status": "Success"}
        code = await session.code()
        return self._status(code)

    async def _hear(self, session: Session, *, stdin: bool) -> None:
        """Carry what the client says; it ends when the client has gone."""
        async for message in self._socket:
            data = _bytes(message, self._protocol)
            if not data:
                continue
            channel, rest = data[0], data[1:]
            if channel == 0 and stdin:
                with contextlib.suppress(OSError):
                    await session.write(rest)
            elif channel == _RESIZE:
                told = json.loads(rest)
                await session.resize(told["Width"], told["Height"])
            elif channel == _CLOSE and self._protocol == _V5 and rest[:1] == b"\0":
                await session.end_input()

    async def _finish(self, status: Object) -> None:
        if self._protocol in {_V5, _V4}:
            text = json.dumps(status, separators=(",", ":")).encode()
            await self._send(_ERROR, text)
        elif status["status"] != "Success":
            await self._send(_ERROR, status["message"].encode())
        await self._socket.close()

    def _status(self, code: int) -> Object:
        if code == 0:
            return {"metadata": {}, "status": "Success"}
        if self._protocol == _V5:
            why = f"command terminated with exit code {code}"
        else:
            why = f"error executing command [{' '.join(self._argv)}], exit code {code}"
        return {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: {why}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }

    async def _send(self, channel: int, data: bytes) -> None:
        if self._protocol == _BASE64:
            await self._socket.send_str(f"{channel}{base64.b64encode(data).decode()}")
        else:
            await self._socket.send_bytes(bytes([channel]) + data)


def _bytes(message: Any, protocol: str) -> bytes:
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    if message.type is not WSMsgType.TEXT or not message.data:
        return b""
    if protocol == _BASE64:
        return bytes([int(message.data[0])]) + base64.b64decode(message.data[1:])
    return bytes(message.data.encode())


def _internal(text: str) -> Object:
    why = (
        "Internal error occurred: error executing command in container: failed to exec in "
        f"container: failed to start exec {text}"
    )
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"Internal error occurred: {why}",
        "reason": "InternalError",
        "details": {"causes": [{"message": why}]},
        "code": 500,
    }
