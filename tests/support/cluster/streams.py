"""Logs over HTTP; exec and port-forward over WebSocket."""

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

_EXEC, _FORWARD = "v5.channel.k8s.io", "v4.channel.k8s.io"
_ERROR, _CLOSE = 3, 255
_PIECE = 32768


@attrs.define
class Streams:
    """Joins a request to a log, a process or a port of a pod."""

    kubelet: Kubelet

    async def log(self, request: web.Request, pod: Object) -> web.StreamResponse:
        """The log, whole or as it comes."""
        query = request.query
        name = query["container"]
        node = pod["spec"].get("nodeName")
        if not node:
            return web.Response(status=204)
        if self.kubelet.is_lost(node):
            text = f'Get "https://{node}:10250/containerLogs": dial tcp: connection refused'
            raise Refused(500, "", text)
        box = self._box(pod, name)
        if box is None or box.handle is None:
            if box is not None and box.exit_code is not None:
                # it was never started, and so wrote nothing
                return web.Response(text="")
            waiting = {} if box is None else box.state.get("waiting", {})
            reason = waiting.get("reason", "ContainerCreating")
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
        # the one that a port-forward means has no name
        name = request.query.get("container", pod["spec"]["containers"][0]["name"])
        box = self._box(pod, name)
        if box is None or not box.is_running:
            return web.Response(status=500, text=f'container not found ("{name}")')
        protocol = _EXEC if part == "exec" else _FORWARD
        socket = web.WebSocketResponse(protocols=(protocol,), max_msg_size=0)
        await socket.prepare(request)
        # the client may go meanwhile
        with contextlib.suppress(ConnectionError):
            if part == "exec":
                await _exec(socket, request.query, box.handle)
            else:
                await _forward(socket, int(request.query["ports"]), box.handle)
            await socket.close()
        return socket

    def _box(self, pod: Object, name: str) -> Box | None:
        worker = self.kubelet.worker(pod)
        boxes = () if worker is None else worker.boxes
        return next((box for box in boxes if box.name == name), None)


async def _until_one_ends(*works: Any) -> None:
    """Run coroutines until the first has ended, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _exec(socket: web.WebSocketResponse, query: Any, handle: Any) -> None:
    """A process in a container: input on channel 0, output on 1 and 2, its end on 3."""
    has_input = query.get("stdin") == "true"
    await socket.send_bytes(b"\1")
    try:
        process = await handle.exec(query.getall("command"), has_input=has_input)
    except LookupError:
        # its container has ended meanwhile, and with it all that was in it
        await socket.send_bytes(bytes([_ERROR]) + json.dumps(_ended(-9)).encode())
        return

    async def say(channel: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(_PIECE):
            await socket.send_bytes(bytes([channel]) + data)

    async def say_all() -> None:
        outputs = [(1, "stdout", process.stdout), (2, "stderr", process.stderr)]
        wanted = [say(n, reader) for n, name, reader in outputs if query.get(name) == "true"]
        await asyncio.gather(*wanted)
        await socket.send_bytes(bytes([_ERROR]) + json.dumps(_ended(await process.wait())).encode())

    async def hear() -> None:
        async for message in socket:
            if message.type is not WSMsgType.BINARY or not has_input:
                continue
            if message.data[0] == 0:
                process.stdin.write(message.data[1:])
                with contextlib.suppress(ConnectionError):
                    await process.stdin.drain()
            elif message.data == bytes([_CLOSE, 0]):
                process.stdin.close()

    try:
        await _until_one_ends(say_all(), hear())
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _ended(code: int) -> Object:
    """The Status of a program's end."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    told = str(code if code > 0 else 128 - code)
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit code {told}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": told}]},
    }


async def _forward(socket: web.WebSocketResponse, port: int, handle: Any) -> None:
    """A port of a pod: data on channel 0, errors on channel 1."""
    for channel in (0, 1):
        await socket.send_bytes(bytes([channel]) + struct.pack("<H", port))
    try:
        reader, writer = await handle.dial(port)
    except OSError as error:
        await socket.send_bytes(b"\1" + f"error forwarding port {port}: {error}".encode())
        return

    async def say() -> None:
        while data := await reader.read(_PIECE):
            await socket.send_bytes(b"\0" + data)

    async def hear() -> None:
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                writer.write(message.data[1:])
                await writer.drain()

    try:
        await _until_one_ends(say(), hear())
    finally:
        writer.close()
