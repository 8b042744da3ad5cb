"""Output of jobs that comes from one host: where it goes, and how far it has come."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator

import attrs

from fiber.exceptions import BackendError
from fiber_ssh.remote.wire import Data, Message

__all__ = ["Follow", "Follows", "lines"]


@attrs.define(eq=False)
class Follow:
    """One job's output on its way to somebody."""

    #: what the agent calls it
    number: int
    #: whose output
    job_id: str
    #: takes a stream and bytes
    sink: Callable[[int, bytes], None]
    #: called at the end, with what went wrong if something did
    ended: Callable[[BackendError | None], None]
    #: only the last so many lines
    tail: int | None = None
    #: go on until the job has ended
    follow: bool = True
    #: how far it has come, once something came
    offset: int | None = None

    def request(self) -> Message:
        """What asks the agent for it, or for the rest of it."""
        asked: Message = {"op": "follow", "number": self.number, "job": self.job_id}
        asked["follow"] = self.follow
        if self.offset is not None:
            asked["offset"] = self.offset
        elif self.tail is not None:
            asked["tail"] = self.tail
        return asked


class Follows:
    """Those of one connection after the other; used by one thread at a time, save for making them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, Follow] = {}
        self._changed = threading.Condition()

    def add(
        self,
        job_id: str,
        sink: Callable[[int, bytes], None],
        ended: Callable[[BackendError | None], None],
        *,
        tail: int | None = None,
        follow: bool = True,
    ) -> Follow:
        """Note one; the caller sends its request."""
        number = next(self._numbers)
        one = Follow(number, job_id, sink, ended, tail, follow)
        self._open[number] = one
        return one

    def open(self) -> list[Follow]:
        """Those whose end has not come."""
        return list(self._open.values())

    def came(self, data: Data) -> None:
        """A piece came."""
        one = self._open.get(data.number)
        if one is not None:
            one.offset = data.offset
            one.sink(data.stream, data.content)

    def end(self, number: int, error: BackendError | None = None) -> None:
        """No more will come."""
        one = self._open.pop(number, None)
        if one is not None:
            one.ended(error)
        with self._changed:
            self._changed.notify_all()

    def wait_ended(self, timeout: float) -> bool:
        """True once all have ended; False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def forget(self, number: int) -> None:
        """Nobody wants it any more."""
        self._open.pop(number, None)

    def end_all(self, error: BackendError | None) -> None:
        """No more will come of anything."""
        for number in list(self._open):
            self.end(number, error)


def lines(
    pieces: queue.SimpleQueue[bytes | BackendError | None], took: Callable[[int], None]
) -> Iterator[str]:
    """Whole lines of pieces of output, without their newlines.

    Args:
        pieces: bytes; None at the end; an error where it cannot go on.
        took: told how many bytes were taken.
    """
    rest = b""
    while True:
        piece = pieces.get()
        if isinstance(piece, BackendError):
            raise piece
        if piece is None:
            break
        *whole, rest = (rest + piece).split(b"\n")
        took(len(piece))
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
