"""A container on dockerd that was started: its end, its log, processes in it, its ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from .dockerwire import Channel, EngineError, Wire, frames
from .inside import dial
from .runtime import Ended, LogQuery, Session
from .store import Object

__all__ = ["Container"]

_NOT_STARTED = b"OCI runtime exec failed"
_MESSAGE = 4096
_KILLED = 137
_FALLBACK_LINES, _FALLBACK_BYTES = 80, 2048


class Container:
    """A container of a pod."""

    def __init__(
        self, wire: Wire, identity: str, pod: Object, spec: Object, image: Any, note: Path
    ) -> None:
        self._wire, self._id, self._spec, self._note = wire, identity, spec, note
        self.container_id = f"containerd://{identity}"
        name = spec["image"]
        bare = "/" not in name
        tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
        self.image = f"docker.io/library/{tagged}" if bare else tagged
        self.image_id = image["Id"]
        self._pod = pod
        self._end = asyncio.ensure_future(self._wait())

    async def wait(self) -> Ended:
        return await asyncio.shield(self._end)

    async def stop(self, grace: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        await self._before_stop(grace)
        await self._signal("SIGTERM")
        left = max(deadline - loop.time(), 0 if grace <= 0 else 2)
        done, _ = await asyncio.wait({self._end}, timeout=left)
        if not done:
            await self.kill()
        await self.wait()

    async def kill(self) -> None:
        await self._signal("SIGKILL")

    async def logs(self, query: LogQuery) -> AsyncIterator[bytes]:
        """What it wrote, with the engine's times where they are wanted."""
        wants = {"All": (1, 1), "Stdout": (1, 0), "Stderr": (0, 1)}[query.stream]
        asked = self._wire.stream(
            "GET",
            f"/containers/{self._id}/logs",
            stdout=wants[0],
            stderr=wants[1],
            follow=int(query.follow),
            timestamps=int(query.timestamps),
            tail=query.tail if query.tail is not None else "all",
            since=None if query.since is None else f"{query.since:.9f}",
        )
        left = query.limit
        async with asked as response:
            if response.status >= 400:
                return
            parts = _raw(response.content) if self._spec.get("tty") else _joined(response.content)
            async for text in parts:
                data = text if left is None else text[:left]
                left = None if left is None else left - len(data)
                if data:
                    yield data
                if left == 0:
                    return

    async def exec(self, argv: Sequence[str], *, stdin: bool, tty: bool) -> Session:
        """Start a process in it; EngineError where it does not run."""
        made = await self._wire.ask(
            "POST",
            f"/containers/{self._id}/exec",
            {
                "AttachStdin": stdin,
                "AttachStdout": True,
                "AttachStderr": True,
                "Tty": tty,
                "Cmd": list(argv),
            },
        )
        path = f"/exec/{made['Id']}"
        channel = await self._wire.hijack(f"{path}/start", {"Detach": False, "Tty": tty})
        return _Process(self._wire, path, channel, tty=tty)

    async def attach(self, *, stdin: bool) -> Session:
        path = f"/containers/{self._id}/attach?stream=1&stdout=1&stderr=1&stdin={int(stdin)}"
        channel = await self._wire.hijack(path, {})
        return _Attached(self, channel, tty=bool(self._spec.get("tty")))

    async def dial(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        told = await self._wire.ask("GET", f"/containers/{self._id}/json")
        return await dial(told["State"]["Pid"], port)

    async def _wait(self) -> Ended:
        with contextlib.suppress(EngineError):
            await self._wire.ask("POST", f"/containers/{self._id}/wait", condition="not-running")
        try:
            state = (await self._wire.ask("GET", f"/containers/{self._id}/json"))["State"]
        except EngineError:
            # somebody removed it behind our back
            return Ended(137, reason="ContainerStatusUnknown")
        message = self._note.read_bytes()[:_MESSAGE].decode(errors="replace")
        fallback = self._spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not message and fallback and state["ExitCode"]:
            parts = [part async for part in self.logs(LogQuery(tail=_FALLBACK_LINES))]
            message = b"".join(parts)[-_FALLBACK_BYTES:].decode(errors="replace")
        return Ended(state["ExitCode"], state["OOMKilled"], message)

    async def _signal(self, name: str) -> None:
        # it may have ended meanwhile
        with contextlib.suppress(EngineError):
            await self._wire.ask("POST", f"/containers/{self._id}/kill", signal=name)

    async def _before_stop(self, grace: float) -> None:
        hook = (self._spec.get("lifecycle") or {}).get("preStop") or {}
        if "sleep" in hook:
            await asyncio.wait({self._end}, timeout=min(grace, hook["sleep"]["seconds"]))
        if "exec" not in hook or grace <= 0:
            return
        with contextlib.suppress(EngineError, asyncio.TimeoutError):
            process = await self.exec(hook["exec"]["command"], stdin=False, tty=False)
            try:
                await asyncio.wait_for(_drained(process), grace)
            finally:
                await process.close()


class _Process:
    """A process that was started in a container."""

    def __init__(self, wire: Wire, path: str, channel: Channel, *, tty: bool) -> None:
        self._wire, self._path, self._channel = wire, path, channel
        self._parts = _pieces(channel, tty=tty)
        self._begun = False

    async def read(self) -> tuple[int, bytes] | None:
        piece = await anext(self._parts, None)
        if not self._begun and piece is not None and piece[1].startswith(_NOT_STARTED):
            # the engine says so where the process would have written
            identity = self._path.rpartition("/")[2]
            raise EngineError(500, f'"{identity}": {piece[1].decode().strip()}')
        self._begun = True
        return piece

    async def write(self, data: bytes) -> None:
        self._channel.writer.write(data)
        await self._channel.writer.drain()

    async def end_input(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.writer.write_eof()

    async def code(self) -> int:
        while True:
            try:
                told = await self._wire.ask("GET", f"{self._path}/json")
            except EngineError as error:
                if error.status != 404:
                    raise
                # its container is gone, and all that was in it was killed
                return _KILLED
            if not told["Running"]:
                return int(told["ExitCode"] or 0)
            # the engine closes the output a moment before it knows the code
            await asyncio.sleep(0.01)

    async def resize(self, width: int, height: int) -> None:
        with contextlib.suppress(EngineError):
            await self._wire.ask("POST", f"{self._path}/resize", w=width, h=height)

    async def close(self) -> None:
        await self._channel.close()


class _Attached:
    """The first process of a container, heard from now on."""

    def __init__(self, container: Container, channel: Channel, *, tty: bool) -> None:
        self._container, self._channel = container, channel
        self._parts = _pieces(channel, tty=tty)

    async def read(self) -> tuple[int, bytes] | None:
        return await anext(self._parts, None)

    async def write(self, data: bytes) -> None:
        self._channel.writer.write(data)
        await self._channel.writer.drain()

    async def end_input(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.writer.write_eof()

    async def code(self) -> int:
        return 0

    async def resize(self, width: int, height: int) -> None:
        pass

    async def close(self) -> None:
        await self._channel.close()


async def _pieces(channel: Channel, *, tty: bool) -> AsyncIterator[tuple[int, bytes]]:
    if not tty:
        async for piece in frames(channel.reader):
            yield piece
        return
    while data := await channel.reader.read(65536):
        yield 1, data


async def _joined(content: Any) -> AsyncIterator[bytes]:
    async for _, data in frames(content):
        yield data


async def _raw(content: Any) -> AsyncIterator[bytes]:
    async for data in content.iter_any():
        yield data


async def _drained(process: Session) -> int:
    while await process.read() is not None:
        pass
    return await process.code()
