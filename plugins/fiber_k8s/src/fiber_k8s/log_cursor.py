"""How far a log was read, by the times of its lines; pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

__all__ = ["LogPlace"]

#: a line's time, in the node's time zone; others than kubelets leave out zeros at the end
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
#: seconds before the latest line that are asked for again: the two streams of a container are
#: stamped side by side, and written one after the other
_OVERLAP = 1


class LogPlace:
    """What was told of a log, so that a reading that begins a little earlier tells nothing twice."""

    def __init__(self) -> None:
        #: stamps of the last seconds, as often as they were told
        self._told: dict[int, Counter[str]] = {}
        self._latest = 0
        #: time of the first line that was told, where those before it are not wanted
        self._first: tuple[int, int] | None = None
        self._prefix = ("", "", 0)

    def since(self) -> dict[str, str]:
        """The parameter for what comes next; whole seconds, so some of it is told again."""
        if not self._told:
            return {}
        begin = datetime.fromtimestamp(self._latest - _OVERLAP, tz=timezone.utc)
        return {"sinceTime": begin.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def new(self, stamped: Iterator[str], *, is_tail: bool = False) -> Iterator[str]:
        """Those lines that were not told yet, without their times.

        Args:
            stamped: lines behind their times.
            is_tail: these are the last of those there are, and what is before them is not wanted.
        """
        again = {second: Counter(stamps) for second, stamps in self._told.items()}
        for one in stamped:
            stamp, _, line = one.partition(" ")
            time = self._time(stamp)
            if time is None:
                # the node's own words, where it has no log
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
            self._tell(stamp, time[0])
            yield line

    def _tell(self, stamp: str, second: int) -> None:
        if second > self._latest:
            self._latest = second
            for old in [one for one in self._told if one < second - _OVERLAP]:
                del self._told[old]
        self._told.setdefault(second, Counter())[stamp] += 1

    def _time(self, stamp: str) -> tuple[int, int] | None:
        """Seconds and nanoseconds since the epoch."""
        match = _STAMP.fullmatch(stamp)
        if match is None:
            return None
        text, fraction, zone = match.groups()
        if (text, zone) != self._prefix[:2]:
            # most lines are of the same second as those before them
            moment = datetime.fromisoformat(text + zone.replace("Z", "+00:00"))
            self._prefix = (text, zone, int(moment.timestamp()))
        return self._prefix[2], int((fraction or "").ljust(9, "0"))
