"""``Executor``: the interface of ``concurrent.futures`` over groups of workers on any backend.

An :class:`Executor` holds a ``Core``, which outlives it until its tasks are done. Its tasks are items
of an ``ExecutorCall``, which holds their futures; a map is a call with a ``MapStream``.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures as _futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import TimeoutError as _TimeoutError
from multiprocessing import util
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar

from fiber._base.interpreter import unless_finalizing
from fiber._base.threads import Deadline, in_turns
from fiber._tasks.protocol import Mode
from fiber._wire import fork
from fiber._workers.group import PoolOptions, WorkerGroups, require_int
from fiber._workers.open_calls import OpenCalls, TaskCall, task_of
from fiber.exceptions import FiberError, StartError
from fiber.process import Process
from fiber.results import Stream

if TYPE_CHECKING:
    from fiber._tasks.call import Call, Sink
    from fiber._tasks.dispatcher import Dispatcher
    from fiber.watching import Progress

__all__ = ["BrokenExecutor", "Executor", "Future"]

T = TypeVar("T")
_Callback = Callable[[Any], Any]
#: a callback and its argument
_Waiting: TypeAlias = tuple[_Callback, Any]
_local = threading.local()
_log = logging.getLogger("concurrent.futures")


class BrokenExecutor(FiberError, BrokenProcessPool):  # noqa: N818 - as its base is named
    """No worker can be kept alive, or all were ended; its cause is the reason.

    It is a ``concurrent.futures.process.BrokenProcessPool``. A single dead worker is no reason for
    it: the worker is replaced and its tasks run again.
    """


def broken(cause: BaseException) -> BrokenExecutor:
    """A :class:`BrokenExecutor` for futures and calls that fail because of ``cause``."""
    error = BrokenExecutor(f"the executor cannot go on: {cause}")
    error.__cause__ = cause
    return error


class Future(_futures.Future[T]):
    """The result of a task, once it is there; a ``concurrent.futures.Future``.

    It is running from the moment its task is sent to a worker. Until then it can be cancelled, and
    its task then never runs.

    Args:
        call: the call it belongs to.
        index: index of its item in that call.
    """

    def __init__(self, call: ExecutorCall, index: int) -> None:
        super().__init__()
        self._executor_call = call
        self._index = index
        self._is_started = False

    def cancel(self) -> bool:
        """Keep the task from running; False where it was sent to a worker already."""
        with _deferring() as later:
            done = self._executor_call.cancel(self, self._index)
        for waiting in later:
            _run(waiting)
        return done

    def add_done_callback(self, fn: Callable[[_futures.Future[T]], object]) -> None:
        """Call ``fn(self)`` when the future is done or cancelled; at once where it is already.

        Callbacks run one after another, on a thread of the executor or the one that cancels.
        """
        if not self.done():
            self._executor_call.start_callbacks()
        super().add_done_callback(functools.partial(_call, fn))

    def result(self, timeout: float | None = None) -> T:
        """Return the task's result once it is done, or raise its exception.

        Raises:
            concurrent.futures.TimeoutError: ``timeout`` seconds have passed without.
            concurrent.futures.CancelledError: it was cancelled.
        """
        self._wait(timeout)
        try:
            return super().result(0)
        finally:
            # its error would refer to itself, by the traceback
            del self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the task's exception, or None, once it is done; raises as :meth:`result` does."""
        self._wait(timeout)
        return super().exception(0)

    def _wait(self, timeout: float | None) -> None:
        with self._condition:
            in_turns(lambda turn: self._condition.wait_for(self.done, turn), timeout)

    # -- for its call, under the lock

    def cancel_now(self) -> bool:
        """The stdlib's ``cancel``, which also wakes waiting threads; True for the first time."""
        if not super().cancel() or self._is_started:
            return False
        self._is_started = True
        self.set_running_or_notify_cancel()
        return True

    def begin(self) -> None:
        """Its task is sent to a worker, for the first time or again."""
        if not self._is_started:
            self._is_started = True
            self.set_running_or_notify_cancel()

    def settle(self, value: Any, error: BaseException | None) -> None:
        """Set its outcome."""
        # a future that was cancelled, or set by its user, has an outcome of its own
        with contextlib.suppress(_futures.InvalidStateError):
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)


