"""A job as the hub sees it: how a stream into it is opened, and which of them wait."""

from __future__ import annotations

import socket
from collections.abc import Callable

from fiber._tunnel.buffered import Lines

__all__ = ["Shore", "Spare"]

#: seconds until another try after streams that could not be opened
_DELAYS = (0.1, 0.2, 0.5, 1.0, 2.0)


class Spare:
    """A stream that waits to be taken."""

    def __init__(self, lines: Lines, now: float) -> None:
        self.lines = lines
        #: when it was heard of last
        self.heard = now


class Shore:
    """One job.

    Args:
        ident: of the job.
        name: for people.
        open_stream: opens a stream into it; waits, raises what the platform has to say.
    """

    def __init__(self, ident: str, name: str, open_stream: Callable[[], socket.socket]) -> None:
        self.ident = ident
        self.name = name
        self.open_stream = open_stream
        #: True from its start to its end
        self.live = False
        #: spare streams that are being opened
        self.opening = 0
        self.spares: set[Spare] = set()
        self._failures = 0

    def failed(self) -> float:
        """A stream could not be opened; seconds until the next try."""
        delay = _DELAYS[min(self._failures, len(_DELAYS) - 1)]
        self._failures += 1
        return delay

    def worked(self) -> None:
        """A stream could be opened."""
        self._failures = 0
