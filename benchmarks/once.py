"""Prints the seconds from its first line to the first result of a pool: a program of its own."""

from __future__ import annotations

import sys
import time
from typing import Any


def answer() -> int:
    return 42


def pool(method: str, workers: int) -> Any:
    if method == "fiber":
        import fiber

        return fiber.Pool(workers)
    import multiprocessing

    return multiprocessing.get_context(method).Pool(workers)


def main() -> None:
    start = time.perf_counter()
    with pool(sys.argv[1], int(sys.argv[2])) as workers:
        assert workers.apply(answer) == 42
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
