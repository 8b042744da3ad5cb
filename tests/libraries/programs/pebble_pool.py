"""pebble: a pool whose tasks have time limits, can be cancelled while they run, and may die."""

import multiprocessing
import os
import time
from concurrent import futures

from pebble import ProcessExpired, ProcessPool

CONTEXT = multiprocessing.get_context("spawn")


def square(number):
    return number * number


def main():
    with ProcessPool(max_workers=2, context=CONTEXT) as pool:
        print(list(pool.map(square, range(20), chunksize=3).result())[-3:])
        try:
            pool.schedule(time.sleep, args=[600], timeout=0.5).result()
        except futures.TimeoutError:
            print("took too long")
        try:
            pool.schedule(os._exit, args=[3]).result()
        except ProcessExpired as error:
            print("died:", error.exitcode)
        running = pool.schedule(time.sleep, args=[600])
        print(pool.schedule(square, args=[7]).result(), running.cancel(), running.cancelled())


if __name__ == "__main__":
    main()
