"""Whose turn it is: calls with work that waits, one turn a dispatch."""

from __future__ import annotations

from collections import deque

from fiber._tasks.pending.calls import Call


class Lines:
    """Two lines of calls: those with units that must travel alone, and those with ordinary work.

    A call whose work was taken away otherwise stays in line and is skipped when its turn comes.
    """

    __slots__ = ("_ordinary", "suspects")

    def __init__(self) -> None:
        self._ordinary: deque[Call] = deque()
        #: calls with suspects, and some that had
        self.suspects: deque[Call] = deque()

    def join(self, call: Call) -> None:
        """Put a call into the lines where it has work and does not stand yet."""
        if call.ready and not call.in_ring:
            call.in_ring = True
            self._ordinary.append(call)
        if call.suspects and not call.in_suspect_ring:
            call.in_suspect_ring = True
            self.suspects.append(call)

    def suspect(self) -> Call | None:
        """The call whose suspect is next."""
        line = self.suspects
        while line:
            call = line[0]
            if call.suspects:
                return call
            call.in_suspect_ring = False
            line.popleft()
        return None

    def ordinary(self) -> Call | None:
        """The call whose ordinary work is next."""
        line = self._ordinary
        while line:
            call = line[0]
            if call.ready:
                return call
            call.in_ring = False
            line.popleft()
        return None

    def turn_suspect(self) -> None:
        """The first call had its turn for a suspect."""
        self.suspects.rotate(-1)

    def turn_ordinary(self) -> None:
        """The first call had its turn for ordinary work."""
        self._ordinary.rotate(-1)
