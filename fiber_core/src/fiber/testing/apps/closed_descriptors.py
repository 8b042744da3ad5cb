"""A pool with a task that closes all descriptors: it is given up, and no other task is lost."""

# ruff: noqa: D103  a program of a user, told by its first sentence

import os
import time

import fiber
from fiber.testing.apps import begin, print_facts


def square(number: int) -> int:
    return number * number


def close_descriptors() -> None:
    # as a daemonize() does, and whoever prepares for exec
    os.closerange(3, 1024)


def main() -> None:
    begin()
    with fiber.Pool(2, max_attempts=1) as pool:
        since = time.monotonic()
        bad = pool.apply_async(close_descriptors)
        results = pool.map_async(square, range(500))
        try:
            bad.get(120)
        except fiber.WorkerCrashedError as error:
            assert "descriptors" in str(error), error  # noqa: PT017 - told by the exit code
        else:
            raise AssertionError
        print_facts(
            measured={
                "seconds until a task that closed descriptors is given up": time.monotonic() - since
            }
        )
        assert results.get(120) == [n * n for n in range(500)]
        assert pool.map(square, range(10)) == [n * n for n in range(10)]


if __name__ == "__main__":
    main()
