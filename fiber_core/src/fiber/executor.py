"""``Executor``: the surface of ``concurrent.futures`` over crews of workers.

Futures of tasks, and the calls that they belong to.

One call of an executor's map: its results as they come, and what is drawn in between.

What an executor's tasks need of it, whether somebody still holds the executor itself or not.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import sys
import threading
import time
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures as _futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import TimeoutError as _TimeoutError
from multiprocessing import util
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from fiber._tasks.protocol import Mode
from fiber._wire import codec, fork
from fiber._workers.group import Workforce
from fiber._workers.options import Wish, require_int
from fiber.exceptions import FiberError, StartError
from fiber.process import Process
from fiber.results import Stream

if TYPE_CHECKING:
    from fiber._tasks.call import Call
    from fiber._tasks.dispatcher import Dispatcher
    from fiber._workers.group import Workforce

__all__ = ["BrokenExecutor", "Executor", "Future"]

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


#: functions whose calls stay open for more tasks
_OPEN = 256
_OVER = "cannot schedule new futures after shutdown"
_ENDING = "cannot schedule new futures after interpreter shutdown"


class Core:
    """The workers of an executor and the calls they work at. Thread-safe.

    Tasks of one importable function share a call, so that they travel together where they are
    short, as the items of a map do. Anything else is a call of its own.

    Args:
        wish: what the executor was made with.
    """

    def __init__(self, wish: Wish) -> None:
        self.workforce = Workforce(wish, "executor")
        self._lock = threading.RLock()
        self._lanes: OrderedDict[int, Lane] = OrderedDict()
        #: calls of one task each, and those that map made, until they are done
        self._others: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._maps: weakref.WeakSet[MapStream] = weakref.WeakSet()
        self._began = False
        #: False once nobody holds the executor itself
        self.is_held = True
        self._finishing = threading.Lock()
        self._is_finished = False
        self._finisher: threading.Thread | None = None
        self._terminate: util.Finalize | None = None
        self._at_exit: util.Finalize | None = None

    def submit(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        """Have ``func(*args, **kwargs)`` called in a worker.

        Raises:
            RuntimeError: it was shut down.
            BrokenExecutor: no worker can be kept alive.
        """
        # before any lock, which may be held for ever in a process that the user forked
        fork.check()
        while type(func) is functools.partial and not vars(func):
            args, kwargs = (*func.args, *args), {**func.keywords, **kwargs}
            func = func.func
        with self._lock:
            self._begin()
            if not _has_home(func):
                lane = self._new_lane(func, (args, kwargs))
                self._others.add(lane)
                return lane.only
            found = self._lanes.get(id(func))
            if found is None:
                found = self._new_lane(func)
                if found.error is not None:
                    return found.only
                self._lanes[id(func)] = found
                if len(self._lanes) > _OPEN:
                    self._close_one()
            return found.submit(args, kwargs)

    def map(
        self, func: Callable[..., Any], stream: MapStream, items: list[Any], chunk: int, grows: bool
    ) -> None:
        """Add a call whose results go to ``stream``.

        Raises:
            RuntimeError: it was shut down.
            BrokenExecutor: no worker can be kept alive.
        """
        with self._lock:
            self._begin()
            with _telling():
                crew, call = self.workforce.prepare(
                    func, Mode.STARMAP, stream, None if grows else items, chunk
                )
            if call is not None:
                stream.belongs_to(crew.dispatcher, call)
                self._maps.add(stream)
                crew.dispatcher.add(call)
                if grows:
                    stream.add(items)

    def check(self) -> None:
        """Raise where no more tasks are taken."""
        fork.check()
        self.workforce.check()

    # -- its end

    def shut_down(self, *, cancel: bool) -> None:
        """Take no more tasks; let what there is be done, or cancel what was not sent."""
        self._close(RuntimeError(_OVER), cancel=cancel)

    def finish(self) -> None:
        """Wait until all is done and the workers are gone; after :meth:`shut_down`."""
        if self.workforce.callbacks.is_current():
            # which ends before the rest does
            self.finish_later()
            return
        with self._finishing:
            if not self._began or self._is_finished:
                return
            self.workforce.join()
            self._is_finished = True
        for finalizer in (self._terminate, self._at_exit):
            if finalizer is not None:
                finalizer.cancel()

    def finish_later(self) -> None:
        """The same on a thread of its own."""
        if not self._began or self._is_finished or self._finisher is not None:
            return
        self._finisher = threading.Thread(
            target=self._shut_down_and_finish, name=f"{self.workforce.name}-end", daemon=True
        )
        # while the interpreter ends no thread can be started, and what follows waits for all
        with contextlib.suppress(RuntimeError):
            self._finisher.start()

    def _shut_down_and_finish(self) -> None:
        self.shut_down(cancel=False)
        self.finish()

    def terminate(self) -> None:
        """End the workers at once; what is not done is a ``BrokenExecutor``."""
        self._close(RuntimeError(_OVER), cancel=False)
        if self._terminate is not None:
            self._terminate()
        if self._at_exit is not None:
            self._at_exit.cancel()

    def exit(self) -> None:
        """The interpreter ends: finish first."""
        self._close(RuntimeError(_ENDING), cancel=False)
        self.finish()

    def _close(self, refusal: BaseException, *, cancel: bool) -> None:
        with self._lock:
            self.workforce.refuse(refusal)
            calls: list[Lane | MapStream] = [*self._lanes.values(), *self._others, *self._maps]
            # kept where they are found again, since they may be cancelled later
            self._others.update(self._lanes.values())
            self._lanes.clear()
            for call in calls:
                call.close()
        if cancel:
            for call in calls:
                call.cancel_all()

    # -- inside

    def _begin(self) -> None:
        self.check()
        if not self._began:
            self.workforce.begin()
            self._terminate = self.workforce.end_with(self.workforce)
            # before the workers are ended, as futures that are pending are waited for
            self._at_exit = util.Finalize(None, _exit, args=(weakref.ref(self),), exitpriority=20)
            self._began = True

    def _new_lane(self, func: Any, task: Any = None) -> Lane:
        with _telling():
            return Lane(self.workforce, func, task)

    def _close_one(self) -> None:
        _, lane = self._lanes.popitem(last=False)
        self._others.add(lane)
        lane.close()


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Raise what keeps all workers from coming up as the executor's own error."""
    try:
        yield
    except StartError as error:
        raise broken(error) from error


