"""Who is compared: each as a pool with ``map`` and ``apply``, imported only when it is its turn."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from benchmarks import tasks
from benchmarks.model import BASELINE, JUDGED, OURS

#: distributions of those that take part when they are installed
OTHERS = {
    "loky": "loky",
    "distributed": "distributed",
    "ipyparallel": "ipyparallel",
    "ray": "ray",
    "pyspark": "pyspark",
    "dragon": "dragonhpc",
}
#: another ``multiprocessing`` for clusters; on this machine alone
DRAGON = "dragon"


class Session(Protocol):
    """A pool of some framework; a task of ``map`` is sent on its own, as by ``chunksize=1``."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The results in order."""

    def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
        """The result of one task, waited for."""

    def stream(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        """The results as they come; where there is such a thing."""


def installed() -> list[str]:
    """The other frameworks that can be imported, and run."""
    found = [name for name in OTHERS if importlib.util.find_spec(name) is not None]
    return [name for name in found if name != "pyspark" or shutil.which("java")]


def launcher(contender: str) -> list[str]:
    """What a contender's program is started by, before its own command."""
    if contender != DRAGON:
        return []
    # beside the interpreter, which need not be on PATH
    return [str(Path(sys.executable).with_name("dragon")), "-s"]


def slowness(contender: str) -> int:
    """By how much rows that count tasks shorten a round; those of 1 ms and more a task need it."""
    return 1 if contender in JUDGED else 20


def versions() -> dict[str, str]:
    """Distributions that matter to a figure, where they are installed."""
    found = {}
    for name in ("fiber-core", "pynng", "cloudpickle", "numpy", *OTHERS.values()):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def module(contender: str) -> Any:
    """What has ``Process``, ``Queue`` and ``Pool``: fiber, the standard library's fork context, or DragonHPC."""
    if contender == OURS:
        import fiber

        return fiber
    if contender == BASELINE:
        import multiprocessing

        return multiprocessing.get_context("fork")
    if contender == DRAGON:
        # puts its start method into the standard library's module
        import multiprocessing

        import dragon  # noqa: F401

        multiprocessing.set_start_method(DRAGON, force=True)
        return multiprocessing.get_context(DRAGON)
    msg = f"{contender!r} has no processes and queues"
    raise ValueError(msg)


@contextlib.contextmanager
def repeating(
    module: Any, action: Callable[..., Any], *arguments: Any, processes: int = 1
) -> Iterator[Sequence[Any]]:
    """Ends of pipes to processes that do something as often as is sent, and send the seconds back."""
    ends, running = [], []
    for _ in range(processes):
        here, there = module.Pipe()
        process = module.Process(target=tasks.repeat, args=(there, action, *arguments))
        process.start()
        # it is up
        here.send(1 if processes == 1 else 0)
        here.recv()
        ends.append(here)
        running.append(process)
    yield ends
    for end, process in zip(ends, running, strict=True):
        end.send(None)
        process.join()


#: seconds that all workers of a pool have to come up
_PATIENCE = 600.0


@contextlib.contextmanager
def session(contender: str, workers: int) -> Iterator[Session]:
    """A pool whose workers are all up; of the judged ones each has been seen.

    Raises:
        TimeoutError: some have not come up.
    """
    # so long that none does the work of another while that is asked
    pause = 0.02 if workers <= 64 else 0.1
    with _OPENERS[contender](workers) as opened:
        deadline = time.monotonic() + _PATIENCE
        seen: set[int] = set()
        while len(seen) < workers:
            seen.update(opened.map(_pause, [pause] * (2 * workers)))
            if contender not in JUDGED:
                break
            if time.monotonic() > deadline:
                msg = f"{len(seen)} of {workers} workers are up after {_PATIENCE:.0f} s"
                raise TimeoutError(msg)
        yield opened


def _pause(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


class _Pool:
    """The standard library's interface."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        found: list[Any] = self._pool.map(function, items, chunksize=1)
        return found

    def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
        return self._pool.apply(function, (item,))

    def stream(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        found: Iterator[Any] = self._pool.imap_unordered(function, items)
        return found


class _Others:
    """What none of the other frameworks is asked for."""

    def stream(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        raise NotImplementedError


@contextlib.contextmanager
def _pool(contender: str, workers: int) -> Iterator[Session]:
    with module(contender).Pool(workers) as pool:
        yield _Pool(pool)


class _Executor(_Others):
    """The interface of ``concurrent.futures``."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return list(self._executor.map(function, items, chunksize=1))

    def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
        return self._executor.submit(function, item).result()


@contextlib.contextmanager
def _loky(workers: int) -> Iterator[Session]:
    import loky

    executor = loky.get_reusable_executor(max_workers=workers)
    yield _Executor(executor)
    executor.shutdown(wait=True)


class _Dask(_Others):
    def __init__(self, client: Any) -> None:
        self._client = client

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        found: list[Any] = self._client.gather(self._client.map(function, items, pure=False))
        return found

    def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
        return self._client.submit(function, item, pure=False).result()


@contextlib.contextmanager
def _distributed(workers: int) -> Iterator[Session]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield _Dask(client)


class _View(_Others):
    def __init__(self, view: Any) -> None:
        self._view = view

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        return list(self._view.map_sync(function, list(items), chunksize=1))

    def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
        return self._view.apply_sync(function, item)


@contextlib.contextmanager
def _ipyparallel(workers: int) -> Iterator[Session]:
    import ipyparallel

    with ipyparallel.Cluster(n=workers, log_level=logging.ERROR) as client:
        yield _View(client.load_balanced_view())


class _Ray(_Others):
    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._remotes: dict[int, Any] = {}

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        remote = self._remote(function)
        found: list[Any] = self._ray.get([remote(item) for item in items])
        return found

    def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
        return self._ray.get(self._remote(function)(item))

    def _remote(self, function: Callable[[Any], Any]) -> Any:
        # exported once; the function is kept, so that its id stays its own
        if id(function) not in self._remotes:
            self._remotes[id(function)] = self._ray.remote(function).remote, function
        return self._remotes[id(function)][0]


@contextlib.contextmanager
def _ray(workers: int) -> Iterator[Session]:
    import ray

    ray.init(
        num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
    )
    try:
        yield _Ray(ray)
    finally:
        ray.shutdown()


class _Spark(_Others):
    def __init__(self, context: Any) -> None:
        self._context = context

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        given = list(items)
        found: list[Any] = self._context.parallelize(given, len(given)).map(function).collect()
        return found

    def apply(self, function: Callable[[Any], Any], item: Any) -> Any:
        return self.map(function, [item])[0]


@contextlib.contextmanager
def _pyspark(workers: int) -> Iterator[Session]:
    from pyspark import SparkConf, SparkContext

    settings = {
        "spark.master": f"local[{workers}]",
        "spark.app.name": "benchmarks",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        # nothing leaves this machine
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    with SparkContext(conf=SparkConf().setAll(list(settings.items()))) as context:
        yield _Spark(context)


_OPENERS: dict[str, Callable[[int], contextlib.AbstractContextManager[Session]]] = {
    OURS: functools.partial(_pool, OURS),
    BASELINE: functools.partial(_pool, BASELINE),
    DRAGON: functools.partial(_pool, DRAGON),
    "loky": _loky,
    "distributed": _distributed,
    "ipyparallel": _ipyparallel,
    "ray": _ray,
    "pyspark": _pyspark,
}
