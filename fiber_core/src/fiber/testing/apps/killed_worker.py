"""A pool whose worker is killed during a task: no task is lost, and that one runs again."""

# ruff: noqa: D103  a program of a user, told by its first sentence

import os
import signal
import time
from typing import Any

import fiber
from fiber.testing.apps import begin, print_facts


def worker_name(_: int) -> str:
    # long enough that both workers get some of these
    time.sleep(0.01)
    return fiber.current_process().name


def square(number: int) -> int:
    return number * number


def die_once(died: Any) -> str:
    if not died.is_set():
        died.set()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def main() -> None:
    begin()
    died = fiber.Event()
    with fiber.Pool(2) as pool:
        hit = pool.apply_async(die_once, (died,))
        results = pool.map_async(square, range(500))
        assert died.wait(60)
        since = time.monotonic()
        assert hit.get(60) == "done"
        until_result = time.monotonic() - since
        # until tasks are done by two again: the one that stayed, and the other one's successor
        while len(set(pool.map(worker_name, range(8), chunksize=1))) < 2:
            pass
        print_facts(
            measured={
                "seconds from a worker's death to its task's result": until_result,
                "seconds from a worker's death to its successor's first result": time.monotonic()
                - since,
            }
        )
        assert results.get(60) == [n * n for n in range(500)]


if __name__ == "__main__":
    main()
