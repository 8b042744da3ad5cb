"""Round trips of the rows that send something to another process and wait until it is back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import tasks
from benchmarks.model import Round

__all__ = ["LARGE", "Exchange", "over_pipe", "round_of", "seconds"]

#: sends a message, and returns what comes back
Exchange = Callable[[Any], Any]
#: bytes of a large message
LARGE = 4_000_000


def seconds(exchange: Exchange, message: Any, count: int) -> float:
    """Seconds for one of so many round trips."""
    start = time.perf_counter()
    for _ in range(count):
        exchange(message)
    return (time.perf_counter() - start) / count


def round_of(exchange: Exchange, name: str, small: int, large: int) -> Round:
    """A round of two metrics: ``name`` is microseconds of a small message, ``name-bytes`` MB/s of large ones.

    Args:
        exchange: makes a round trip; one large message goes ahead, after which the process is up.
        name: of the first metric.
        small: how many small messages.
        large: how many large ones.
    """
    message = bytes(LARGE)
    exchange(message)

    def once() -> dict[str, float]:
        each = seconds(exchange, {"step": 1}, max(1, small))
        took = seconds(exchange, message, max(1, large))
        return {name: 1e6 * each, f"{name}-bytes": 2 * LARGE / took / 1e6}

    return once


@contextlib.contextmanager
def over_pipe(mp: Any) -> Iterator[Exchange]:
    """A pipe of ``mp`` to a process that sends back what it gets, and ends with the context."""
    here, there = mp.Pipe()
    process = mp.Process(target=tasks.echo, args=(there,))
    process.start()
    there.close()

    def exchange(message: Any) -> Any:
        here.send(message)
        return here.recv()

    yield exchange
    here.send(None)
    process.join()
