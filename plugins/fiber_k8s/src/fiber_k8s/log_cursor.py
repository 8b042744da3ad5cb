"""Position in a container's log, by the timestamps of its lines; pure.

Apart from ``logs``, so that it can be tested without a cluster. The API can only begin a log at a
whole second (``sinceTime``), so a log that is reopened repeats lines, which the cursor drops.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

__all__ = ["LogCursor"]

#: a line's timestamp, in the node's time zone; not all kubelets write trailing zeros
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
#: seconds before the latest line that are read again: the two streams of a container are stamped
#: side by side, and written one after the other
_OVERLAP = 1


class LogCursor:
    """The timestamps read last, so that a reader which begins a little earlier repeats no line."""

    def __init__(self) -> None:
        #: counts of the timestamps of the last seconds that were read, by second
        self._read: dict[int, Counter[str]] = {}
        self._latest = 0
        #: time of the first line of the tail; lines before it are skipped
        self._first: tuple[int, int] | None = None
        self._prefix = ("", "", 0)

    def since(self) -> dict[str, str]:
        """Return the query parameter ``sinceTime`` for the next lines; none before the first."""
        if not self._read:
            return {}
        begin = datetime.fromtimestamp(self._latest - _OVERLAP, tz=timezone.utc)
        return {"sinceTime": begin.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def unread(self, stamped: Iterator[str], *, is_tail: bool = False) -> Iterator[str]:
        """Yield the lines that were not read yet, without their timestamps.

        Args:
            stamped: lines with their timestamps in front.
            is_tail: these are the last lines of the log, and lines before them are to be skipped.
        """
        again = {second: Counter(stamps) for second, stamps in self._read.items()}
        for one in stamped:
            stamp, _, line = one.partition(" ")
            time = self._time(stamp)
            if time is None:
                # a message of the node, where it has no log
                yield one
                continue
            if is_tail:
                self._first = self._first or time
            elif self._first is not None and time < self._first:
                continue
            before = again.get(time[0])
            if before is not None and before[stamp]:
                before[stamp] -= 1
                continue
            self._record(stamp, time[0])
            yield line

    def _record(self, stamp: str, second: int) -> None:
        if second > self._latest:
            self._latest = second
            for old in [one for one in self._read if one < second - _OVERLAP]:
                del self._read[old]
        self._read.setdefault(second, Counter())[stamp] += 1

    def _time(self, stamp: str) -> tuple[int, int] | None:
        """Return seconds since the epoch and nanoseconds; None for no timestamp."""
        match = _STAMP.fullmatch(stamp)
        if match is None:
            return None
        text, fraction, zone = match.groups()
        if (text, zone) != self._prefix[:2]:
            # most lines are of the same second as those before them
            moment = datetime.fromisoformat(text + zone.replace("Z", "+00:00"))
            self._prefix = (text, zone, int(moment.timestamp()))
        return self._prefix[2], int((fraction or "").ljust(9, "0"))
