"""A pool of four workers: one task, many tasks, lazily, and one for which nobody waits."""

import os
import time
from multiprocessing import Pool, TimeoutError  # noqa: A004


def half(number):
    return number / 2


def label(word, number):
    return f"{word}-{number}"


if __name__ == "__main__":
    with Pool(processes=4) as pool:
        print(pool.map(half, range(8)))
        for result in sorted(pool.imap_unordered(half, range(6))):
            print(result, end=" ")
        print()
        print(pool.starmap(label, [("a", 1), ("b", 2)]))

        pending = pool.apply_async(half, (33,))
        print(pending.get(timeout=60))
        pending = pool.apply_async(os.getpid, ())
        print("another process:", pending.get(timeout=60) != os.getpid())

        several = [pool.apply_async(os.getpid, ()) for _ in range(4)]
        print("four ids:", len([one.get(timeout=60) for one in several]))

        slow = pool.apply_async(time.sleep, (300,))
        try:
            slow.get(timeout=0.2)
        except TimeoutError:
            print("it takes too long")
        print("the others work:", pool.apply(half, (9,)))
    print("the pool is gone")
    try:
        pool.apply_async(half, (1,))
    except ValueError as error:
        print("ValueError:", error)
