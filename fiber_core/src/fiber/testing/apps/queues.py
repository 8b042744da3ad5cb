"""Queues and pipes: many writers, order, big messages, ends that travel, the end of the last one."""

# ruff: noqa: D103  a program of a user, told by its first sentence

from typing import Any

import fiber
from fiber.testing.apps import begin


def put_range(queue: Any, name: str, count: int) -> None:
    for number in range(count):
        queue.put((name, number))


def take(source: Any, results: Any) -> None:
    got = []
    while (item := source.get()) is not None:
        got.append(item)
    results.put(got)


def answer(end: Any) -> None:
    while True:
        try:
            message = end.recv()
        except EOFError:
            return
        end.send(message * 2)


def work_through(tasks: Any) -> None:
    while True:
        item = tasks.get()
        tasks.task_done()
        if item is None:
            return


def started(target: Any, *args: Any) -> fiber.Process:
    process = fiber.Process(target=target, args=args)
    process.start()
    return process


def ended(*processes: fiber.Process) -> None:
    for process in processes:
        process.join()
        assert process.exitcode == 0, process


def main() -> None:
    begin()
    several: list[Any] = [fiber.Queue(), fiber.SimpleQueue()]
    for queue in several:
        writers = [started(put_range, queue, name, 50) for name in "ab"]
        items = [queue.get() for _ in range(100)]
        ended(*writers)
        for name in "ab":
            assert [number for who, number in items if who == name] == list(range(50))

    numbers: Any = fiber.Queue()
    results: Any = fiber.Queue()
    readers = [started(take, numbers, results) for _ in range(2)]
    for item in [*range(100), None, None]:
        numbers.put(item)
    assert sorted(results.get() + results.get()) == list(range(100))
    ended(*readers)

    mine, its = fiber.Pipe()
    process = started(answer, its)
    its.close()
    big = b"x" * 3_000_000
    for message in ("ab", [1], big):
        mine.send(message)
        assert mine.recv() == message * 2
    mine.close()
    ended(process)

    tasks: Any = fiber.JoinableQueue()
    worker = started(work_through, tasks)
    for item in (1, 2, None):
        tasks.put(item)
    tasks.join()
    ended(worker)


if __name__ == "__main__":
    main()
