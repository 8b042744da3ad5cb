"""``Pool``: the interface of ``multiprocessing.pool.Pool`` over groups of workers on any backend.

A program's first pool waits for its supervisor, and that for what is imported before it is started:
so this module imports little, and the rest while the supervisor gets ready.
"""

from __future__ import annotations

import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from fiber._base import values
from fiber._runtime.start import supervisor_ahead, warm_runtime

if TYPE_CHECKING:
    from fiber._tasks.call import Call, Session
    from fiber._watch.progress import Watch
    from fiber._workers.group import WorkerGroup
    from fiber.process import Process
    from fiber.results import AsyncResult, IMapIterator, IMapUnorderedIterator, MapResult, Stream
    from fiber.watching import Progress

    ApplyResult = AsyncResult

__all__ = [
    "ApplyResult",
    "AsyncResult",
    "IMapIterator",
    "IMapUnorderedIterator",
    "MapResult",
    "MaybeEncodingError",
    "Pool",
    "RemoteTraceback",
    "ThreadPool",
]

S = TypeVar("S")
T = TypeVar("T")
if TYPE_CHECKING:
    from multiprocessing.pool import (  # type: ignore[attr-defined] # the stubs do not know the errors
        MaybeEncodingError,
        RemoteTraceback,
        ThreadPool,
    )

    # what type checkers know by themselves; no Python before 3.11 has it at run time
    from typing_extensions import TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")
RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"
#: names of :mod:`fiber.results` that this module has, too
_RESULTS = {
    "ApplyResult": "AsyncResult",
    "AsyncResult": "AsyncResult",
    "IMapIterator": "IMapIterator",
    "IMapUnorderedIterator": "IMapUnorderedIterator",
    "MapResult": "MapResult",
}


class _settable(Generic[T]):  # noqa: N801 - a decorator, as property is
    """A property until an object gets an attribute of that name.

    Subclasses of the stdlib's pool use names that it does not have, such as ``size``, for their own.
    """

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, pool: Any, owner: object = None) -> T:
        value: Any = self if pool is None else self._read(pool)
        return cast("T", value)


