"""Futures of tasks, and the calls that they belong to."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures as _futures
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fiber._tasks.modes import Mode
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._tasks.dispatcher import Dispatcher
    from fiber._workers.groups import Workforce

__all__ = ["BrokenExecutor", "Future"]

T = TypeVar("T")
_Callback = Callable[[Any], Any]
#: a callback with what it is called with
_Waiting: TypeAlias = tuple[_Callback, Any]
_local = threading.local()
_log = logging.getLogger("concurrent.futures")


class BrokenExecutor(FiberError, BrokenProcessPool):  # noqa: N818 - as its base is named
    """No worker can be kept alive, or all were ended; the cause tells why.

    It is a ``concurrent.futures.process.BrokenProcessPool``. A single dead worker is no reason for
    it: the worker is replaced and its tasks run again.
    """


def broken(cause: BaseException) -> BrokenExecutor:
    """The error of whoever waits for, or asks for, what cannot be done because of ``cause``."""
    error = BrokenExecutor(f"the executor cannot go on: {cause}")
    error.__cause__ = cause
    return error


class Future(_futures.Future[T]):
    """The result of a task, once it is there; a ``concurrent.futures.Future``.

    It is running from the moment its task is sent to a worker. Until then it can be cancelled, and
    its task then never runs.

    Args:
        lane: the call it belongs to.
        index: its item there.
    """

    def __init__(self, lane: Lane, index: int) -> None:
        super().__init__()
        self._lane = lane
        self._index = index
        self._is_told = False

    def cancel(self) -> bool:
        """Keep the task from running; False where it was sent to a worker already."""
        with _deferring() as later:
            done = self._lane.cancel(self, self._index)
        for waiting in later:
            _run(waiting)
        return done

    def add_done_callback(self, fn: Callable[[_futures.Future[T]], object]) -> None:
        """Have ``fn(self)`` called when it is done or cancelled; at once where it is already.

        Callbacks run one after another, on a thread of the executor or that of who cancels.
        """
        if not self.done():
            self._lane.make_ready()
        super().add_done_callback(functools.partial(_call, fn))

    # -- for its lane, under the lock

    def cancel_now(self) -> bool:
        """The stdlib's ``cancel``, and everybody who waits is told; True for the first time."""
        if not super().cancel() or self._is_told:
            return False
        self._is_told = True
        self.set_running_or_notify_cancel()
        return True

    def begin(self) -> None:
        """Its task is sent to a worker, for the first time or again."""
        if not self._is_told:
            self._is_told = True
            self.set_running_or_notify_cancel()

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Its outcome is there."""
        # one that was cancelled, or that its user set, has an outcome of its own
        with contextlib.suppress(_futures.InvalidStateError):
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)


class Lane:
    """The futures of one call, as a sink of results; more may be added while it is open.

    Args:
        workforce: does the work.
        func: what is called.
        task: arguments and keywords of the only task; None for a lane that grows.
    """

    def __init__(
        self,
        workforce: Workforce,
        func: Callable[..., Any],
        task: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    ) -> None:
        #: what it calls; held, so that nothing else can have its identity
        self.func = func
        #: why nothing more can come, if so
        self.error: BaseException | None = None
        self._callbacks = workforce.callbacks
        self._futures: dict[int, Future[Any]] = {}
        self.only = self._futures[0] = Future(self, 0)
        items = None if task is None else [task]
        crew, self._call = workforce.prepare(func, Mode.APPLY, self, items, begun=self._begun)
        self._dispatcher: Dispatcher = crew.dispatcher
        if self._call is not None:
            if task is None:
                del self._futures[0]
            self._dispatcher.add(self._call)

    def submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Future[Any]:
        """Add a task to a lane that grows.

        Raises:
            BrokenExecutor: its workers are gone for good.
        """
        assert self._call is not None
        with self._dispatcher.lock:
            if self.error is not None:
                raise broken(self.error)
            future: Future[Any] = Future(self, self._call.count)
            self._futures[self._call.count] = future
            self._dispatcher.extend(self._call, [(args, kwargs)])
        return future

    def close(self) -> None:
        """Let it end with what it has."""
        if self._call is not None:
            with self._dispatcher.lock:
                if self._call.grows:
                    self._dispatcher.extend(self._call, (), closed=True)

    def cancel_all(self) -> None:
        """Cancel what was not sent to a worker."""
        with self._dispatcher.lock:
            pending = list(self._futures.values())
        for future in pending:
            future.cancel()

    def cancel(self, future: Future[Any], index: int) -> bool:
        """Cancel a future of this lane."""
        if self._call is None:
            return False
        with self._dispatcher.lock:
            if future.cancel_now():
                self._dispatcher.withdraw(self._call, index, index + 1)
            return future.cancelled()

    def make_ready(self) -> None:
        """Have what runs callbacks up: a thread cannot be started while the interpreter ends."""
        self._callbacks.start()

    def _begun(self, start: int, stop: int) -> None:
        for index in range(start, stop):
            future = self._futures.get(index)
            if future is not None:
                future.begin()

    # -- sink

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcomes of some tasks."""
        with self._settling():
            for index, value in enumerate(values, start):
                self._futures.pop(index).settle(value, errors.get(index))

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Some tasks were given up, or withdrawn."""
        with self._settling():
            for index in range(start, stop):
                self._futures.pop(index).settle(None, error)

    def done(self) -> None:
        """All outcomes are there."""

    def broken(self, error: BaseException) -> None:
        """No worker is left, or the function cannot be sent."""
        self.error = error
        with self._settling():
            while self._futures:
                _, future = self._futures.popitem()
                # a fault of the function itself is the task's own
                mine = isinstance(error, FiberError)
                future.settle(None, broken(error) if mine else error)

    @contextlib.contextmanager
    def _settling(self) -> Iterator[None]:
        """Have callbacks run on their thread: locks are held here."""
        with _deferring() as later:
            yield
        for waiting in later:
            self._callbacks.put(_run, waiting)


@contextlib.contextmanager
def _deferring() -> Iterator[list[_Waiting]]:
    """Collect the callbacks that this thread would call meanwhile."""
    before = getattr(_local, "later", None)
    later: list[_Waiting] = []
    _local.later = later
    try:
        yield later
    finally:
        _local.later = before


def _call(callback: _Callback, future: Any) -> None:
    later: list[_Waiting] | None = getattr(_local, "later", None)
    if later is None:
        callback(future)
    else:
        later.append((callback, future))


def _run(waiting: _Waiting) -> None:
    callback, future = waiting
    try:
        callback(future)
    # as documented for futures: it is logged, and the next one is called
    except Exception:
        _log.exception("exception calling callback for %r", future)
