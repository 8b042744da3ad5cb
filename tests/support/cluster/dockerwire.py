"""The engine's HTTP interface, as far as a kubelet needs it, without threads."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import attrs

__all__ = ["Channel", "EngineError", "Wire", "frames"]

_VERSION = "v1.41"
_HEADER = struct.Struct(">BxxxL")


class EngineError(Exception):
    """The engine has refused."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status, self.message = status, message


@attrs.define
class Channel:
    """A connection that the engine gave over to a process: its output, framed, and its input."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def close(self) -> None:
        """Let go of the process."""
        self.writer.close()


class Wire:
    """Asks the engine at a socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Get ready; in the loop that will ask."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(self._path, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def close(self) -> None:
        """End all that was asked."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """A request, and its answer from JSON."""
        async with self.stream(method, path, body, **query) as response:
            text = await response.read()
            if response.status >= 400:
                raise EngineError(response.status, _message(text))
            return json.loads(text) if text.strip() else None

    def stream(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """A request whose answer is read as it comes."""
        assert self._session is not None
        told = {name: str(value) for name, value in query.items() if value is not None}
        url = f"http://engine/{_VERSION}{path}"
        return self._session.request(method, url, json=body, params=told)

    async def hijack(self, path: str, body: Any) -> Channel:
        """A request that turns its connection into a stream."""
        reader, writer = await asyncio.open_unix_connection(self._path)
        text = json.dumps(body).encode()
        head = (
            f"POST /{_VERSION}{path} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\n"
            f"Upgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
        )
        writer.write(head.encode() + text)
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, OSError) as error:
            writer.close()
            raise EngineError(500, "the engine has closed the connection") from error
        status = int(answer.split()[1])
        if status not in {101, 200}:
            message = _message(await reader.read(4096))
            writer.close()
            raise EngineError(status, message)
        return Channel(reader, writer)


async def frames(reader: Any) -> AsyncIterator[tuple[int, bytes]]:
    """Take apart the engine's stream of standard output (1) and standard error (2)."""
    while True:
        try:
            channel, size = _HEADER.unpack(await reader.readexactly(_HEADER.size))
            yield channel, await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError, aiohttp.ClientError):
            return


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace").strip()