class ExecutorCall(TaskCall[Future[Any]]):
    """Call of an executor, with its futures.

    Args:
        groups: the executor's workers.
        func: the function.
        mode: of its tasks.
        items: of the only task; none for a call that grows.
    """

    def __init__(
        self, groups: WorkerGroups, func: Callable[..., Any], mode: Mode, *items: Any
    ) -> None:
        self._callbacks = groups.callbacks
        #: of the only task
        self.only: Future[Any] = Future(self, 0)
        only = (items[0], self.only) if items else None
        super().__init__(groups, func, mode, only, self._on_dispatch)

    def submit(self, item: Any) -> Future[Any]:
        """Add a task to a call that grows.

        Raises:
            BrokenExecutor: its workers are gone for good.
        """
        future = self.add(item, functools.partial(Future, self))
        if future is None:
            assert self.error is not None, "it is closed under the lock that tasks are added under"
            raise broken(self.error)
        return future

    def cancel_all(self) -> None:
        """Cancel the tasks that were not sent to a worker."""
        with self._dispatcher.lock:
            pending = list(self._receivers.values())
        for future in pending:
            future.cancel()

    def cancel(self, future: Future[Any], index: int) -> bool:
        """Cancel a future of this call."""
        if self._call is None:
            return False
        with self._dispatcher.lock:
            if future.cancel_now():
                self._dispatcher.withdraw(self._call, index, index + 1)
            return future.cancelled()

    def start_callbacks(self) -> None:
        """Start the thread of callbacks: that is impossible while the interpreter ends."""
        self._callbacks.start()

    def _on_dispatch(self, start: int, stop: int) -> None:
        for index in range(start, stop):
            future = self._receivers.get(index)
            if future is not None:
                future.begin()

    # -- sink

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcomes of some tasks."""
        with self._settling():
            super().accept(start, values, errors)

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """Some tasks were given up, or withdrawn."""
        with self._settling():
            super().fail(start, stop, error)

    def broken(self, error: BaseException) -> None:
        """No worker is left, or the function cannot be sent."""
        with self._settling():
            super().broken(error)

    def _failure(self, error: BaseException) -> BaseException:
        # an error of the function itself, such as that it cannot be pickled, is the task's own
        return broken(error) if isinstance(error, FiberError) else error

    @contextlib.contextmanager
    def _settling(self) -> Iterator[None]:
        """Run callbacks on the thread of callbacks: locks are held here."""
        with _deferring() as later:
            yield
        for waiting in later:
            self._callbacks.put(_run, waiting)


@contextlib.contextmanager
def _deferring() -> Iterator[list[_Waiting]]:
    """Collect the callbacks that this thread would call inside the block."""
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
    """Sink of a map's results; its call can be cancelled, and extended where it grows."""

    def __init__(self) -> None:
        super().__init__()
        self._dispatcher: Dispatcher | None = None
        self._call: Call | None = None

    def bind(self, dispatcher: Dispatcher, call: Call) -> None:
        """Note its call and the dispatcher of that."""
        self._dispatcher, self._call = dispatcher, call

    def add(self, items: list[Any]) -> None:
        """Add items to a call that grows."""
        if self._dispatcher is not None and self._call is not None:
            self._dispatcher.extend(self._call, items)

    def close(self) -> None:
        """Add no more items; idempotent."""
        if self._dispatcher is not None and self._call is not None:
            with self._dispatcher.lock:
                if self._call.grows:
                    self._dispatcher.extend(self._call, (), closed=True)

    def cancel_all(self) -> None:
        """Cancel the items that were not sent to a worker."""
        if self._dispatcher is not None and self._call is not None:
            self._dispatcher.withdraw(self._call, 0, self._call.count)


def results(
    core: Core, stream: MapStream, rest: Iterator[Any] | None, chunk: int, timeout: float | None
) -> Iterator[Any]:
    """Iterator of a map's results in order; when it is closed, items that were not sent never run.

    Args:
        core: the executor's.
        stream: receives the results.
        rest: items to be added as results are taken, with a ``buffersize``; else None.
        chunk: items to add at a time.
        timeout: seconds from now for all results.
    """
    return _results(core, stream, rest, chunk, Deadline(timeout))


def _results(
    core: Core, stream: MapStream, rest: Iterator[Any] | None, chunk: int, deadline: Deadline
) -> Iterator[Any]:
    taken = 0
    try:
        while True:
            if rest is not None and taken % chunk == 0:
                rest = _refill(core, stream, rest, chunk)
            try:
                value, error = stream.outcome(deadline.left)
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
            # no reference to a result that the caller may release
            del value
    except KeyboardInterrupt:
        stream.interrupt()
        raise
    finally:
        stream.close()
        stream.cancel_all()


