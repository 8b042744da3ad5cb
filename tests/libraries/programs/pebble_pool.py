"""pebble: a pool whose tasks have time limits, can be cancelled while they run, and may die."""

import multiprocessing
import os
import tempfile
import time
from concurrent import futures

from pebble import ProcessExpired, ProcessPool

CONTEXT = multiprocessing.get_context("spawn")


def square(number):
    return number * number


def die(fifo):
    open(fifo).close()
    os._exit(3)


def main():
    with ProcessPool(max_workers=2, context=CONTEXT) as pool:
        print(list(pool.map(square, range(20), chunksize=3).result())[-3:])
        try:
            pool.schedule(time.sleep, args=[600], timeout=0.5).result()
        except futures.TimeoutError:
            print("took too long")
        with tempfile.TemporaryDirectory() as folder:
            os.mkfifo(f"{folder}/fifo")
            dying = pool.schedule(die, args=[f"{folder}/fifo"])
            # pebble gives the whole pool up where a worker ends before it is known what it runs
            while not dying.running():
                time.sleep(0.01)
            open(f"{folder}/fifo", "w").close()
            try:
                dying.result()
            except ProcessExpired as error:
                print("died:", error.exitcode)
        running = pool.schedule(time.sleep, args=[600])
        print(pool.schedule(square, args=[7]).result(), running.cancel(), running.cancelled())


if __name__ == "__main__":
    main()
