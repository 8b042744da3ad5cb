"""Waiting in asyncio for an event of another thread, without a thread for each waiter.

Apart from :mod:`fiber.results`, its one importer, so that programs that await nothing do not import
asyncio (20 ms).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol


class Watchable(Protocol):
    """Source of one-shot notifications: a result, or a stream of results."""

    def watch(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, on any thread, when something is available; now if it is already."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Undo :meth:`watch`; nothing happens where ``wake`` was called already."""


async def wait_ready(source: Watchable) -> None:
    """Wait until ``source`` has something; a cancelled wait leaves no watcher behind."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    def wake() -> None:
        # the loop may be closed by now; then there is no waiter left
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(set_ready)

    source.watch(wake)
    try:
        await ready
    finally:
        source.unwatch(wake)
