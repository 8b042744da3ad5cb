"""A pool that works until it is killed."""

# ruff: noqa: D103  a program of a user, told by its first sentence

import os
import platform
import signal
import time

import fiber
from fiber.testing.apps import begin, print_facts


def nap(seconds: float) -> tuple[str, int]:
    time.sleep(seconds)
    # containers count their processes alike
    return platform.node(), os.getpid()


def main() -> None:
    signal.alarm(300)
    begin()
    with fiber.Pool(3) as pool:
        found: set[tuple[str, int]] = set()
        while len(found) < 3:
            found.update(pool.map(nap, [0.05] * 6, chunksize=1))
        print_facts(ready=True)
        while True:
            pool.map(nap, [0.05] * 30)


if __name__ == "__main__":
    main()
