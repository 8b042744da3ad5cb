"""Tasks of counted workers: they take a fixed time by a clock of their own, however busy the machine."""

import gc
import sys
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

from fiber._tasks import worker

#: seconds by the clock that :func:`own_clock` gives this process
_now = 0.0
#: calls of functions since :func:`begin_counting_calls`
_called = 0


def own_clock() -> None:
    """Initialize a worker: entries take the sum of the fixed times of their tasks."""
    worker.time = SimpleNamespace(perf_counter=lambda: _now)


def noop(item: Any) -> Any:
    """A task of a microsecond."""
    _take(1e-6)
    return item


def sleep(seconds: float) -> float:
    """A task that takes so long; a long one really does, so that another worker takes the next."""
    _take(seconds)
    if seconds > 0.01:
        time.sleep(seconds)
    return seconds


def _take(seconds: float) -> None:
    global _now  # noqa: PLW0603 - a clock a process
    _now += seconds


def begin_counting_calls() -> None:
    """Count from now on this worker's calls of functions, and collect no garbage."""
    gc.collect()
    gc.disable()
    sys.setprofile(_note_call)


def calls_and_garbage() -> tuple[int, int]:
    """How many calls of functions there were, and how many objects only the collector finds."""
    sys.setprofile(None)
    garbage = gc.collect()
    gc.enable()
    return _called, garbage


def _note_call(frame: Any, event: str, argument: Any) -> None:
    global _called  # noqa: PLW0603 - a count a process
    _called += event == "call"


def begin_tracing(_: Any = None) -> None:
    """Note from now on how much memory Python's objects take in this worker."""
    tracemalloc.start()


def most_traced(_: Any = None) -> int:
    """Bytes that they have taken at most."""
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def get_all(items: Any, count: int, done: Any, go: Any) -> None:
    """Take ``count`` items from a queue, put into ``done``, and stay until ``go`` has an item."""
    for _ in range(count):
        items.get()
    done.put(None)
    go.get()