def _refill(core: Core, stream: MapStream, rest: Iterator[Any], chunk: int) -> Iterator[Any] | None:
    if not core.is_referenced:
        stream.close()
        return None
    items = list(itertools.islice(rest, chunk))
    if items:
        core.check()
        stream.add(items)
        return rest
    stream.close()
    return None


_OVER = "cannot schedule new futures after shutdown"
_ENDING = "cannot schedule new futures after interpreter shutdown"


class Core:
    """Workers and calls of an executor, without the executor itself. Thread-safe.

    Args:
        options: of the executor.
    """

    def __init__(self, options: PoolOptions) -> None:
        self.groups = WorkerGroups(options, "executor")
        self._lock = threading.RLock()
        self._open_calls = OpenCalls(self._new_call, alone=self.groups.has_spans)
        #: all calls, and those that map made, until they are done
        self._calls: weakref.WeakSet[ExecutorCall] = weakref.WeakSet()
        self._maps: weakref.WeakSet[MapStream] = weakref.WeakSet()
        self._began = False
        #: False once the executor itself was collected
        self.is_referenced = True
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
            mode, item = task_of(args, kwargs)
            call = self._open_calls.get(func, mode)
            if call is not None:
                return call.submit(item)
            return self._new_call(func, mode, item).only

    def map(
        self,
        func: Callable[..., Any],
        stream: MapStream,
        items: list[Any],
        chunk: int,
        grows: bool,
        progress: bool | Callable[[Progress], object],
        total: int | None,
    ) -> None:
        """Add a call whose results go to ``stream``.

        Args:
            func: the function.
            stream: receives the results.
            items: of the call.
            chunk: items that stay together.
            grows: True where more items are added.
            progress: True to show how far it is, or called with that.
            total: items in all, where that is known.

        Raises:
            RuntimeError: it was shut down.
            BrokenExecutor: no worker can be kept alive.
        """
        sink: Sink = stream
        watch = None
        if progress is not False:
            from fiber._watch.progress import Watch

            sink = watch = Watch(progress, stream)
            stream.on_end = watch.finish
        with self._lock:
            self._begin()
            with _as_broken_executor():
                group, call = self.groups.prepare(
                    func, Mode.STARMAP, sink, None if grows else items, chunk
                )
            if call is not None:
                stream.bind(group.dispatcher, call)
                stream.interrupt = functools.partial(group.interrupt, call)
                self._maps.add(stream)
                group.dispatcher.add(call)
                if grows:
                    stream.add(items)
                if watch is not None:
                    watch.begin(group, call, total)

    def check(self) -> None:
        """Raise where no more tasks are taken."""
        fork.check()
        self.groups.check()

    # -- its end

    def shut_down(self, *, cancel: bool) -> None:
        """Take no more tasks; finish those there are, or cancel those that were not sent."""
        self._close(RuntimeError(_OVER), cancel=cancel)

    def finish(self) -> None:
        """Wait until all tasks are done and the workers have ended; after :meth:`shut_down`."""
        if self.groups.callbacks.is_current():
            # the thread of callbacks cannot wait for its own end
            self.finish_later()
            return
        with self._finishing:
            if not self._began or self._is_finished:
                return
            self.groups.join()
            self._is_finished = True
        for finalizer in (self._terminate, self._at_exit):
            if finalizer is not None:
                finalizer.cancel()

    def finish_later(self) -> None:
        """Like :meth:`shut_down` and :meth:`finish`, on a thread of its own."""
        if not self._began or self._is_finished or self._finisher is not None:
            return
        self._finisher = threading.Thread(
            target=self._shut_down_and_finish, name=f"{self.groups.name}-end", daemon=True
        )
        # while the interpreter ends no thread can be started; the exit handler finishes
        with contextlib.suppress(RuntimeError):
            self._finisher.start()

    def _shut_down_and_finish(self) -> None:
        self.shut_down(cancel=False)
        self.finish()

    def terminate(self) -> None:
        """End the workers at once; unfinished tasks fail with ``BrokenExecutor``."""
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
            self.groups.refuse(refusal)
            calls: list[ExecutorCall | MapStream] = [*self._calls, *self._maps]
            self._open_calls.close()
            for call in calls:
                call.close()
        if cancel:
            for call in calls:
                call.cancel_all()

    # -- inside

    def _begin(self) -> None:
        self.check()
        if not self._began:
            self.groups.begin()
            self._terminate = self.groups.end_with(self.groups)
            # before the workers are ended, since pending futures are waited for
            self._at_exit = util.Finalize(None, _exit, args=(weakref.ref(self),), exitpriority=20)
            self._began = True

    def _new_call(self, func: Any, mode: Mode, *items: Any) -> ExecutorCall:
        with _as_broken_executor():
            call = ExecutorCall(self.groups, func, mode, *items)
        self._calls.add(call)
        return call


