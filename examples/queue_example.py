#!/usr/bin/env python3
"""Several processes take work from one queue and put results into another.

The file is not called queue.py: beside other scripts, that name would hide the standard library's
module.
"""

from __future__ import annotations

import fiber as mp


def square(tasks: mp.SimpleQueue, results: mp.SimpleQueue) -> None:
    """Do what is in the queue until None comes."""
    for number in iter(tasks.get, None):
        results.put((number, number**2))


def main() -> None:
    tasks, results = mp.SimpleQueue(), mp.SimpleQueue()
    workers = [mp.Process(target=square, args=(tasks, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for number in range(10):
        tasks.put(number)
    for _ in workers:
        tasks.put(None)
    # workers finish in any order
    for number, its_square in sorted(results.get() for _ in range(10)):
        print(f"{number} squared is {its_square}")
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
