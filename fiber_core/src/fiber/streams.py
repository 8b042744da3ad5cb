"""Where the outcomes of an imap come in, and wait until they are taken."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import TimeoutError as _TimeoutError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fiber._tasks.feeder import Feeder

__all__ = ["Stream", "UnorderedStream"]

_UNSET = object()


class Stream:
    """Where the outcomes of an imap come in; each is ready once all before it are."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ready: deque[tuple[Any, BaseException | None]] = deque()
        self._early: dict[int, tuple[Any, Any]] = {}
        self._next = 0
        self._feeder: Feeder | None = None
        self._finished = False
        self._broken: BaseException | None = None
        self._was_asked = False
        self._abandoned = False
        #: called once, when something has come
        self._watchers: list[Callable[[], None]] = []

    def attach(self, feeder: Feeder) -> None:
        """The feeder that is told of what comes and what is taken."""
        with self._changed:
            self._feeder = feeder
            if self._finished:
                feeder.stop()

    def take(self, timeout: float | None) -> Any:
        """The next result; see :meth:`IMapIterator.next`."""
        value, error = self.outcome(timeout)
        if error is not None:
            raise error
        return value

    def outcome(self, timeout: float | None) -> tuple[Any, BaseException | None]:
        """The next result, or the error in its place.

        Raises:
            StopIteration: there are no more.
            multiprocessing.TimeoutError: ``timeout`` seconds have passed without one.
            BaseException: the pool or the iterable cannot go on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self.poll()
            if found is not None:
                return found
            with self._changed:
                if self._ready or self._finished:
                    continue
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise _TimeoutError
                self._changed.wait(left)

    def poll(self) -> tuple[Any, BaseException | None] | None:
        """The same where it has come already, else None."""
        self._was_asked = True
        with self._changed:
            found = self._ready.popleft() if self._ready else None
            if found is None and self._finished:
                self._end()
        if self._feeder is not None:
            if found is None:
                self._feeder.flush()
            else:
                self._feeder.taken(1)
        return found

    def watch(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called once, on any thread, when something has come; now if it has."""
        with self._changed:
            if not (self._ready or self._finished):
                self._watchers.append(wake)
                return
        wake()

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Nobody waits for that any more."""
        with self._changed:
            if wake in self._watchers:
                self._watchers.remove(wake)

    def hurry(self) -> None:
        """Have everything drawn and run, whether results are taken or not."""
        feeder = self._feeder
        if feeder is not None:
            feeder.hurry()

    def abandon(self) -> None:
        """Nobody can take results any more.

        Called by a finalizer, on any thread and whatever locks that holds, so it takes none but
        the feeder's innermost. Who never asked for a result wants the tasks run for their effects,
        as multiprocessing does; who did and stopped is not drawn from until the pool is joined.
        """
        self._abandoned = True
        if not self._was_asked:
            self.hurry()

    def _end(self) -> None:
        if self._broken is not None:
            error, self._broken = self._broken, None
            raise error
        if self._feeder is not None and self._feeder.error is not None:
            error, self._feeder.error = self._feeder.error, None
            raise error
        raise StopIteration

    # -- sink

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcomes of some items."""
        with self._changed:
            for index, value in enumerate(values, start):
                self._put(index, value, errors.get(index, _UNSET))
            self._wake()
        self._tell_arrived(len(values))

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Some items were given up."""
        with self._changed:
            for index in range(start, stop):
                self._put(index, None, error)
            self._wake()
        self._tell_arrived(stop - start)

    def done(self) -> None:
        """All outcomes are there."""
        with self._changed:
            self._finished = True
            self._wake()

    def broken(self, error: BaseException) -> None:
        """The pool cannot go on."""
        with self._changed:
            self._broken = error
            self._finished = True
            self._wake()
            if self._feeder is not None:
                self._feeder.stop()

    def _wake(self) -> None:
        self._changed.notify_all()
        watchers, self._watchers = self._watchers, []
        for wake in watchers:
            wake()

    def _tell_arrived(self, count: int) -> None:
        if self._feeder is not None:
            self._feeder.arrived(count)

    def _put(self, index: int, value: Any, error: Any) -> None:
        self._early[index] = (value, error)
        while self._next in self._early:
            self._deliver(*self._early.pop(self._next))
            self._next += 1

    def _deliver(self, value: Any, error: Any) -> None:
        if self._abandoned:
            self._ready.clear()
        elif error is not None:
            self._ready.append((value, None if error is _UNSET else error))
        elif self._feeder is not None:
            # an error before it ended its chunk, as in the stdlib: it has no outcome of its own
            self._feeder.taken(1)


class UnorderedStream(Stream):
    """The same in the order in which they come."""

    def _put(self, index: int, value: Any, error: Any) -> None:
        self._deliver(value, error)
