"""Locks, semaphores, events, conditions, barriers, values and arrays between processes."""

# ruff: noqa: D103  a program of a user, told by its first sentence

from typing import Any

import fiber
from fiber.testing.apps import begin


def count_up(value: Any, times: int) -> None:
    for _ in range(times):
        with value.get_lock():
            value.value += 1


def fill(array: Any, lock: Any, start: int) -> None:
    with lock:
        for index in range(start, len(array), 2):
            array[index] = index


def meet(barrier: Any, go: Any, permits: Any, condition: Any, arrived: Any) -> None:
    assert go.wait(30)
    barrier.wait(30)
    with permits:
        arrived.value += 1
    with condition:
        condition.notify()


def main() -> None:
    begin()
    value = fiber.Value("i", 0)
    array = fiber.Array("i", 10)
    arrived = fiber.Value("i", 0)
    lock = fiber.Lock()
    processes = [fiber.Process(target=count_up, args=(value, 20)) for _ in range(2)]
    processes += [fiber.Process(target=fill, args=(array, lock, start)) for start in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert value.value == 40
    assert array[:] == list(range(10))

    barrier, go = fiber.Barrier(3), fiber.Event()
    permits, condition = fiber.BoundedSemaphore(1), fiber.Condition()
    meeting = [
        fiber.Process(target=meet, args=(barrier, go, permits, condition, arrived))
        for _ in range(2)
    ]
    for process in meeting:
        process.start()
    with condition:
        go.set()
        barrier.wait(30)
        assert condition.wait_for(lambda: arrived.value == 2, 30)
    for process in meeting:
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    main()
