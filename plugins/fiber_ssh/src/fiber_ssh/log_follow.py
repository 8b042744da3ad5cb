"""Followers of jobs' output on one host: the destination and the present offset of each."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator

import attrs

from fiber.backend_parts.logfile import split_lines
from fiber.exceptions import BackendError
from fiber_ssh.remote.wire import Data, Message


@attrs.define(eq=False)
class LogFollower:
    """A reader of one job's output."""

    #: number by which the agent knows it
    number: int
    #: the job
    job_id: str
    #: called with the stream, 0 or 1, and the bytes of each piece
    sink: Callable[[int, bytes], object]
    #: called at the end, with the error if there was one
    on_end: Callable[[BackendError | None], None]
    #: only so many last lines; None for all
    tail: int | None = None
    #: True to go on until the job has ended
    follow: bool = True
    #: offset after the last piece in the job's log; None before the first one
    offset: int | None = None

    def request(self) -> Message:
        """The request to the agent for the output, or for what follows the offset."""
        asked: Message = {"op": "follow", "number": self.number, "job": self.job_id}
        asked["follow"] = self.follow
        if self.offset is not None:
            asked["offset"] = self.offset
        elif self.tail is not None:
            asked["tail"] = self.tail
        return asked


class LogFollowers:
    """The followers of one host, across its connections.

    Pieces and ends come on the link's thread; other threads add, forget and wait.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, LogFollower] = {}
        self._changed = threading.Condition()

    def add(
        self,
        job_id: str,
        sink: Callable[[int, bytes], object],
        on_end: Callable[[BackendError | None], None],
        *,
        tail: int | None = None,
        follow: bool = True,
    ) -> LogFollower:
        """Make and register a follower; the caller sends its request."""
        number = next(self._numbers)
        one = LogFollower(number, job_id, sink, on_end, tail, follow)
        self._open[number] = one
        return one

    def open(self) -> list[LogFollower]:
        """The followers that have not ended."""
        return list(self._open.values())

    def receive(self, data: Data) -> None:
        """Hand a piece of output to its follower."""
        one = self._open.get(data.number)
        if one is not None:
            one.offset = data.offset
            one.sink(data.stream, data.content)

    def end(self, number: int, error: BackendError | None = None) -> None:
        """End a follower."""
        one = self._open.pop(number, None)
        if one is not None:
            one.on_end(error)
        with self._changed:
            self._changed.notify_all()

    def wait_ended(self, timeout: float) -> bool:
        """Wait until all have ended; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def forget(self, number: int) -> None:
        """Drop a follower without calling its end."""
        self._open.pop(number, None)

    def end_all(self, error: BackendError | None) -> None:
        """End all followers."""
        for number in list(self._open):
            self.end(number, error)


def log_lines(
    pieces: queue.SimpleQueue[bytes | BackendError | None], acknowledge: Callable[[int], None]
) -> Iterator[str]:
    """Yield the lines of pieces of output, without their newlines.

    Args:
        pieces: queue of bytes; None at its end; an error is raised.
        acknowledge: called with the number of bytes of each piece that was taken.
    """

    def taken() -> Iterator[bytes]:
        while (piece := pieces.get()) is not None:
            if isinstance(piece, BackendError):
                raise piece
            acknowledge(len(piece))
            yield piece

    for line in split_lines(taken()):
        yield line.decode("utf-8", "replace")
