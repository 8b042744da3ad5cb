"""Everything that a pool does, with tasks that fail, tasks that are late, and an early end."""

import random
import time
from multiprocessing import Pool, TimeoutError  # noqa: A004


def call(function, args):
    return f"{function.__name__}{args} = {function(*args)}"


def call_starred(both):
    return call(*both)


def times(a, b):
    time.sleep(0.01 * random.random())
    return a * b


def add(a, b):
    time.sleep(0.01 * random.random())
    return a + b


def inverse(x):
    return 1.0 / (x - 3.0)


def no_more(x):
    return x - 8


def explain(title, function):
    try:
        print(f"{title}: {function()}")
    except ZeroDivisionError as error:
        print(f"{title}: ZeroDivisionError: {error}")


if __name__ == "__main__":
    with Pool(3) as pool:
        tasks = [(times, (i, 6)) for i in range(8)] + [(add, (i, 9)) for i in range(8)]
        results = [pool.apply_async(call, task) for task in tasks]
        ordered = pool.imap(call_starred, tasks)
        unordered = pool.imap_unordered(call_starred, tasks)
        print("apply_async", *[one.get() for one in results], sep="\n  ")
        print("imap", *ordered, sep="\n  ")
        print("imap_unordered", *sorted(unordered), sep="\n  ")
        print("map", *pool.map(call_starred, tasks), sep="\n  ")

        explain("apply", lambda: pool.apply(inverse, (3,)))
        explain("map", lambda: pool.map(inverse, list(range(9))))
        explain("imap", lambda: list(pool.imap(inverse, list(range(9)))))
        outcomes = pool.imap(inverse, list(range(8)))
        for i in range(8):
            explain(f"item {i}", lambda: f"{next(outcomes):.3f}")
        try:
            next(outcomes)
        except StopIteration:
            print("no more items")

        late = pool.apply_async(time.sleep, (0.3,))
        misses = 0
        while True:
            try:
                late.get(0.02)
            except TimeoutError:
                misses += 1
            else:
                break
        print("was waited for several times:", misses > 1)
        lazily = pool.imap(time.sleep, [0.3] * 2)
        misses = 0
        while True:
            try:
                lazily.next(0.02)
            except StopIteration:
                break
            except TimeoutError:
                misses += 1
        print("so was the iterator:", misses > 1)

    with Pool(2) as pool:
        before = pool.map_async(no_more, range(20))
        pool.close()
        pool.join()
        print("closed and joined:", before.get()[-3:])
