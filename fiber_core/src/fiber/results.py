"""Results of pool methods: one result, a list of them, an iterator of them; and their sinks.

:class:`AsyncResult` and :class:`MapResult` are sinks themselves; the iterators take from a
:class:`Stream`, which receives the outcomes of an ``imap``.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from multiprocessing import TimeoutError as _TimeoutError
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fiber._base.interpreter import unless_finalizing
from fiber._base.threads import Deadline, in_turns, turn, wait_ready
from fiber.exceptions import TerminatedError, WorkerCrashedError

if TYPE_CHECKING:
    from fiber._base.threads import CallbackThread
    from fiber._tasks.call import Session
    from fiber._workers.open_calls import Feeder

__all__ = [
    "AsyncResult",
    "IMapIterator",
    "IMapUnorderedIterator",
    "MapResult",
    "Stream",
    "UnorderedStream",
]

_UNSET = object()


def _wakes(error: BaseException | None) -> bool:
    """False where waiting threads stay as they are: a pool that ends with the interpreter failed their call.

    All of them are daemons by then. An error would end each with a traceback on standard error.
    """
    return not (isinstance(error, TerminatedError) and util.is_exiting())


def _nothing() -> None:
    """Stand-in for what ends a call that is over."""


class Stream:
    """Sink of an ``imap``: outcomes become ready in the order of the items."""

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
        #: ends the call, where its consumer was interrupted
        self.interrupt: Callable[[], None] = _nothing
        #: called at the end of the results, before it is told
        self.on_end: Callable[[], object] | None = None
        #: called once, when something has come
        self._watchers: list[Callable[[], None]] = []

    def attach(self, feeder: Feeder) -> None:
        """Set the feeder, which is notified of outcomes that come and of those that are taken."""
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
        deadline = Deadline(timeout)
        while True:
            found = self.poll()
            if found is not None:
                return found
            with self._changed:
                if self._ready or self._finished:
                    continue
                left = deadline.left
                if left == 0:
                    raise _TimeoutError
                self._changed.wait(turn(left))

    def poll(self) -> tuple[Any, BaseException | None] | None:
        """Like :meth:`outcome` where one is ready, else None; never waits."""
        self._was_asked = True
        if self.on_end is not None and self._finished and not self._ready:
            self.on_end()
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
        """Call ``wake`` once, on any thread, when an outcome or the end is there; now if it is."""
        with self._changed:
            if not (self._ready or self._finished):
                self._watchers.append(wake)
                return
        wake()

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Take back :meth:`watch`."""
        with self._changed:
            if wake in self._watchers:
                self._watchers.remove(wake)

    def drain(self) -> None:
        """Draw and run all items, whether results are taken or not."""
        feeder = self._feeder
        if feeder is not None:
            feeder.drain()

    def abandon(self) -> None:
        """Drop results from now on: their iterator was collected.

        Called by a finalizer, on any thread and whatever locks that holds, so it takes none but
        the feeder's innermost. Where no result was ever taken, all items are run for their effects,
        as multiprocessing does; otherwise no more are drawn until the pool is joined.
        """
        self._abandoned = True
        if not self._was_asked:
            self.drain()

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
        self._count_arrived(len(values))

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Some items were given up."""
        with self._changed:
            for index in range(start, stop):
                self._put(index, None, error)
            self._wake()
        self._count_arrived(stop - start)

    def done(self) -> None:
        """Every item has its outcome."""
        with self._changed:
            self._end_call()
            self._wake()

    def broken(self, error: BaseException) -> None:
        """The pool cannot go on."""
        with self._changed:
            self._broken = error
            self._end_call()
            if _wakes(error):
                self._wake()
            if self._feeder is not None:
                self._feeder.stop()

    def _end_call(self) -> None:
        self._finished = True
        # it refers to the call, and the call to this
        self.interrupt = _nothing

    def _wake(self) -> None:
        self._changed.notify_all()
        watchers, self._watchers = self._watchers, []
        for wake in watchers:
            wake()

    def _count_arrived(self, count: int) -> None:
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
            # an error earlier in its chunk ended the chunk, as in the stdlib: it has no outcome
            self._feeder.taken(1)


class UnorderedStream(Stream):
    """Sink of an ``imap_unordered``: outcomes become ready in the order in which they come."""

    def _put(self, index: int, value: Any, error: Any) -> None:
        self._deliver(value, error)


T = TypeVar("T")
_Callback = Callable[[Any], Any] | None


class AsyncResult(Generic[T]):
    """The result of one task, once it is there; ``await`` it in asyncio, in any loop.

    It is ready once its callback has returned, as in the standard library. For callbacks themselves,
    which would otherwise wait for each other or for their own end, it is ready once the task has
    ended.

    Args:
        callbacks: runs callbacks.
        callback: called with the result.
        error_callback: called with the error.
        pool: kept alive until the task has ended.
    """

    def __init__(
        self,
        callbacks: CallbackThread,
        callback: _Callback = None,
        error_callback: _Callback = None,
        pool: object = None,
    ) -> None:
        # no events: two of them would take half the time of giving a task to a worker
        #: True once the task has ended
        self._ended = False
        #: True once its callback has returned as well
        self._completed = False
        self._lock = threading.Lock()
        #: called once; each with True where it waits for the task's end alone
        self._watchers: list[tuple[Callable[[], None], bool]] = []
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks = callbacks
        self._callback = callback
        self._error_callback = error_callback
        self._pool = pool
        # for the pool: the worker that was given the task at once, and the entry
        self.sent: tuple[Session, int] | None = None
        if callback is not None or error_callback is not None:
            # no thread can be started later, while the interpreter ends
            callbacks.start()

    def ready(self) -> bool:
        """True once the task has ended and its callback has returned."""
        return self._completed or (self._ended and self._callbacks.is_current())

    def successful(self) -> bool:
        """True where it ended without an exception.

        Raises:
            ValueError: it has not ended.
        """
        if not self.ready():
            msg = f"{self!r} not ready"
            raise ValueError(msg)
        return self._error is None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is ready, or ``timeout`` seconds have passed."""
        self._wait(timeout)

    def get(self, timeout: float | None = None) -> T:
        """The result, once it is ready.

        Raises:
            multiprocessing.TimeoutError: ``timeout`` seconds have passed without.
            Exception: what the task raised, the remote traceback as its cause.
            WorkerCrashedError: the task ended its workers.
        """
        if not self._wait(timeout):
            raise _TimeoutError
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def __await__(self) -> Generator[Any, None, T]:
        if not self.ready():
            yield from wait_ready(self).__await__()
        return self.get(0)

    def watch(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` once, on any thread, when it is ready; now if it is."""
        for_end = self._callbacks.is_current()
        with self._lock:
            if not (self._completed or (self._ended and for_end)):
                self._watchers.append((wake, for_end))
                return
        wake()

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Take back :meth:`watch`."""
        with self._lock:
            self._watchers = [watcher for watcher in self._watchers if watcher[0] != wake]

    def _wait(self, timeout: float | None) -> bool:
        """Wait until it is ready; False when ``timeout`` seconds have passed."""
        if self.ready():
            return True
        woken = threading.Lock()
        woken.acquire()
        wake = woken.release
        self.watch(wake)
        try:
            limit = None if timeout is None else max(0.0, timeout)
            return in_turns(functools.partial(woken.acquire, True), limit)
        finally:
            if not self._completed:
                self.unwatch(wake)

    # -- sink

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcome of the one item."""
        error = errors.get(start)
        if error is not None:
            self._error = error
        else:
            self._value = values[0]

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Note that the call was given up."""
        self._error = error

    def done(self) -> None:
        """The item has its outcome."""
        self._settle()

    def broken(self, error: BaseException) -> None:
        """The pool cannot go on."""
        if not self._ended:
            self._error = error
            self._settle()

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Take the outcome, as one of several tasks of a call."""
        self._value, self._error = value, error
        self._settle()

    def _settle(self) -> None:
        callback = self._callback if self._error is None else self._error_callback
        if callback is None:
            self._complete()
            return
        self._reach(completed=False)
        if not self._callbacks.put(self._run, callback):
            self._complete()

    def _run(self, callback: Callable[[Any], Any]) -> None:
        try:
            callback(self._value if self._error is None else self._error)
        finally:
            self._complete()

    def _complete(self) -> None:
        self._reach(completed=True)
        self._pool = self.sent = None

    def _reach(self, *, completed: bool) -> None:
        """Note that the task has ended, or its callback too, and wake who waits for that."""
        with self._lock:
            self._ended, self._completed = True, completed
            watchers = self._watchers if _wakes(self._error) else []
            self._watchers = [] if completed else [one for one in watchers if not one[1]]
        for wake, for_end in watchers:
            if completed or for_end:
                wake()


class MapResult(AsyncResult[list[T]]):
    """The results of all items in their order; the error of the first failed one by position.

    A ``WorkerCrashedError`` among them has all outcomes in its ``results``.
    """

    def __init__(
        self,
        count: int,
        callbacks: CallbackThread,
        callback: _Callback = None,
        error_callback: _Callback = None,
        pool: object = None,
    ) -> None:
        super().__init__(callbacks, callback, error_callback, pool)
        self._value: list[Any] = [None] * count
        self._failed: dict[int, BaseException] = {}
        #: items without an outcome; the stdlib's counts chunks, and programs show how far they are by it
        self._number_left = count

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcomes of some items."""
        self._value[start : start + len(values)] = values
        self._number_left -= len(values)
        last: BaseException | None = None
        for index, error in sorted(errors.items()):
            last = error if error is not None else last
            if last is not None:
                self._failed[index] = last

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Some items were given up."""
        self._number_left -= stop - start
        for index in range(start, stop):
            self._failed[index] = error

    def done(self) -> None:
        """Every item has its outcome."""
        if self._failed:
            results: list[Any] = self._value
            for index, error in self._failed.items():
                results[index] = error
            crashed = [e for e in self._failed.values() if isinstance(e, WorkerCrashedError)]
            for one in crashed:
                one.results = results
            self._error = self._failed[min(self._failed)]
        self._settle()


class IMapIterator(Generic[T]):
    """Iterator of results, returned by ``Pool.imap``.

    ``for`` takes them, and in asyncio ``async for``.

    Args:
        stream: receives them.
        pool: kept alive as long as its results may be taken.
    """

    def __init__(self, stream: Stream, pool: object = None) -> None:
        self._stream = stream
        self._pool = pool

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """The next result.

        Raises:
            StopIteration: there are no more.
            multiprocessing.TimeoutError: ``timeout`` seconds have passed without one.
            Exception: what the task raised; the next call goes on with the next result.
            KeyboardInterrupt: this waited and was interrupted; the tasks are ended, and the next
                call raises ``concurrent.futures.CancelledError``.
        """
        try:
            result: T = self._stream.take(timeout)
        except KeyboardInterrupt:
            self._stream.interrupt()
            raise
        return result

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while True:
            try:
                found = self._stream.poll()
            except StopIteration:
                raise StopAsyncIteration from None
            if found is not None:
                break
            await wait_ready(self._stream)
        value, error = found
        if error is not None:
            raise error
        result: T = value
        return result

    @unless_finalizing
    def __del__(self) -> None:
        self._stream.abandon()


class IMapUnorderedIterator(IMapIterator[T]):
    """Iterator of results in the order in which they come."""
