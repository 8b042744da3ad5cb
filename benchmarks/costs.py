"""``python -m benchmarks.costs``: what a task of each kind costs beside time, counted not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

import fiber
from benchmarks import tasks
from benchmarks.counters import Costs, counting


def main() -> None:
    """Print frames, bytes, system calls of this process, and waits of all, a task."""
    table = Table("", "tasks", *Costs._fields, title="a task costs", title_justify="left")
    for name, count, costs in found():
        table.add_row(name, f"{count:,}", *(f"{value:,.4g}" for value in costs))
    Console().print(table)


def found(*, tasks: Any = tasks, **options: Any) -> list[tuple[str, int, Costs]]:
    """Name, number and costs of each kind of task.

    Args:
        tasks: where ``noop`` and ``sleep`` are from.
        options: of the pool.
    """
    kinds: list[tuple[str, int, Callable[[Any, int], Any]]] = [
        ("map, no-ops", 20_000, lambda pool, count: pool.map(tasks.noop, range(count))),
        ("map, 1 ms", 2_000, lambda pool, count: pool.map(tasks.sleep, [0.001] * count)),
        ("imap, no-ops", 20_000, lambda pool, count: list(pool.imap(tasks.noop, range(count)))),
        (
            "apply, no-op",
            1_000,
            lambda pool, count: [pool.apply(tasks.noop, (item,)) for item in range(count)],
        ),
        (
            "map, 8 MB there and back",
            4,
            lambda pool, count: pool.map(tasks.noop, [bytes(8_000_000)] * count),
        ),
    ]
    all_found = []
    with fiber.Pool(2, **options) as pool:
        pool.map(tasks.sleep, [0.02] * 8)
        pids = [process.pid for process in pool._pool]  # noqa: SLF001 - as multiprocessing's pool has it
        for name, count, run in kinds:
            run(pool, count)  # the function is known, its pace too
            with counting(pids) as counts:
                run(pool, count)
            all_found.append((name, count, counts.each(count)))
    return [*all_found, queue(20_000), _pipe(1_000)]


def queue(count: int) -> tuple[str, int, Costs]:
    """The same for a queue that another process writes to."""
    items, ready, go = fiber.Queue(), fiber.SimpleQueue(), fiber.SimpleQueue()
    process = fiber.Process(target=tasks.write_and_stay, args=(items, ready, go, count))
    process.start()
    ready.get()
    pid = process.pid
    assert pid is not None
    with counting([pid]) as counts:
        go.put(None)
        for _ in range(count):
            items.get()
    go.put(None)
    items.get()
    process.join()
    return "Queue, from another process", count, counts.each(count)


def _pipe(count: int) -> tuple[str, int, Costs]:
    here, there = fiber.Pipe()
    process = fiber.Process(target=tasks.echo, args=(there,))
    process.start()
    here.send(0)
    here.recv()
    pid = process.pid
    assert pid is not None
    with counting([pid]) as counts:
        for number in range(count):
            here.send(number)
            here.recv()
    here.send(None)
    process.join()
    return "Pipe, there and back", count, counts.each(count)


if __name__ == "__main__":
    main()
