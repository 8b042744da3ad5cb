"""``Executor``: the surface of ``concurrent.futures`` over crews of workers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures as _futures
from typing import Any, ParamSpec, TypeVar

from fiber._workers.options import Wish, require_int
from fiber.executor_core import Core
from fiber.executor_map import MapStream, results
from fiber.futures import BrokenExecutor, Future
from fiber.process import Process

__all__ = ["BrokenExecutor", "Executor", "Future"]

P = ParamSpec("P")
T = TypeVar("T")


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
