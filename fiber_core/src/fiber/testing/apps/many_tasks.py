"""Many short tasks on as many workers as are asked for."""

# ruff: noqa: D103  a program of a user, told by its first sentence

import sys
import time

import fiber
from fiber.testing.apps import begin, print_facts


def square(number: int) -> int:
    return number * number


def main() -> None:
    workers, tasks = map(int, sys.argv[1:])
    begin()
    since = time.monotonic()
    with fiber.Pool(workers) as pool:
        assert pool.map(square, range(tasks)) == [n * n for n in range(tasks)]
        took = time.monotonic() - since
    print_facts(measured={f"seconds for {tasks} tasks by a new pool of {workers}": took})


if __name__ == "__main__":
    main()
