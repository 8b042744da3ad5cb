"""A container's log: lines under the times at which they came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import attrs

from .runtime import LogQuery

__all__ = ["LogBook", "stamp"]


def stamp(seconds: float, zone: int = 0) -> str:
    """A time as logs have it, to the nanosecond.

    Args:
        seconds: since the epoch; the present where they are negative.
        zone: minutes that the node's clock is ahead of UTC.
    """
    whole, part = divmod(time.time_ns() if seconds < 0 else int(seconds * 1e9), 10**9)
    hours, minutes = divmod(abs(zone), 60)
    end = f"{'-' if zone < 0 else '+'}{hours:02d}:{minutes:02d}" if zone else "Z"
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole + zone * 60))
    return f"{text}.{part:09d}{end}"


@attrs.define
class LogBook:
    """Keeps all that was written, for readers now and later."""

    #: minutes that the node's clock is ahead of UTC
    zone: int = 0
    _lines: list[tuple[float, bytes]] = attrs.field(factory=list)
    _closed: bool = False
    _news: asyncio.Event = attrs.field(factory=asyncio.Event)

    def write(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            self._lines.append((time.time(), line))
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    async def read(self, query: LogQuery) -> AsyncIterator[bytes]:
        """The lines that are wanted."""
        lines = self._lines
        start = 0
        if query.since is not None:
            start = next((n for n, (at, _) in enumerate(lines) if at >= query.since), len(lines))
        if query.tail is not None:
            start = max(start, len(lines) - query.tail)
        left = query.limit
        while True:
            news = self._news
            for at, line in lines[start:]:
                start += 1
                text = f"{stamp(at, self.zone)} ".encode() + line if query.timestamps else line
                if left is not None:
                    text, left = text[:left], left - len(text[:left])
                if text:
                    yield text
                if left == 0:
                    return
            if not query.follow or self._closed:
                return
            await news.wait()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
