"""A backend for joblib: ``fiber.joblib.register()``, then ``joblib.parallel_config(backend="fiber")``.

joblib is no dependency of Fiber's, and is imported with this module only.

Large arrays in the arguments of tasks are shared, see :mod:`fiber.sharing`, where joblib's own
backends write them to files that workers map. An array that is a map of a file
(``numpy.memmap``) stays one where the workers have that file, so that what tasks write to it is
written to the file.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import pickle
import queue
import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import (
    AutoBatchingMixin,
    FallbackToBackend,
    ParallelBackendBase,
    SequentialBackend,
)

from fiber._objects import store
from fiber._runtime.runtime import cpu_count
from fiber._wire import codec
from fiber.executor import Executor, Future
from fiber.sharing import Shared, shared

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
        self._arrays = _Arrays(None)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Number of tasks that can run at the same time.

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

        Args:
            n_jobs: joblib's.
            parallel: the ``Parallel``.
            prefer: joblib's.
            require: joblib's.
            memmapping: joblib's; of ``max_nbytes`` bytes on an array is shared where ``mmap_mode``
                is ``"r"``, and copied where it is another or either is None.

        Raises:
            FallbackToBackend: one worker would do no better than none.
        """
        count = self.effective_n_jobs(n_jobs)
        if count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        if memmapping:
            is_shared = memmapping.get("mmap_mode") == "r"
            self._arrays = _Arrays(memmapping.get("max_nbytes") if is_shared else None)
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
        future: Future[Any] = self._executor.submit(_run, _Batch(func, self._arrays))
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

    def stop_call(self) -> None:
        """A call of a ``Parallel`` is over; joblib calls it."""
        # by the next one the program may have changed them
        self._arrays.clear()

    def terminate(self) -> None:
        """A ``Parallel`` is over; the workers stay for the next one of this backend."""
        # a cycle with it would keep this object, whose last reference ends the workers
        self.parallel = None
        self.reset_batch_stats()

    def _release(self) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)


class _Arrays:
    """Large arrays in the arguments of one call of a ``Parallel``; each is shared once.

    Args:
        least: bytes from which on an array is large; None: none is.
    """

    def __init__(self, least: float | None) -> None:
        self._least = least
        # by id() and weakly: the id of an array that is gone may be another's
        self._shared: dict[int, tuple[weakref.ref[Any], Shared[Any]]] = {}

    def clear(self) -> None:
        """Release the shared arrays; workers keep those that they use."""
        self._shared.clear()

    def reducers(self) -> Mapping[type, Callable[[Any], Any]]:
        """Reducers of arrays, by their types."""
        numpy: Any = sys.modules.get("numpy")
        # a program without it has no arrays
        return {} if numpy is None else {numpy.ndarray: self._reduce, numpy.memmap: self._reduce}

    def _reduce(self, array: Any) -> Any:
        is_large = self._least is not None and array.nbytes >= self._least
        found = _map_of(array)
        # a task that writes to it means the file; one that reads may as well be given the data
        if found is not None and (
            found.mode in ("r+", "w+")
            or (found.mode == "r" and is_large and _is_one_host() and Path(found.filename).exists())
        ):
            return _map_file, _place_in_file(array, found)
        # what is private to this process may be written to by a task as well
        is_private = found is not None and found.mode == "c"
        if not is_large or is_private or array.dtype.hasobject:
            return array.__reduce_ex__(5)
        return _value_of, (self._share(array),)

    def _share(self, array: Any) -> Shared[Any]:
        key = id(array)
        reference, handle = self._shared.get(key, (None, None))
        if reference is None or handle is None or reference() is not array:
            handle = shared(array)
            self._shared[key] = weakref.ref(array, lambda gone: self._forget(key, gone)), handle
        return handle

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        found = self._shared.get(key)
        if found is not None and found[0] is gone:
            del self._shared[key]


class _Batch:
    """A batch of joblib's that is pickled with its large arrays shared."""

    def __init__(self, batch: Callable[[], Any], arrays: _Arrays) -> None:
        self._batch = batch
        self._arrays = arrays

    def __reduce__(self) -> Any:
        buffers: list[memoryview] = []
        pickled = codec.split(self._batch, buffers, self._arrays.reducers())
        return _unpickled, (pickled, *map(pickle.PickleBuffer, buffers))


def _map_of(array: Any) -> Any:
    """The map of a file that an array is, or is a view of; None for other arrays."""
    kind = sys.modules["numpy"].memmap
    found = array if array.size else None
    while found is not None:
        if isinstance(found, kind) and isinstance(found.base, mmap.mmap):
            return found if found.filename is not None else None
        found = getattr(found, "base", None)
    return None


def _is_one_host() -> bool:
    return store.current().node.info.capabilities.same_host


def _place_in_file(array: Any, found: Any) -> tuple[Any, ...]:
    """Arguments of :func:`_map_file` for a view of the map of a file."""
    address = array.__array_interface__["data"][0]
    spans = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    # from its lowest element to its highest, relative to the first
    low, high = sum(min(span, 0) for span in spans), sum(max(span, 0) for span in spans)
    offset = found.offset + address - found.__array_interface__["data"][0]
    status = Path(found.filename).stat()
    mode = "r" if found.mode == "r" else "r+"
    place = offset + low, high - low + array.itemsize, -low
    return str(found.filename), status.st_ino, mode, place, array.dtype, array.shape, array.strides


def _map_file(
    path: str,
    inode: int,
    mode: str,
    place: tuple[int, int, int],
    dtype: Any,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> Any:
    """An array whose memory is a part of a file.

    Args:
        path: the file.
        inode: its number, which is the same on every host that has the file.
        mode: ``"r"`` or ``"r+"``.
        place: where the part begins, its bytes, and where in it the first element is.
        dtype: of the elements.
        shape: of the array.
        strides: of the array, bytes.

    Raises:
        FileNotFoundError: this host does not have that file.
    """
    numpy: Any = importlib.import_module("numpy")
    begin, size, first = place
    try:
        is_it = Path(path).stat().st_ino == inode
    except OSError:
        is_it = False
    if not is_it:
        msg = (
            f"{path}, of which an argument of this task is a writable memory map, is not on the "
            "worker's host; put it on a file system that all hosts have, or return what the task "
            "would write (a map of mode 'r' or 'c' is sent as its data)"
        )
        raise FileNotFoundError(msg)
    part = numpy.memmap(path, numpy.uint8, mode, begin, (size,))
    start = part[first : first + dtype.itemsize].view(dtype)
    return numpy.lib.stride_tricks.as_strided(start, shape, strides, subok=True)


def _value_of(handle: Shared[Any]) -> Any:
    return handle.value


def _unpickled(pickled: bytes, *buffers: Any) -> Any:
    return pickle.loads(pickled, buffers=buffers)


def _run(batch: Any) -> Any:
    return batch()


def _limit_threads(limits: dict[str, str]) -> None:
    """Set the limits in a worker, before numerical libraries are imported there."""
    os.environ.update(limits)
