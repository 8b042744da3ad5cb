"""A lock that keeps the lines of several processes apart."""

import sys
from multiprocessing import Lock, Process


def print_slowly(lock, word):
    with lock:
        for letter in word:
            sys.stdout.write(letter)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    lock = Lock()
    for word in ("first", "second"):
        process = Process(target=print_slowly, args=(lock, word * 5))
        process.start()
        process.join()
    lock.acquire()
    blocked = Process(target=print_slowly, args=(lock, "last"))
    blocked.start()
    blocked.join(0.2)
    print("it waits:", blocked.is_alive(), flush=True)
    lock.release()
    blocked.join()
    print(lock.acquire(block=False), lock.acquire(timeout=0.05))
    lock.release()
    try:
        lock.release()
    except ValueError as error:
        print("ValueError:", error)
