"""``Pool``: the surface of ``multiprocessing.pool.Pool`` over crews of workers."""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import util
from types import TracebackType
from typing import Any, TypeVar

from fiber import hints, runtime
from fiber.dispatch.callbacks import Callbacks
from fiber.dispatch.calls import Call, Sink
from fiber.dispatch.feeder import Feeder
from fiber.dispatch.protocol import Mode
from fiber.exceptions import TerminatedError
from fiber.launch.crew import Crew, CrewOptions, Needs
from fiber.pool_arguments import chunk_of, require_callable, require_positive, sizes
from fiber.pool_worker import PoolWorker
from fiber.process import Process, requested
from fiber.results import (
    AsyncResult,
    IMapIterator,
    IMapUnorderedIterator,
    MapResult,
    Stream,
    UnorderedStream,
)

__all__ = ["Pool"]

T = TypeVar("T")
_RUN, _CLOSE, _TERMINATE = "RUN", "CLOSE", "TERMINATE"
_numbers = itertools.count(1)


class Pool:
    """Workers that run functions; the same as ``multiprocessing.pool.Pool``, and more.

    A worker that dies is replaced and what it had is run again; a task that ends ``max_attempts``
    workers while it is alone on them is given up with ``WorkerCrashedError``.

    Args:
        processes: workers at first; None for as many as the backend has CPUs.
        initializer: called in each worker first.
        initargs: its arguments.
        maxtasksperchild: chunks that a worker does before it is replaced.
        context: accepted for compatibility.
        error_handling: False where no task may run twice: what a lost worker may have begun is
            reported as failed (``@fiber.meta(retry=False)`` does it for one function).
        min: fewest workers of a pool that shrinks when idle.
        max: most workers of a pool that grows while work waits.
        processes_per_job: workers in one job of the backend.
        max_attempts: see above; None for the setting.

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
    ) -> None:
        # first, so that __del__ of a pool that was never made finds it
        self._state = _TERMINATE
        require_callable(initializer)
        self._runtime = runtime.current()
        size, least, most = sizes(self._runtime, processes, min, max)
        require_positive("maxtasksperchild", maxtasksperchild)
        require_positive("processes_per_job", processes_per_job)
        require_positive("max_attempts", max_attempts)
        args = tuple(initargs)
        self._error_handling = error_handling
        self._options = CrewOptions(
            size=size,
            least=least,
            most=most,
            quota=maxtasksperchild,
            per_job=processes_per_job,
            max_attempts=max_attempts or self._runtime.config.max_attempts,
            make_process=lambda target: PoolWorker(target, initializer, args),
        )
        self._name = f"pool-{next(_numbers)}"
        self._lock = threading.RLock()
        self._callbacks = Callbacks(f"fiber-{self._name}-callbacks")
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._default = self._needs(initializer)
        self._used_default = False
        self._crews: dict[tuple[Any, ...], Crew] = {}
        crew = self._crews[self._default.key] = self._new_crew(self._default)
        try:
            crew.begin()
        except BaseException:
            crew.terminate()
            crew.join()
            raise
        self._state = _RUN
        self._terminate = util.Finalize(
            self, _end, args=(self._crews, self._callbacks), exitpriority=15
        )

    def __repr__(self) -> str:
        cls = type(self)
        return f"<{cls.__module__}.{cls.__qualname__} state={self._state} pool_size={self.size}>"

    @property
    def size(self) -> int:
        """Workers that the pool keeps."""
        return sum(crew.fleet.size for crew in self._crews.values())

    @property
    def _pool(self) -> list[Process]:
        """The workers' process objects, where the stdlib's pool has them and programs look."""
        return [process for crew in self._crews.values() for process in crew.processes()]

    # -- one task

    def apply(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> T:
        """``func(*args, **kwds)`` in a worker; its result, or its exception raised here."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[T], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> AsyncResult[T]:
        """The same, not waited for; callbacks run on a thread of the pool."""
        result: AsyncResult[T] = AsyncResult(self._callbacks.put, callback, error_callback, self)
        item = (tuple(args), dict(kwds or {}))
        self._add(func, Mode.APPLY, result, [item])
        return result

    # -- many tasks

    def map(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[T]:
        """``func`` of each item in parallel; the results in order.

        Args:
            func: called with one item.
            iterable: the items.
            chunksize: items that stay together on one worker, the first exception among them
                ending the rest; None lets the measured duration decide and keeps each apart.

        Raises:
            Exception: of the first failed item by position, once all have run.
            WorkerCrashedError: an item ended its workers; ``results`` has all outcomes.
        """
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[T]], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> MapResult[T]:
        """The same, not waited for."""
        return self._map(func, Mode.MAP, iterable, chunksize, callback, error_callback)

    def starmap(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[T]:
        """As :meth:`map`, each item unpacked into arguments."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> MapResult[T]:
        """The same, not waited for."""
        return self._map(func, Mode.STARMAP, iterable, chunksize, callback, error_callback)

    def imap(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapIterator[T]:
        """An iterator of results in order.

        The iterable is drawn a bounded window ahead of what was taken, so it may be endless;
        :meth:`join` has the rest of it drawn and run, whether results are taken or not.
        """
        return IMapIterator(self._imap(func, iterable, chunksize, Stream()), self)

    def imap_unordered(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> IMapUnorderedIterator[T]:
        """The same with results as they come."""
        stream = self._imap(func, iterable, chunksize, UnorderedStream())
        return IMapUnorderedIterator(stream, self)

    # -- the pool itself

    def resize(self, processes: int) -> None:
        """Keep so many workers from now on; those in surplus finish what they have begun."""
        require_positive("processes", processes)
        with self._lock:
            self._check_running()
            for crew in self._crews.values():
                if crew.began:
                    crew.resize(processes)

    def close(self) -> None:
        """Take no more tasks; workers end when all is done."""
        with self._lock:
            if self._state == _RUN:
                self._state = _CLOSE

    def terminate(self) -> None:
        """End the workers at once; what is not done fails with ``TerminatedError``."""
        with self._lock:
            self._state = _TERMINATE
        self._terminate()

    def join(self) -> None:
        """Wait until the workers have ended, after :meth:`close` or :meth:`terminate`.

        Raises:
            ValueError: neither was called.
        """
        if self._state == _RUN:
            msg = "Pool is still running"
            raise ValueError(msg)
        for stream in list(self._streams):
            stream.hurry()
        crews = list(self._crews.values())
        for crew in crews:
            crew.dispatcher.wait_drained(ValueError("Pool not running"))
        for crew in crews:
            crew.retire()
        for crew in crews:
            crew.join()
        self._callbacks.close()
        self._terminate.cancel()

    def __enter__(self) -> Pool:
        self._check_running()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        msg = "pool objects cannot be passed between processes or pickled"
        raise NotImplementedError(msg)

    def __del__(self) -> None:
        if self._state == _RUN:
            warnings.warn(
                f"unclosed running multiprocessing pool {self!r}",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- inside

    def _check_running(self) -> None:
        if self._state != _RUN:
            msg = "Pool not running"
            raise ValueError(msg)

    def _needs(self, function: Any) -> Needs:
        meta = hints.get_meta(function)
        return Needs(resources=requested(meta, self._runtime), image=meta.image)

    def _new_crew(self, needs: Needs) -> Crew:
        name = self._name if not self._crews else f"{self._name}.{len(self._crews)}"
        return Crew(self._runtime, needs, self._options, name=name)

    def _crew(self, function: Any) -> Crew:
        """The workers that have what a function asks for; the pool's own where it asks nothing."""
        meta = hints.get_meta(function)
        asks = not meta.resources.is_empty or meta.image is not None
        needs = self._needs(function) if asks else self._default
        with self._lock:
            self._check_running()
            crew = self._crews.get(needs.key)
            if crew is None:
                crew = self._crews[needs.key] = self._new_crew(needs)
            default = self._crews[self._default.key]
            if crew is default:
                self._used_default = True
            elif not self._used_default:
                # nobody has used the first workers, and they hold what these may need
                default.rest()
        crew.begin()
        if crew.error is not None:
            raise crew.error
        return crew

    def _retry(self, function: Any) -> bool:
        said = hints.get_meta(function).retry
        return self._error_handling if said is None else said

    def _add(
        self, func: Any, mode: Mode, sink: Sink, items: list[Any] | None, chunk: int = 1
    ) -> tuple[Crew, Call | None]:
        crew = self._crew(func)
        try:
            call = crew.dispatcher.prepare(
                func,
                mode,
                sink,
                items=items,
                chunksize=None if chunk == 1 else chunk,
                retry=self._retry(func),
            )
        except Exception as error:
            # a function that cannot be pickled is a failed task, as in multiprocessing
            sink.broken(error)
            return crew, None
        crew.dispatcher.add(call)
        return crew, call

    def _map(
        self,
        func: Any,
        mode: Mode,
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Any,
        error_callback: Any,
    ) -> MapResult[Any]:
        chunk = chunk_of(chunksize)
        self._check_running()
        items = list(iterable)
        result: MapResult[Any] = MapResult(
            len(items), self._callbacks.put, callback, error_callback, self
        )
        self._add(func, mode, result, items, chunk)
        return result

    def _imap(self, func: Any, iterable: Iterable[Any], chunksize: int, stream: Stream) -> Stream:
        chunk = chunk_of(chunksize)
        crew, call = self._add(func, Mode.MAP, stream, None, chunk)
        if call is not None:
            feeder = Feeder(crew.dispatcher, call, iterable, workers=crew.fleet.size)
            stream.attach(feeder)
            self._streams.add(stream)
            feeder.start()
        return stream


def _end(crews: dict[tuple[Any, ...], Crew], callbacks: Callbacks) -> None:
    """What a pool does at its end, whether it was closed, collected or the program exits."""
    for crew in list(crews.values()):
        crew.dispatcher.end(TerminatedError("the pool was terminated before the task was done"))
        crew.terminate()
    # a pool may be collected on any thread; one of ours would wait for itself
    waits = not threading.current_thread().name.startswith("fiber-")
    for crew in list(crews.values()):
        crew.join(10 if waits else 0)
    callbacks.close(1 if waits else 0)
