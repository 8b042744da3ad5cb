"""Measures what a stream into a job can do: its way there and back, and its bytes in a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from fiber._tunnel.buffered import Lines
from fiber._tunnel.shore import Shore

__all__ = ["Probe", "Speed"]

#: bytes that are sent
_BYTES = 2**20

#: seconds there and back, and bytes in a second
Speed = tuple[float, float]


class Probe:
    """A stream that is opened to be measured, once.

    Args:
        shore: the job that it leads into.
        tell: called with what was found.
        fail: called where nothing was.
    """

    def __init__(
        self, shore: Shore, tell: Callable[[Speed], None], fail: Callable[[], None]
    ) -> None:
        self._shore = shore
        self._tell = tell
        self._fail = fail

    @property
    def wanted(self) -> bool:
        """As long as the job lives."""
        return self._shore.live

    def words(self) -> str:
        """What the landing is told."""
        return f"PROBE {_BYTES}"

    def ready(self, lines: Lines) -> None:
        """Send a byte, and when it is answered the others."""
        times = [time.monotonic()]

        def answered(_: str) -> None:
            times.append(time.monotonic())
            there_and_back = times[1] - times[0]
            if len(times) == 2:
                lines.send(bytes(_BYTES))
                return
            lines.close()
            took = max(times[2] - times[1] - there_and_back, 1e-3)
            self._tell((there_and_back, _BYTES / took))

        lines.on_line = answered
        lines.on_end = lambda _: self._fail()
        lines.send(b"\0")

    def failed(self) -> None:
        """Another stream may do."""
        self._fail()
