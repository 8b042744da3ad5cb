"""Logs of a pod's container, followed across broken connections.

The API can only begin a log at a whole second (``sinceTime``), so a log that is reopened repeats lines, which a
:class:`LogCursor` drops: a position in the log, by the timestamps of its lines.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import urllib3

from fiber.exceptions import BackendError
from fiber_k8s.client import ApiError, Client
from fiber_k8s.flow_control import backoff
from fiber_k8s.names import CONTAINER

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
        """Yield the lines that were not read yet, without their timestamps; none before a tail."""
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


log = logging.getLogger("fiber")

#: a kubelet's message in place of a log that it has removed, or while it removes the container
_NO_LOG = re.compile(rb"unable to retrieve container logs for [\w.+-]+://[0-9a-f]+")


def last_lines(client: Client, pod: str, count: int, container: str = CONTAINER) -> tuple[str, ...]:
    """Return the last lines of a container's log; none where it cannot be read."""
    with contextlib.suppress(BackendError):
        return tuple(_lines(client, pod, {"tailLines": count, "container": container}))
    return ()


def follow(
    client: Client,
    pod: str,
    *,
    tail: int | None = None,
    to_the_end: bool = False,
    has_ended: Callable[[], bool] = lambda: True,
) -> Iterator[str]:
    """Return an iterator of a log's lines; the call itself decides where it begins.

    Args:
        client: the cluster.
        pod: its name.
        tail: only the last so many of those there are.
        to_the_end: go on until the container has ended.
        has_ended: returns whether the container has ended.
    """
    if not to_the_end:
        return _lines(client, pod, {"tailLines": tail})
    cursor = LogCursor()
    last: list[str] = []
    if tail is not None:
        # the existing lines and their end, from which the log is followed
        stamped = _lines(client, pod, {"timestamps": "true", "tailLines": max(1, tail)})
        last = list(cursor.unread(stamped, is_tail=True))
        last = last[len(last) - tail :] if tail else []
    return itertools.chain(last, _follow_from(client, pod, cursor, has_ended))


def _follow_from(
    client: Client, pod: str, cursor: LogCursor, has_ended: Callable[[], bool]
) -> Iterator[str]:
    query: dict[str, Any] = {"timestamps": "true", "follow": "true"}
    timing = client.timing
    waits = backoff(timing.backoff, timing.backoff_most)
    while True:
        # before the read: the log of a container that had ended is then read to its end
        ended = has_ended()
        try:
            for line in cursor.unread(_lines(client, pod, {**query, **cursor.since()})):
                waits = backoff(timing.backoff, timing.backoff_most)
                yield line
        except ApiError as error:
            if error.status == 404 or ended:
                return
        except BackendError:
            # the cluster is not reachable: resumed where it broke
            ended = False
        if ended:
            return
        # no event reports that there is more to read
        time.sleep(next(waits))


def _lines(client: Client, pod: str, query: dict[str, Any]) -> Iterator[str]:
    """Yield complete lines; ends when no data comes for some time: the stream may be dead."""
    path = client.path("pods", pod, "log")
    response = client.open(
        "GET",
        path,
        f"read the log of {pod}",
        query={"container": CONTAINER, **query},
        timeout=client.timing.log_silence,
    )
    rest = b""
    try:
        for chunk in response.stream(1 << 16, decode_content=True):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace")
        if _NO_LOG.fullmatch(rest):
            # not a line of the container, though the response has status 200
            level = logging.DEBUG if "follow" in query else logging.WARNING
            log.log(level, "fiber: the log of %s is gone: %s", pod, rest.decode())
        elif rest:
            yield rest.decode("utf-8", "replace")
            rest = b""
    except (urllib3.exceptions.HTTPError, OSError) as failure:
        msg = f"the log of {pod} broke off: {failure}"
        raise BackendError(msg) from failure
    finally:
        with contextlib.suppress(Exception):
            # errors while closing differ with the transport, and the read is over in any case
            response.close()
