"""Calls that grow: those of tasks that are given one by one, by function, and those of an iterable that is drawn.

Tasks of one importable function are items of one call that grows, so that they travel together where
they are short, as the items of a map do. A function that is pickled by value may have changed from one
task to the next: each such task is a call of its own. Whatever call they are of, such tasks begin in the
order in which they were given.

The iterable of an ``imap`` is drawn into its call no further ahead than a window.
"""

from __future__ import annotations

import sys
import threading
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from fiber._tasks.protocol import Mode
from fiber._wire import codec, fork

if TYPE_CHECKING:
    from fiber._tasks.call import Call, Session
    from fiber._tasks.dispatcher import Dispatcher
    from fiber._workers.group import WorkerGroups

#: a call's mode, and the item that it takes for a task
Task: TypeAlias = tuple[Mode, Any]
#: most functions whose calls stay open for more tasks
_MAX_OPEN_CALLS = 256


def task_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Task:
    """A task with these arguments; those without keywords are small, and pickled many at once."""
    return (Mode.APPLY, (args, kwargs)) if kwargs else (Mode.STARMAP, args)


class Receiver(Protocol):
    """Sink of the outcome of one task; called under the dispatcher's lock, so it must not wait."""

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Take the result, or the error in its place."""


R = TypeVar("R", bound=Receiver)


class TaskCall(Generic[R]):
    """A call whose tasks have a receiver each; a sink. It is open for more, or has one task only.

    Args:
        groups: the workers.
        func: the function.
        mode: of its tasks.
        only: the item of the only task with its receiver; None for a call that grows.
        on_dispatch: see :meth:`~fiber._tasks.dispatcher.Dispatcher.prepare`.
    """

    def __init__(
        self,
        groups: WorkerGroups,
        func: Callable[..., Any],
        mode: Mode,
        only: tuple[Any, R] | None = None,
        on_dispatch: Callable[[int, int], None] | None = None,
    ) -> None:
        #: the function; held, so that no other object can get its id()
        self.func = func
        #: the error that ended it, if any
        self.error: BaseException | None = None
        #: by index of its task, those that have no outcome
        self._receivers: dict[int, R] = {} if only is None else {0: only[1]}
        items = None if only is None else [only[0]]
        group, self._call = groups.prepare(
            func, mode, self, items, one_by_one=True, on_dispatch=on_dispatch
        )
        self._dispatcher: Dispatcher = group.dispatcher
        if self._call is not None:
            self._dispatcher.add(self._call)

    def add(self, item: Any, make_receiver: Callable[[int], R]) -> R | None:
        """Add a task to a call that grows.

        Args:
            item: the task's.
            make_receiver: called with its index.

        Returns:
            The receiver; None where the call was closed, or has ended by :attr:`error`.
        """
        with self._dispatcher.lock:
            if self.error is not None or self._call is None or not self._call.grows:
                return None
            index = self._call.count
            receiver = self._receivers[index] = make_receiver(index)
            self._call.sent = None
            self._dispatcher.extend(self._call, [item])
        return receiver

    @property
    def sent(self) -> tuple[Session, int] | None:
        """The worker that was given the last task at once, and the entry; None where all were busy."""
        return None if self._call is None else self._call.sent

    def close(self) -> None:
        """Add no more tasks; idempotent."""
        if self._call is not None:
            with self._dispatcher.lock:
                if self._call.grows:
                    self._dispatcher.extend(self._call, (), closed=True)

    # -- sink

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcomes of some tasks."""
        for index, value in enumerate(values, start):
            self._receivers.pop(index).settle(value, errors.get(index))

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Some tasks were given up, or withdrawn."""
        for index in range(start, stop):
            self._receivers.pop(index).settle(None, error)

    def done(self) -> None:
        """Every task has its outcome."""

    def broken(self, error: BaseException) -> None:
        """No worker is left, or the function cannot be sent."""
        self.error = error
        while self._receivers:
            _, receiver = self._receivers.popitem()
            receiver.settle(None, self._failure(error))

    def _failure(self, error: BaseException) -> BaseException:
        """Exception with which a task fails because of ``error``."""
        return error


C = TypeVar("C", bound=TaskCall[Any])


class OpenCalls(Generic[C]):
    """Calls that are open for more tasks, one for each importable function and mode. Thread-safe.

    Args:
        open_call: makes a call that grows, of a function and a mode.
        alone: True where each task is to be a call of its own, since its caller's context goes with it.
    """

    def __init__(self, open_call: Callable[[Any, Mode], C], *, alone: bool = False) -> None:
        self._open_call = open_call
        self._alone = alone
        self._lock = threading.RLock()
        self._calls: OrderedDict[tuple[int, Mode], C] = OrderedDict()

    def get(self, func: Any, mode: Mode) -> C | None:
        """The call for tasks of a function; None where each task is to be a call of its own.

        Raises:
            Exception: of making one; see :meth:`~fiber._workers.group.WorkerGroups.prepare`.
        """
        if self._alone or not _is_importable(func):
            return None
        # before the lock, which may be held for ever in a process that the user forked
        fork.check()
        with self._lock:
            found = self._calls.get((id(func), mode))
            if found is None or found.error is not None:
                found = self._open_call(func, mode)
                if found.error is not None:
                    return None
                self._calls[id(func), mode] = found
                if len(self._calls) > _MAX_OPEN_CALLS:
                    self._calls.popitem(last=False)[1].close()
        return found

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            while self._calls:
                self._calls.popitem()[1].close()


def _is_importable(func: Any) -> bool:
    """True where ``func`` is pickled by reference, so that it is the same function each time."""
    if not isinstance(func, (types.FunctionType, types.BuiltinFunctionType, type)):
        return False
    name = getattr(func, "__module__", None)
    if name in {"__main__", "__mp_main__"} and not codec.main_by_reference():
        return False
    found: Any = sys.modules.get(name) if isinstance(name, str) else None
    for part in func.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is func


#: items drawn ahead of the consumer, at most and at first
MAX_AHEAD = 4096
INITIAL_AHEAD = 64
#: bytes of arguments drawn ahead, once their size was seen
MAX_AHEAD_BYTES = 64 * 2**20
#: items added to the call at once while workers have other work
_BATCH = 64


class Feeder:
    """Thread that draws one iterable; ends with it, with the call, or with :meth:`stop`.

    Args:
        dispatcher: the pool's.
        call: a call that grows.
        iterable: drawn on the feeder's own thread, since it may take its time.
        workers: how many workers there are; the window is never smaller than twice that.
    """

    def __init__(
        self, dispatcher: Dispatcher, call: Call, iterable: Iterable[Any], *, workers: int
    ) -> None:
        self._dispatcher = dispatcher
        self._call = call
        self._iterable: Iterable[Any] | None = iterable
        self._least = 2 * max(1, workers) * (call.chunksize or 1)
        self._buffer: deque[Any] = deque()
        self._drawn = 0
        self._added = 0
        #: items whose outcomes came, and those of them that were taken
        self._arrived = 0
        self._taken = 0
        self._draining = False
        self._stopped = False
        self._room = threading.Condition()
        self._adding = threading.Lock()
        #: what the iterable raised, if it did
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fiber-feeder", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def arrived(self, count: int) -> None:
        """Note that ``count`` more items have their outcomes."""
        with self._room:
            self._arrived += count
            if self._draining:
                self._room.notify()

    def taken(self, count: int) -> None:
        """Note that the caller took ``count`` outcomes: there is room for as many more items."""
        with self._room:
            self._taken += count
            self._room.notify()

    def drain(self) -> None:
        """Draw to the end without the caller: outcomes make room even if they are not taken."""
        with self._room:
            self._draining = True
            self._room.notify()

    def stop(self) -> None:
        """Draw no more; returns at once, since the iterable may be waiting for something."""
        with self._room:
            self._stopped = True
            self._room.notify()

    def flush(self) -> None:
        """Add the items drawn so far to the call; for a consumer that is about to wait."""
        if self._buffer:
            self._add_drawn(closed=False)

    def _run(self) -> None:
        try:
            self._draw()
        finally:
            # a generator is closed here, on the thread that ran it
            self._iterable = None

    def _draw(self) -> None:
        assert self._iterable is not None
        try:
            for item in self._iterable:
                with self._adding:
                    self._buffer.append(item)
                    self._drawn += 1
                if len(self._buffer) >= _BATCH or self._workers_lack_work():
                    self._add_drawn(closed=False)
                if not self._wait_for_room():
                    return
        # whatever it is, the consumer gets it
        except BaseException as error:
            self.error = error
        self._add_drawn(closed=True)

    def _workers_lack_work(self) -> bool:
        # as many units queued as there are workers keep them busy while more is drawn; but where
        # everything has its outcome the iterable itself may be waiting for that of this item
        return self._dispatcher.table.queued < self._least or self._added <= self._arrived

    def _add_drawn(self, *, closed: bool) -> None:
        # items are added to the call in the order in which they were drawn
        with self._adding:
            items, self._buffer = self._buffer, deque()
            if not items and not closed:
                # another thread was first, and may have added the last
                return
            self._added += len(items)
            self._dispatcher.extend(self._call, items, closed=closed)

    def _wait_for_room(self) -> bool:
        if not self._has_room():
            self.flush()
        with self._room:
            self._room.wait_for(lambda: self._stopped or self._has_room())
            return not self._stopped

    def _has_room(self) -> bool:
        return self._drawn - (self._arrived if self._draining else self._taken) < self._window()

    def _window(self) -> int:
        size = self._call.item_bytes
        if not size:
            return max(INITIAL_AHEAD, self._least)
        return max(self._least, min(MAX_AHEAD, int(MAX_AHEAD_BYTES / size)))
