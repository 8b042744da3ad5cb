"""Port-forward over WebSocket: two channels a port, data and errors."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from typing import Any

from aiohttp import WSMsgType, web

from .refusals import Refused
from .requests import Asked
from .runtime import Running
from .store import Object

__all__ = ["forward"]

_PROTOCOLS = ("v4.channel.k8s.io", "v4.base64.channel.k8s.io", "portforward.k8s.io")
_PIECE = 65536


async def forward(
    request: web.Request, asked: Asked, pod: Object, handle: Running | None
) -> web.StreamResponse:
    """Join the ports that are asked for to the client, until all are done."""
    ports = [int(port) for text in request.query.getall("ports", []) for port in text.split(",")]
    if not ports:
        message = 'query parameter "port" or "ports" is required'
        raise Refused.bad_request(message)
    if handle is None:
        message = f"unable to forward port because pod is not running. Current status={pod['status'].get('phase')}"
        return web.Response(status=500, text=message)
    socket = web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    lines = [_Line(socket, number, port) for number, port in enumerate(ports)]
    with contextlib.suppress(ConnectionError):
        for line in lines:
            await line.greet()
        work = [asyncio.ensure_future(line.run(handle, pod)) for line in lines]
        hears = asyncio.ensure_future(_hear(socket, lines))
        both = {hears, asyncio.ensure_future(_all(work))}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*both, *work):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task
            for line in lines:
                line.close()
        await socket.close()
    return socket


async def _all(work: list[asyncio.Future[None]]) -> None:
    await asyncio.gather(*work)


async def _hear(socket: web.WebSocketResponse, lines: list[_Line]) -> None:
    async for message in socket:
        if message.type is WSMsgType.BINARY and message.data:
            number = message.data[0] // 2
            if number < len(lines):
                await lines[number].write(message.data[1:])


class _Line:
    """One port."""

    def __init__(self, socket: web.WebSocketResponse, number: int, port: int) -> None:
        self._socket, self._number, self._port = socket, number, port
        self._writer: Any = None
        self._ready = asyncio.Event()

    async def greet(self) -> None:
        """Say which port the two channels are for."""
        for channel in (2 * self._number, 2 * self._number + 1):
            await self._socket.send_bytes(bytes([channel]) + struct.pack("<H", self._port))

    async def run(self, handle: Running, pod: Object) -> None:
        """Carry what the port says, until it ends."""
        reader: Any
        try:
            reader, self._writer = await handle.dial(self._port)
        except OSError as error:
            meta, port = pod["metadata"], self._port
            text = (
                f"error forwarding port {port} to pod {meta['uid']}, uid : failed to execute "
                f"portforward in network namespace: failed to connect to localhost:{port} inside "
                f"namespace: dial tcp4 127.0.0.1:{port}: connect: {str(error).lower()}"
            )
            await self._socket.send_bytes(bytes([2 * self._number + 1]) + text.encode())
            return
        finally:
            self._ready.set()
        while data := await reader.read(_PIECE):
            await self._socket.send_bytes(bytes([2 * self._number]) + data)

    async def write(self, data: bytes) -> None:
        """Carry what the client says."""
        await self._ready.wait()
        if self._writer is not None:
            with contextlib.suppress(ConnectionError):
                self._writer.write(data)
                await self._writer.drain()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
