"""Waiting in asyncio for what another thread brings: no thread of its own for each who waits.

Apart from its one importer, so that programs which await nothing do not import asyncio (20 ms).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol


class Watched(Protocol):
    """Something that comes, or of which more comes."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called once, on any thread, when it has come; now if it has."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Nobody waits for that any more."""


async def arrival(source: Watched) -> None:
    """Wait until ``source`` has something; whoever is cancelled meanwhile leaves nothing behind."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not arrived.done():
            arrived.set_result(None)

    def wake() -> None:
        # in a loop that was closed meanwhile nobody waits any more
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    source.watch(wake)
    try:
        await arrived
    finally:
        source.unwatch(wake)
