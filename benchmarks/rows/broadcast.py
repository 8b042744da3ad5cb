"""One big array for all tasks: in a closure, and as a shared value; what crosses between processes.

Counted is what the master hands to workers, by whatever way: bytes of messages, and bytes that are
written into memory which others map. ``multiprocessing`` gets a partial function that holds the
array, since it can send no closures, and has no shared value of its own.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from benchmarks import contenders, tasks
from benchmarks.model import BASELINE, Bar, Metric, Round, Sizes

WORKERS = 5
CONTENDERS = (contenders.OURS, BASELINE)
METRICS = (
    Metric(
        "broadcast-closure",
        f"64 MB closure, {WORKERS} workers: copies made in all",
        "copies",
        bars=(Bar(1.0, None),),
    ),
    Metric(
        "broadcast-shared",
        f"64 MB shared value, {WORKERS} workers: copies made in all",
        "copies",
        bars=(Bar(1.0, None),),
    ),
    Metric(
        "broadcast-time",
        f"64 MB shared value, {WORKERS} workers: made and read",
        "s",
        bars=(Bar(1.0),),
    ),
)


@contextlib.contextmanager
def prepare(contender: str, sizes: Sizes) -> Iterator[Round]:
    import numpy as np

    array = np.ones(sizes.closure // 8)
    items = range(2 * WORKERS)
    with contenders.session(contender, WORKERS) as pool:

        def once() -> dict[str, float]:
            # another content each time, so that none is there from the round before
            array[0] += 1
            with _counted(contender) as handed:
                found = pool.map(_closing_over(contender, array), items)
                assert [last for _, last in found] == [1 + n for n in items]
            closure = sum(handed) / array.nbytes
            start = time.perf_counter()
            with _counted(contender) as handed:
                found = pool.map(_reading(contender, array), items)
            seconds = time.perf_counter() - start
            assert [last for _, last in found] == [1 + n for n in items]
            # to a hundredth: messages have heads, and memory has too
            return {
                "broadcast-closure": round(closure, 2),
                "broadcast-shared": round(sum(handed) / array.nbytes, 2),
                "broadcast-time": seconds,
            }

        yield once


def _closing_over(contender: str, array: Any) -> Callable[[int], Any]:
    if contender == BASELINE:
        return functools.partial(tasks.read_last, array)

    def read(item: int) -> Any:
        return tasks.read_last(array, item)

    return read


def _reading(contender: str, array: Any) -> Callable[[int], Any]:
    if contender == BASELINE:
        return functools.partial(tasks.read_last, array)
    import fiber

    return functools.partial(tasks.read_shared, fiber.shared(array))


@contextlib.contextmanager
def _counted(contender: str) -> Iterator[list[int]]:
    """Sizes of what this process hands to others meanwhile."""
    handed: list[int] = []
    with contextlib.ExitStack() as stack:

        def watch(owner: Any, name: str, size: Callable[..., int]) -> None:
            real = getattr(owner, name)

            def noting(*arguments: Any, **named: Any) -> Any:
                handed.append(size(*arguments))
                return real(*arguments, **named)

            stack.enter_context(mock.patch.object(owner, name, noting))

        if contender == BASELINE:
            from multiprocessing.connection import Connection

            watch(Connection, "_send_bytes", lambda *arguments: len(arguments[1]))
        else:
            from fiber._objects.memory.backing import Draft
            from fiber._wire.endpoint import Peer

            watch(Draft, "write", lambda *arguments: len(arguments[2]))
            # behind the peer itself, kind, target and number; there may be none
            watch(
                Peer,
                "send",
                lambda *arguments: sum(len(one) for body in arguments[4:] for one in body),
            )
        yield handed
