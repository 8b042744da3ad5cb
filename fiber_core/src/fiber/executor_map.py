"""One call of an executor's map: its results as they come, and what is drawn in between."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent import futures as _futures
from multiprocessing import TimeoutError as _TimeoutError
from typing import TYPE_CHECKING, Any

from fiber.exceptions import FiberError
from fiber.futures import broken
from fiber.streams import Stream

if TYPE_CHECKING:
    from fiber._tasks.call import Call
    from fiber._tasks.dispatcher import Dispatcher
    from fiber.executor_core import Core


class MapStream(Stream):
    """Where the results of a map come in; it can be cancelled, and drawn into where it grows."""

    def __init__(self) -> None:
        super().__init__()
        self._dispatcher: Dispatcher | None = None
        self._call: Call | None = None

    def belongs_to(self, dispatcher: Dispatcher, call: Call) -> None:
        """Its call."""
        self._dispatcher, self._call = dispatcher, call

    def add(self, items: list[Any]) -> None:
        """Add items to a call that grows."""
        if self._dispatcher is not None and self._call is not None:
            self._dispatcher.extend(self._call, items)

    def close(self) -> None:
        """Add no more."""
        if self._dispatcher is not None and self._call is not None:
            with self._dispatcher.lock:
                if self._call.grows:
                    self._dispatcher.extend(self._call, (), closed=True)

    def cancel_all(self) -> None:
        """Have what was not sent to a worker not run."""
        if self._dispatcher is not None and self._call is not None:
            self._dispatcher.withdraw(self._call, 0, self._call.count)


def results(
    core: Core, stream: MapStream, rest: Iterator[Any] | None, chunk: int, timeout: float | None
) -> Iterator[Any]:
    """The results in order; what is not drawn or not sent yet when it ends never runs.

    Args:
        core: the executor's.
        stream: where they come in.
        rest: items that are added as results are taken, where their number is bounded.
        chunk: how many at a time.
        timeout: seconds from now for all of them.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    return _results(core, stream, rest, chunk, deadline)


def _results(
    core: Core, stream: MapStream, rest: Iterator[Any] | None, chunk: int, deadline: float | None
) -> Iterator[Any]:
    taken = 0
    try:
        while True:
            if rest is not None and taken % chunk == 0:
                rest = _refill(core, stream, rest, chunk)
            try:
                left = None if deadline is None else deadline - time.monotonic()
                value, error = stream.outcome(left)
            except StopIteration:
                return
            except _TimeoutError:
                raise _futures.TimeoutError from None
            except FiberError as failure:
                raise broken(failure) from failure
            if error is not None:
                raise error
            taken += 1
            yield value
            # no reference to what the caller may let go
            del value
    finally:
        stream.close()
        stream.cancel_all()


def _refill(core: Core, stream: MapStream, rest: Iterator[Any], chunk: int) -> Iterator[Any] | None:
    if not core.is_held:
        stream.close()
        return None
    items = list(itertools.islice(rest, chunk))
    if items:
        core.check()
        stream.add(items)
        return rest
    stream.close()
    return None