def _has_home(func: Any) -> bool:
    """True where ``func`` goes by reference, so that it is the same function each time."""
    if not isinstance(func, (types.FunctionType, types.BuiltinFunctionType, type)):
        return False
    name = getattr(func, "__module__", None)
    if name in {"__main__", "__mp_main__"} and not codec.main_by_reference():
        return False
    found: Any = sys.modules.get(name) if isinstance(name, str) else None
    for part in func.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is func


def _exit(core: weakref.ref[Core]) -> None:
    """The interpreter ends."""
    held = core()
    if held is not None:
        held.exit()


P = ParamSpec("P")


class Executor(_futures.Executor):
    """Workers that run functions; the same as ``concurrent.futures.ProcessPoolExecutor``, and more.

    They are started by the first task. A worker that dies is replaced and what it had is run again;
    a task that ends ``max_attempts`` workers while it is alone on them fails with
    ``WorkerCrashedError``, and the executor and the other tasks go on.

    Args:
        max_workers: workers at first; None for as many as the backend has CPUs.
        mp_context: accepted for compatibility: workers start as Fiber starts them.
        initializer: called in each worker first.
        initargs: its arguments.
        max_tasks_per_child: tasks, or chunks of a map, that a worker does before it is replaced.
        error_handling: False where no task may run twice, as for :class:`fiber.Pool`.
        min: fewest workers of an executor that shrinks when idle.
        max: most workers of an executor that grows while work waits.
        processes_per_job: workers in one job of the backend.
        max_attempts: see above; None for the setting.

    Raises:
        ValueError: a number makes no sense.
        TypeError: the initializer cannot be called, or a number is none.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
        error_handling: bool = True,
        min: int | None = None,
        max: int | None = None,
        processes_per_job: int = 1,
        max_attempts: int | None = None,
    ) -> None:
        self._pid = os.getpid()
        if max_workers is not None and max_workers <= 0:
            msg = "max_workers must be greater than 0"
            raise ValueError(msg)
        if max_tasks_per_child is not None:
            require_int("max_tasks_per_child must be an integer", max_tasks_per_child)
            if max_tasks_per_child <= 0:
                msg = "max_tasks_per_child must be >= 1"
                raise ValueError(msg)
        self._core = Core(
            Wish(
                size=max_workers,
                initializer=initializer,
                initargs=initargs,
                quota=max_tasks_per_child,
                error_handling=error_handling,
                least=min,
                most=max,
                per_job=processes_per_job,
                max_attempts=max_attempts,
            )
        )
        self._max_workers = self._core.workforce.wanted

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have ``fn(*args, **kwargs)`` called in a worker.

        Raises:
            RuntimeError: the executor was shut down, or the interpreter ends.
            BrokenExecutor: no worker can be kept alive.
            SubmitError: the backend refused the first worker.
        """
        return self._core.submit(fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """``fn`` of the items of the iterables, side by side, in parallel; results in order.

        Args:
            fn: called with an item of each iterable.
            iterables: drawn at once, unless there is a ``buffersize``.
            timeout: seconds after which whoever waits for a result gets a ``TimeoutError``.
            chunksize: items that stay together on one worker.
            buffersize: chunks that may be on their way or waiting to be taken; more are drawn as
                results are taken.

        Raises:
            TypeError: ``buffersize`` is no whole number.
            ValueError: a number makes no sense.
            RuntimeError: the executor was shut down.
        """
        if chunksize < 1:
            msg = "chunksize must be >= 1."
            raise ValueError(msg)
        if buffersize is not None:
            require_int("buffersize must be an integer or None", buffersize)
            if buffersize < 1:
                msg = "buffersize must be None or > 0"
                raise ValueError(msg)
        self._core.check()
        stream = MapStream()
        rest = zip(*iterables)  # noqa: B905 - as map does, to the end of the shortest
        grows = buffersize is not None
        first = None if buffersize is None else buffersize * chunksize
        items = list(itertools.islice(rest, first))
        self._core.map(fn, stream, items, chunksize, grows)
        return results(self._core, stream, rest if grows else None, chunksize, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, and let the workers go once all is done.

        Args:
            wait: return when they have ended; otherwise at once.
            cancel_futures: cancel what was not sent to a worker.
        """
        if os.getpid() != self._pid:
            return
        self._core.shut_down(cancel=cancel_futures)
        if wait:
            self._core.finish()
        else:
            self._core.finish_later()

    def terminate_workers(self) -> None:
        """End the workers at once; what is not done is a ``BrokenExecutor``."""
        self._core.terminate()

    def kill_workers(self) -> None:
        """The same as :meth:`terminate_workers`, which leaves no worker a choice either."""
        self._core.terminate()

    @property
    def _processes(self) -> dict[int | None, Process]:
        """The workers' process objects by pid, where the stdlib has them and programs look."""
        return {process.pid: process for process in self._core.workforce.processes()}

    def __repr__(self) -> str:
        cls = type(self)
        return f"<{cls.__module__}.{cls.__qualname__} max_workers={self._max_workers}>"

    def __reduce__(self) -> Any:
        msg = "executors cannot be passed between processes or pickled"
        raise TypeError(msg)

    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and os.getpid() == self._pid:
            # on any thread, whatever locks that holds: nothing is waited for here
            core.is_held = False
            core.finish_later()
