"""One entry while a worker runs it: how far it may go, and handing over what is done in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from fiber._tasks.outcomes import Outcomes
from fiber._tasks.protocol import Done, Tasks
from fiber._wire import frames

#: results wait at most this long for others, or as long as it took until the last ones were handed
#: over: each message costs 100 µs of CPU on both sides, and a master of many workers gives long entries
_HOLD = 0.002
#: and no more than so many bytes of them that had to be pickled ahead of time
_LARGE = 256 * 2**10
#: seconds of a unit after which what came meanwhile is looked at: it may have held the interpreter
#: all the time, so that the attendant could not
_LONG = 0.05


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
        look: looks at what came during a long unit, before the next one begins.
    """

    def __init__(
        self,
        tasks: Tasks,
        send: Callable[[Sequence[frames.Buffer]], None],
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.current = Current(tasks)
        self._tasks = tasks
        self._send = send
        self._look = look
        #: True where the last unit was a long one
        self.was_long = False
        self._lock = threading.Lock()
        self._outcomes = Outcomes()
        #: the first item that was not handed over
        self._from = tasks.start
        #: the first item of the unit at hand
        self._unit = tasks.start
        #: when the entry began, the first of these did, and the second did
        self._start = self._began = self._unit_began = time.perf_counter()

    def run(self, call: Callable[[Any], Any], items: Sequence[Any]) -> None:
        """Run the items one after another, until the end or what was handed back."""
        start, chunk, last = self._tasks.start, self._tasks.chunk, len(items) - 1
        may_run, lock = self.current.may_run, self._lock
        skip_to = 0
        for offset, item in enumerate(items):
            if offset % chunk == 0 and not may_run(start + offset):
                break
            if offset < skip_to:
                with lock:
                    self._outcomes.skip()
            else:
                try:
                    value = call(item)
                # an exception of the task is its result; what is no Exception ends the worker,
                # as it does in multiprocessing
                except Exception as error:
                    with lock:
                        self._outcomes.fail(error)
                    skip_to = offset - offset % chunk + chunk
                else:
                    with lock:
                        self._outcomes.add(value)
            # the last results are handed over with the credit for another entry
            if (offset + 1) % chunk == 0 and offset != last:
                self._unit_ended(start + offset + 1)
                if self.was_long:
                    self._look()
        with lock:
            began, self._unit_began = self._unit_began, time.perf_counter()
            self.was_long = self._unit_began - began > _LONG
            self._hand_over(self.current.limit, 1)

    def flush(self) -> None:
        """Hand over what waits, from another thread, because the unit at hand takes long."""
        with self._lock:
            if self._from < self._unit == self._from + len(self._outcomes):
                self._hand_over(self._unit, 0)
                self._began = self._unit_began

    def fail(self, error: BaseException) -> None:
        """The function or its arguments could not be loaded: that is every item's outcome."""
        self._outcomes.fail(error, self._tasks.stop - self._tasks.start)
        self._unit_began = time.perf_counter()
        self._hand_over(self._tasks.stop, 1)

    def _unit_ended(self, stop: int) -> None:
        with self._lock:
            began, self._unit, self._unit_began = self._unit_began, stop, time.perf_counter()
            self.was_long = self._unit_began - began > _LONG
            if self._unit_began - self._began < max(_HOLD, self._began - self._start):
                # what the next task may change is pickled before it runs
                self._outcomes.settle()
                if self._outcomes.packed_bytes < _LARGE:
                    return
            self._hand_over(stop, 0)
            # the way of these results is no part of what the next ones take
            self._began = self._unit_began = time.perf_counter()

    def _hand_over(self, stop: int, credits_: int) -> None:
        seconds = self._unit_began - self._began
        done = Done(self._tasks.entry, self._from, stop, seconds, credits_)
        self._send([done.encode(), *self._outcomes.encode()])
        self._from, self._outcomes = stop, Outcomes()
