"""A backend for joblib: ``fiber.joblib.register()``, then ``joblib.parallel_config(backend="fiber")``.

joblib is no dependency of Fiber's, and is imported with this module only.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from fiber._runtime.functions import cpu_count
from fiber.executor import Executor, Future

__all__ = ["FiberBackend", "register"]


def register(name: str = "fiber", *, make_default: bool = False) -> None:
    """Make the backend known to joblib.

    Args:
        name: its name in ``parallel_config`` and ``Parallel``.
        make_default: use it where no backend is named.
    """
    register_parallel_backend(name, FiberBackend, make_default=make_default)


class FiberBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc] # untyped bases
    """Runs joblib's batches in Fiber's workers, on the selected backend of Fiber's.

    The workers stay from one ``Parallel`` call to the next inside one ``parallel_config``. Parallel
    calls inside a task use threads, and calls inside those are sequential, as with loky. Without
    ``n_jobs`` there are as many workers as the backend has CPUs.

    Args:
        nesting_level: joblib's.
        inner_max_num_threads: threads of numerical libraries in each worker; without it, the
            worker's share of the CPUs, unless the environment says something else.
        options: of :class:`fiber.executor.Executor`: ``max_attempts``, ``error_handling`` and others.
    """

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    supports_sharedmem = False
    uses_threads = False
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads, **options
        )
        self.parallel: Any = None
        self._executor: Executor | None = None
        self._made_with: tuple[int, int | None] | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many tasks can run at the same time.

        Raises:
            ValueError: ``n_jobs`` is 0.
        """
        if n_jobs == 0:
            msg = "n_jobs == 0 in Parallel has no meaning"
            raise ValueError(msg)
        if n_jobs is None:
            return 1
        if n_jobs < 0:
            return max(cpu_count() + 1 + n_jobs, 1)
        return n_jobs

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: str | None = None,
        require: str | None = None,
        **memmapping: Any,
    ) -> int:
        """Get workers ready for a ``Parallel``; joblib calls it.

        Raises:
            FallbackToBackend: one worker would do no better than none.
        """
        count = self.effective_n_jobs(n_jobs)
        if count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        needed = count, self.inner_max_num_threads
        if self._executor is None or self._made_with != needed:
            self._release()
            limits = self._prepare_worker_env(n_jobs=count)
            self._executor = Executor(
                count, initializer=_limit_threads, initargs=(limits,), **self.backend_kwargs
            )
            self._made_with = needed
        return count

    def submit(
        self, func: Callable[[], Any], callback: Callable[[Any], object] | None = None
    ) -> Future[Any]:
        """Submit a batch; joblib calls it."""
        assert self._executor is not None, "joblib configures a backend before it uses it"
        future: Future[Any] = self._executor.submit(_run, func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    #: its name in joblib before 1.5
    apply_async = submit

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """The results of a batch, or its exception raised; joblib calls it."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """A task failed: end the others at once; joblib calls it."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)
            executor.kill_workers()
        # joblib up to 1.6 would give batches that it had cut and not submitted to the next call
        cut: queue.Queue[Any] | None = getattr(self.parallel, "_ready_batches", None)
        with contextlib.suppress(queue.Empty):
            while cut is not None:
                cut.get_nowait()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)

    def terminate(self) -> None:
        """A ``Parallel`` is over; the workers stay for the next one of this backend."""
        # a cycle with it would keep this object, whose last reference ends the workers
        self.parallel = None
        self.reset_batch_stats()

    def _release(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


def _run(batch: Callable[[], Any]) -> Any:
    return batch()


def _limit_threads(limits: dict[str, str]) -> None:
    """Set the limits in a worker, before numerical libraries are imported there."""
    os.environ.update(limits)