@contextlib.contextmanager
def _as_broken_executor() -> Iterator[None]:
    """Raise a ``StartError`` of the workers as :class:`BrokenExecutor`."""
    try:
        yield
    except StartError as error:
        raise broken(error) from error


def _exit(core: weakref.ref[Core]) -> None:
    """Exit handler of a core that may be gone."""
    held = core()
    if held is not None:
        held.exit()


P = ParamSpec("P")


class Executor(_futures.Executor):
    """Workers that run functions; the same as ``concurrent.futures.ProcessPoolExecutor``, and more.

    They are started by the first task. A worker that dies is replaced and its unfinished tasks
    run again; a task that ends ``max_attempts`` workers while it is alone on them fails with
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
        keep_failed: True to keep the function and arguments of failed tasks, so that ``error.replay()``
            and ``fiber replay`` run them again; None for the setting.

    Raises:
        ValueError: a number makes no sense.
        TypeError: the initializer cannot be called, or a number has another type.
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
        keep_failed: bool | None = None,
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
            PoolOptions(
                size=max_workers,
                initializer=initializer,
                initargs=initargs,
                maxtasksperchild=max_tasks_per_child,
                error_handling=error_handling,
                min_size=min,
                max_size=max,
                per_job=processes_per_job,
                max_attempts=max_attempts,
                keep_failed=keep_failed,
                # as in the standard library: an error of argparse in a task is no crash
                task_errors=BaseException,
            )
        )
        self._max_workers = self._core.groups.initial_size

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
        progress: bool | Callable[[Progress], object] = False,
    ) -> Iterator[T]:
        """``fn`` of the items of the iterables, side by side, in parallel; results in order.

        Args:
            fn: called with an item of each iterable.
            iterables: drawn at once, unless there is a ``buffersize``.
            timeout: seconds after which waiting for a result raises ``TimeoutError``.
            chunksize: items that stay together on one worker.
            buffersize: chunks that may be on their way or waiting to be taken; more are drawn as
                results are taken.
            progress: True to show how far it is, or a callable; as for :meth:`fiber.Pool.map`.

        Raises:
            TypeError: ``buffersize`` is no whole number, or ``progress`` nothing of that kind.
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
        total = None
        if progress is not False and grows:
            from fiber._watch.progress import length_of

            lengths = [length_of(iterable) for iterable in iterables]
            known = [length for length in lengths if length is not None]
            total = min(known) if known and len(known) == len(lengths) else None
        self._core.map(fn, stream, items, chunksize, grows, progress, total)
        return results(self._core, stream, rest if grows else None, chunksize, timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks, and end the workers once all tasks are done.

        Args:
            wait: return when they have ended; otherwise at once.
            cancel_futures: cancel tasks that were not sent to a worker.
        """
        if os.getpid() != self._pid:
            return
        self._core.shut_down(cancel=cancel_futures)
        if wait:
            self._core.finish()
        else:
            self._core.finish_later()

    def terminate_workers(self) -> None:
        """End the workers at once; unfinished tasks fail with ``BrokenExecutor``."""
        self._core.terminate()

    def kill_workers(self) -> None:
        """The same as :meth:`terminate_workers`, which leaves no worker a choice either."""
        self._core.terminate()

    @property
    def _processes(self) -> dict[int | None, Process]:
        """The workers' process objects by pid; the stdlib has them, and programs use them."""
        return {process.pid: process for process in self._core.groups.processes()}

    def __repr__(self) -> str:
        cls = type(self)
        return f"<{cls.__module__}.{cls.__qualname__} max_workers={self._max_workers}>"

    def __reduce__(self) -> Any:
        msg = "executors cannot be passed between processes or pickled"
        raise TypeError(msg)

    @unless_finalizing
    def __del__(self) -> None:
        core: Core | None = getattr(self, "_core", None)
        if core is not None and os.getpid() == self._pid:
            # on any thread, whatever locks that holds: this must not wait
            core.is_referenced = False
            core.finish_later()