def __getattr__(name: str) -> Any:
    # imported when used, since the import takes time
    if name in _RESULTS:
        from fiber import results

        return getattr(results, _RESULTS[name])
    # the stdlib's own
    if name in {"MaybeEncodingError", "RemoteTraceback", "ThreadPool"}:
        from multiprocessing import pool

        return getattr(pool, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


@values.frozen
class _Map:
    """A map that was begun."""

    result: MapResult[Any]
    #: of its progress, where that is shown
    watch: Watch | None
    group: WorkerGroup
    #: None where the function cannot be pickled
    call: Call | None


class Pool:
    """Workers that run functions; the same as ``multiprocessing.pool.Pool``, and more.

    A worker that dies is replaced and its unfinished tasks run again; a task that ends
    ``max_attempts`` workers while it is alone on them fails with ``WorkerCrashedError``.

    Args:
        processes: workers at first; None for as many as the backend has CPUs.
        initializer: called in each worker first.
        initargs: its arguments.
        maxtasksperchild: chunks that a worker does before it is replaced.
        context: accepted for compatibility.
        error_handling: False where no task may run twice: tasks that a lost worker may have begun
            fail (``@fiber.meta(retry=False)`` does it for one function).
        min: fewest workers of a pool that shrinks when idle.
        max: most workers of a pool that grows while work waits.
        processes_per_job: workers in one job of the backend.
        max_attempts: see above; None for the setting.
        keep_failed: True to keep the function and arguments of failed tasks, so that ``error.replay()``
            and ``fiber replay`` run them again; None for the setting.

    Raises:
        ValueError: a number makes no sense.
        Exception: what pickling ``initializer`` or its arguments raised.
        SubmitError: the backend refused the first worker.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        *,
        error_handling: bool = True,
        min: int | None = None,
        max: int | None = None,
        processes_per_job: int = 1,
        max_attempts: int | None = None,
        keep_failed: bool | None = None,
    ) -> None:
        # first, so that __del__ of a pool that was never made finds it
        self._state = TERMINATE
        with supervisor_ahead():
            from fiber._base.threads import TURN
            from fiber._workers.group import PoolOptions, WorkerGroups

            options = PoolOptions(
                size=processes,
                initializer=initializer,
                initargs=initargs,
                maxtasksperchild=maxtasksperchild,
                error_handling=error_handling,
                min_size=min,
                max_size=max,
                per_job=processes_per_job,
                max_attempts=max_attempts,
                keep_failed=keep_failed,
            )
            warm_runtime(options.validate)
            from fiber._workers.open_calls import OpenCalls, TaskCall, task_of
            from fiber.results import AsyncResult

            # not looked up for each task
            self._result_class = AsyncResult
            self._turn = TURN
            self._lock = threading.RLock()
            # of the worker that was given the last task of apply()
            self._last_session: Session | None = None
            self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
            self._groups = WorkerGroups(options, "pool")
            self._open_calls = OpenCalls(
                functools.partial(TaskCall, self._groups), alone=self._groups.has_spans
            )
            self._task_of = task_of
            self._callbacks = self._groups.callbacks
            self._groups.begin()
        self._state = RUN
        self._terminate = self._groups.end_with(self)

    def __repr__(self) -> str:
        cls = type(self)
        return f"<{cls.__module__}.{cls.__qualname__} state={self._state} pool_size={self._groups.size}>"

    @_settable
    def size(self) -> int:
        """Workers that the pool keeps."""
        return self._groups.size

    @_settable
    def _processes(self) -> int:
        """Same as :attr:`size`; the stdlib's pool has it, and programs use it."""
        return self._groups.size

    @property
    def _pool(self) -> list[Process]:
        """The workers' process objects; the stdlib's pool has them, and programs use them."""
        return self._groups.processes()

    # -- one task

    # where arguments are a tuple and there are no keywords, they are checked

    @overload
    def apply(self, func: Callable[[Unpack[Ts]], T], args: tuple[Unpack[Ts]] = ...) -> T: ...
    @overload
    def apply(
        self, func: Callable[..., T], args: Iterable[Any], kwds: Mapping[str, Any] | None
    ) -> T: ...
    @overload
    def apply(
        self, func: Callable[..., T], args: Iterable[Any] = ..., *, kwds: Mapping[str, Any] | None
    ) -> T: ...
    @overload
    def apply(self, func: Callable[..., T], args: list[Any] | Iterator[Any]) -> T: ...
    def apply(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> T:
        """``func(*args, **kwds)`` in a worker; its result, or its exception raised here."""
        result: AsyncResult[T] | None = None
        entry = 0

        def begin() -> AsyncResult[T]:
            nonlocal result, entry
            result = self.apply_async(func, args, kwds)
            if result.sent is not None:
                self._last_session, entry = result.sent
            return result

        session = self._last_session
        reading = None if session is None else session.reading
        if session is None or reading is None:
            return begin().get()

        def is_over() -> bool:
            # also where another worker was given it
            return result is None or result.sent is None or result.sent[0] is not session

        def watch() -> None:
            begin().watch(reading.wake)

        # the next task goes to the same worker in most cases: it may answer before this thread goes on
        reading.wait(lambda _, data: session.look(entry, data), is_over, self._turn, watch)
        if result is None:
            return begin().get()
        result.unwatch(reading.wake)
        return result.get()

    @overload
    def apply_async(
        self,
        func: Callable[[Unpack[Ts]], T],
        args: tuple[Unpack[Ts]] = ...,
        *,
        callback: Callable[[T], object] | None = ...,
        error_callback: Callable[[BaseException], object] | None = ...,
    ) -> AsyncResult[T]: ...
    @overload
    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any],
        kwds: Mapping[str, Any] | None,
        callback: Callable[[T], object] | None = ...,
        error_callback: Callable[[BaseException], object] | None = ...,
    ) -> AsyncResult[T]: ...
    @overload
    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = ...,
        *,
        kwds: Mapping[str, Any] | None,
        callback: Callable[[T], object] | None = ...,
        error_callback: Callable[[BaseException], object] | None = ...,
    ) -> AsyncResult[T]: ...
    @overload
    def apply_async(
        self,
        func: Callable[..., T],
        args: list[Any] | Iterator[Any],
        *,
        callback: Callable[[T], object] | None = ...,
        error_callback: Callable[[BaseException], object] | None = ...,
    ) -> AsyncResult[T]: ...
    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[T], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> AsyncResult[T]:
        """Like :meth:`apply`, without waiting; a callback runs on a thread of the pool before the result is ready."""
        result: AsyncResult[T]
        result = self._result_class(self._callbacks, callback, error_callback, self)
        mode, item = self._task_of(tuple(args), dict(kwds or {}))
        self._groups.check()
        call = self._open_calls.get(func, mode)
        if call is None or call.add(item, lambda _: result) is None:
            self._groups.add(func, mode, result, [item], one_by_one=True)
        else:
            # by the time this is read it may be another thread's, whose entry is not waited for
            result.sent = call.sent
        return result

    # -- many tasks

    def map(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S],
        chunksize: int | None = None,
        *,
        progress: bool | Callable[[Progress], object] = False,
    ) -> list[T]:
        """``func`` of each item in parallel; the results in order.

        Args:
            func: called with one item.
            iterable: the items.
            chunksize: items that stay together on one worker, the first exception among them
                ending the rest; None lets the measured duration decide and keeps each apart.
            progress: True to show how far it is: as a bar on a terminal or in a notebook, else as
                lines on stderr; or a callable, which is given a :class:`fiber.watching.Progress` now
                and then, on a thread of its own, and once at the end. An error of its own ends that,
                and not the tasks.

        Raises:
            Exception: of the first failed item by position, once all have run.
            WorkerCrashedError: an item ended its workers; ``results`` has all outcomes.
            KeyboardInterrupt: this was interrupted. Its tasks are ended, workers that go on with one
                are replaced, and the pool can be used again.
        """
        return self._map_and_wait(func, iterable, chunksize, progress)

    def map_async(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S],
        chunksize: int | None = None,
        callback: Callable[[list[T]], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        progress: bool | Callable[[Progress], object] = False,
    ) -> MapResult[T]:
        """Like :meth:`map`, without waiting."""
        return self._map(func, iterable, chunksize, progress, callback, error_callback).result

    def starmap(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        *,
        progress: bool | Callable[[Progress], object] = False,
    ) -> list[T]:
        """Like :meth:`map`, with each item unpacked into arguments."""
        return self._map_and_wait(func, iterable, chunksize, progress, star=True)

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
        *,
        progress: bool | Callable[[Progress], object] = False,
    ) -> MapResult[T]:
        """Like :meth:`starmap`, without waiting."""
        return self._map(
            func, iterable, chunksize, progress, callback, error_callback, star=True
        ).result

    def imap(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S],
        chunksize: int = 1,
        *,
        progress: bool | Callable[[Progress], object] = False,
    ) -> IMapIterator[T]:
        """An iterator of results in order.

        The iterable is drawn a bounded window ahead of what was taken, so it may be endless;
        :meth:`join` has the rest of it drawn and run, whether results are taken or not.
        """
        from fiber.results import IMapIterator, Stream

        return IMapIterator(self._imap(func, iterable, chunksize, Stream(), progress), self)

    def imap_unordered(
        self,
        func: Callable[[S], T],
        iterable: Iterable[S],
        chunksize: int = 1,
        *,
        progress: bool | Callable[[Progress], object] = False,
    ) -> IMapUnorderedIterator[T]:
        """Like :meth:`imap`, with results in the order in which they come."""
        from fiber.results import IMapUnorderedIterator, UnorderedStream

        stream = self._imap(func, iterable, chunksize, UnorderedStream(), progress)
        return IMapUnorderedIterator(stream, self)

    # -- the pool itself

    def resize(self, processes: int) -> None:
        """Keep ``processes`` workers from now on; those in surplus finish what they have begun."""
        self._groups.resize(processes)

    def close(self) -> None:
        """Take no more tasks; the workers end when all tasks are done."""
        with self._lock:
            if self._state == RUN:
                self._state = CLOSE
                self._groups.refuse(ValueError("Pool not running"))
                self._open_calls.close()

    def terminate(self) -> None:
        """End the workers at once; unfinished tasks fail with ``TerminatedError``."""
        with self._lock:
            self._state = TERMINATE
            self._groups.refuse(ValueError("Pool not running"))
        self._terminate()

    def join(self) -> None:
        """Wait until the workers have ended, after :meth:`close` or :meth:`terminate`.

        Raises:
            ValueError: neither was called.
        """
        if self._state == RUN:
            msg = "Pool is still running"
            raise ValueError(msg)
        for stream in list(self._streams):
            stream.drain()
        self._groups.join()
        self._terminate.cancel()

    def __enter__(self) -> Pool:
        self._check_running()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        msg = "pool objects cannot be passed between processes or pickled"
        raise NotImplementedError(msg)

    def __del__(self) -> None:
        if self._state == RUN:
            warnings.warn(
                f"unclosed running multiprocessing pool {self!r}",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- inside

    def _check_running(self) -> None:
        self._groups.check()

    def _map(
        self,
        func: Any,
        iterable: Iterable[Any],
        chunksize: int | None,
        progress: bool | Callable[[Progress], object],
        callback: Any = None,
        error_callback: Any = None,
        *,
        star: bool = False,
    ) -> _Map:
        from fiber._tasks.protocol import Mode
        from fiber._workers.group import checked_chunksize
        from fiber.results import MapResult

        mode, chunk = Mode.STARMAP if star else Mode.MAP, checked_chunksize(chunksize)
        self._check_running()
        items = list(iterable)
        result: MapResult[Any] = MapResult(
            len(items), self._callbacks, callback, error_callback, self
        )
        if progress is False:
            return _Map(result, None, *self._groups.add(func, mode, result, items, chunk))
        from fiber._watch.progress import Watch

        watch = Watch(progress, result)
        group, call = self._groups.add(func, mode, watch, items, chunk)
        watch.begin(group, call)
        return _Map(result, watch, group, call)

    def _map_and_wait(
        self,
        func: Any,
        iterable: Iterable[Any],
        chunksize: int | None,
        progress: bool | Callable[[Progress], object],
        *,
        star: bool = False,
    ) -> list[Any]:
        begun = self._map(func, iterable, chunksize, progress, star=star)
        try:
            return begun.result.get()
        except KeyboardInterrupt:
            if begun.call is not None:
                begun.group.interrupt(begun.call)
            raise
        finally:
            if begun.watch is not None:
                begun.watch.finish()

    def _imap(
        self,
        func: Any,
        iterable: Iterable[Any],
        chunksize: int,
        stream: Stream,
        progress: bool | Callable[[Progress], object],
    ) -> Stream:
        from fiber._tasks.protocol import Mode
        from fiber._workers.group import checked_chunksize

        chunk = checked_chunksize(chunksize)
        if progress is False:
            group, call = self._groups.add(func, Mode.MAP, stream, None, chunk)
        else:
            from fiber._watch.progress import Watch, length_of

            watch = Watch(progress, stream)
            group, call = self._groups.add(func, Mode.MAP, watch, None, chunk)
            watch.begin(group, call, length_of(iterable))
            stream.on_end = watch.finish
        if call is not None:
            from fiber._workers.open_calls import Feeder

            stream.interrupt = functools.partial(group.interrupt, call)

            feeder = Feeder(group.dispatcher, call, iterable, workers=group.manager.size)
            stream.attach(feeder)
            self._streams.add(stream)
            feeder.start()
        return stream
