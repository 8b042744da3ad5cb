"""Logs over HTTP; exec and port-forward over WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import struct
from typing import Any

import attrs
from aiohttp import WSMsgType, web

from .hollow import LogQuery
from .kubelet import Box, Kubelet
from .objects import Object, Refused
from .real import EngineError

__all__ = ["Streams"]

_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_ERROR, _RESIZE, _CLOSE = 3, 4, 255
_PIECE = 32768


@attrs.define
class Streams:
    """Joins a request to a log, a process or a port of a pod."""

    kubelet: Kubelet

    async def log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """The log, whole or as it comes."""
        query = request.query
        name = _which_container(pod, query.get("container"))
        node = pod["spec"].get("nodeName")
        if not node:
            return web.Response(status=204)
        if self.kubelet.is_lost(node):
            host = self.kubelet.host_ip(node)
            text = f'Get "https://{host}:10250/containerLogs": dial tcp {host}:10250: connect: connection refused'
            raise Refused(500, "", text)
        box = self._box(pod, name)
        if box is None or box.handle is None:
            if box is not None and box.exit_code is not None:
                # it was never started, and so wrote nothing
                return web.Response(text="")
            waiting = {} if box is None else box.state.get("waiting", {})
            reason = waiting.get("reason", "ContainerCreating")
            if reason == "ErrImagePull":
                reason = "image can't be pulled"
            where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
            raise Refused.bad_request(f"{where} is waiting to start: {reason}")
        since = None
        if "sinceTime" in query:
            since = dt.datetime.fromisoformat(query["sinceTime"].replace("Z", "+00:00")).timestamp()
        wanted = LogQuery(
            follow=query.get("follow") == "true",
            tail=int(query["tailLines"]) if "tailLines" in query else None,
            since=since,
            timestamps=query.get("timestamps") == "true",
        )
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        # whoever followed it may go meanwhile
        with contextlib.suppress(ConnectionError):
            async for text in box.handle.logs(wanted):
                await response.write(text)
            await response.write_eof()
        return response

    async def serve(self, request: web.Request, pod: Object, part: str) -> web.StreamResponse:
        """Serve exec or a port-forward until it ends."""
        name = _which_container(pod, request.query.get("container"))
        box = self._box(pod, name)
        if box is None or not box.is_running:
            text = f'container not found ("{name}")'
            if part == "portforward":
                phase = pod["status"].get("phase")
                text = f"unable to forward port because pod is not running. Current status={phase}"
            return web.Response(status=500, text=text)
        protocols = (_V5, _V4) if part == "exec" else (_V4,)
        socket = web.WebSocketResponse(protocols=protocols, max_msg_size=0)
        await socket.prepare(request)
        if part == "exec":
            await _Exec(socket, request.query).lead(box.handle)
        else:
            await _Forward(socket, int(request.query["ports"]), pod).lead(box.handle)
        return socket

    def _box(self, pod: Object, name: str) -> Box | None:
        worker = self.kubelet.worker(pod)
        boxes = () if worker is None else worker.boxes
        return next((box for box in boxes if box.name == name), None)


def _which_container(pod: Object, name: str | None) -> str:
    """The container that is meant."""
    meta = pod["metadata"]
    names = [item["name"] for item in pod["spec"]["containers"]]
    if name is None and len(names) == 1:
        return str(names[0])
    if name is None:
        told = " ".join(names)
        message = (
            f"a container name must be specified for pod {meta['name']}, choose one of: [{told}]"
        )
        raise Refused.bad_request(message)
    if name not in names:
        raise Refused.bad_request(f"container {name} is not valid for pod {meta['name']}")
    return name


async def _until_one_ends(*works: Any) -> list[asyncio.Future[Any]]:
    """Run coroutines until the first has ended, cancel the others; the answer is all of them."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionError):
            raise error
    return tasks


class _Exec:
    """A process in a container."""

    def __init__(self, socket: web.WebSocketResponse, query: Any) -> None:
        self._socket = socket
        self._argv = query.getall("command")
        self._is_on = {
            name: query.get(name) == "true" for name in ("stdin", "stdout", "stderr", "tty")
        }

    async def lead(self, handle: Any) -> None:
        """Start it, and carry both ways until it has ended."""
        on = self._is_on
        try:
            await self._socket.send_bytes(b"\1")
            session = await handle.exec(self._argv, stdin=on["stdin"], tty=on["tty"])
        except EngineError as error:
            await self._finish(_internal(error.message))
            return
        try:
            says, _ = await _until_one_ends(self._say(session), self._hear(session))
            if not says.cancelled() and says.exception() is None:
                with contextlib.suppress(ConnectionError):
                    await self._finish(says.result())
        finally:
            await session.close()

    async def _say(self, session: Any) -> Object:
        wanted = {1: self._is_on["stdout"], 2: self._is_on["stderr"]}
        try:
            while (piece := await session.read()) is not None:
                channel, data = piece
                for start in range(0, len(data), _PIECE) if wanted[channel] else ():
                    await self._socket.send_bytes(bytes([channel]) + data[start : start + _PIECE])
        except EngineError as error:
            return _internal(error.message)
        code = await session.code()
        if code == 0:
            return {"metadata": {}, "status": "Success"}
        why = f"command terminated with exit code {code}"
        return {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: {why}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }

    async def _hear(self, session: Any) -> None:
        """Carry what the client says; it ends when the client has gone."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            channel, rest = message.data[0], message.data[1:]
            if channel == 0 and self._is_on["stdin"]:
                with contextlib.suppress(OSError):
                    await session.write(rest)
            elif channel == _RESIZE:
                told = json.loads(rest)
                await session.resize(told["Width"], told["Height"])
            elif channel == _CLOSE and self._socket.ws_protocol == _V5 and rest[:1] == b"\0":
                await session.end_input()

    async def _finish(self, status: Object) -> None:
        await self._socket.send_bytes(bytes([_ERROR]) + json.dumps(status).encode())
        await self._socket.close()


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


class _Forward:
    """A port of a pod: data on channel 0, errors on channel 1."""

    def __init__(self, socket: web.WebSocketResponse, port: int, pod: Object) -> None:
        self._socket, self._port, self._pod = socket, port, pod

    async def lead(self, handle: Any) -> None:
        """Carry both ways until one side ends."""
        with contextlib.suppress(ConnectionError):
            for channel in (0, 1):
                await self._socket.send_bytes(bytes([channel]) + struct.pack("<H", self._port))
            try:
                reader, writer = await handle.dial(self._port)
            except OSError as error:
                await self._refuse(error)
                return
            try:
                await _until_one_ends(self._say(reader), self._hear(writer))
            finally:
                writer.close()
            await self._socket.close()

    async def _say(self, reader: Any) -> None:
        while data := await reader.read(_PIECE):
            await self._socket.send_bytes(b"\0" + data)

    async def _hear(self, writer: Any) -> None:
        async for message in self._socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data[1:])
                await writer.drain()

    async def _refuse(self, error: OSError) -> None:
        port = self._port
        text = (
            f"error forwarding port {port} to pod {self._pod['metadata']['uid']}, uid : failed to "
            f"execute portforward in network namespace: failed to connect to localhost:{port} "
            f"inside namespace: dial tcp4 127.0.0.1:{port}: connect: {str(error).lower()}"
        )
        await self._socket.send_bytes(b"\1" + text.encode())
        await self._socket.close()
