"""One entry while a worker runs it: how far it may go, and handing over what is done in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fiber.dispatch.outcomes import Outcomes
from fiber.dispatch.protocol import Done, Tasks
from fiber.transport import wire

#: results wait at most this long for others: each message costs 100 µs of CPU on both sides
_HOLD = 0.002
#: and no more than so many bytes of them that had to be pickled ahead of time
_LARGE = 256 * 2**10


class Current:
    """The entry being run, and how far it may go; shared with the attendant."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._index = tasks.start
        self._limit = tasks.stop
        self._lock = threading.Lock()

    @property
    def limit(self) -> int:
        """Items from here on were handed back."""
        with self._lock:
            return self._limit

    def hand_back(self) -> int:
        """Give up what has not begun, by whole units; return where the kept part ends."""
        tasks = self.tasks
        with self._lock:
            limit = self._limit
            # first nothing may begin any more: an index noted from now on waits for our word,
            # and the one noted before is the one we read
            self._limit = tasks.start
            begun = (self._index - tasks.start) // tasks.chunk + 1
            self._limit = min(limit, tasks.start + begun * tasks.chunk)
            return self._limit

    def may_run(self, index: int) -> bool:
        """Note that an item is about to run; False where it was handed back."""
        self._index = index
        if index < self._limit:
            return True
        with self._lock:
            return index < self._limit


class Batch:
    """Runs one entry.

    Args:
        tasks: its head.
        send: hands over the body of a DONE message.
    """

    def __init__(self, tasks: Tasks, send: Callable[[Sequence[wire.Buffer]], None]) -> None:
        self._tasks = tasks
        self._send = send
        self._from = tasks.start
        self._outcomes = Outcomes()
        self._began = time.perf_counter()

    def run(self, call: Callable[[Any], Any], items: Sequence[Any], current: Current) -> None:
        """Run the items one after another, until the end or what was handed back."""
        start, chunk, last = self._tasks.start, self._tasks.chunk, len(items) - 1
        clock, outcomes = time.perf_counter, self._outcomes
        skip_to = 0
        for offset, item in enumerate(items):
            if offset % chunk == 0 and not current.may_run(start + offset):
                break
            if offset < skip_to:
                outcomes.skip()
            else:
                try:
                    outcomes.add(call(item))
                # an exception of the task is its result; what is no Exception ends the worker,
                # as it does in multiprocessing
                except Exception as error:
                    outcomes.fail(error)
                    skip_to = offset - offset % chunk + chunk
            # the last results are handed over with the credit for another entry
            if (offset + 1) % chunk == 0 and offset != last:
                elapsed = clock() - self._began
                if elapsed < _HOLD:
                    outcomes.settle()
                    if outcomes.packed_bytes < _LARGE:
                        continue
                self._hand_over(start + offset + 1, 0)
                outcomes = self._outcomes
        self._hand_over(current.limit, 1)

    def fail(self, error: BaseException) -> None:
        """The function or its arguments could not be loaded: that is every item's outcome."""
        self._outcomes.fail(error, self._tasks.stop - self._tasks.start)
        self._hand_over(self._tasks.stop, 1)

    def _hand_over(self, stop: int, credits_: int) -> None:
        now = time.perf_counter()
        done = Done(self._tasks.entry, self._from, stop, now - self._began, credits_)
        self._send([done.encode(), *self._outcomes.encode()])
        self._from, self._outcomes = stop, Outcomes()
        self._began = time.perf_counter()
