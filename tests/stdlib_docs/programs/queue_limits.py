"""Queues with a limit, with timeouts, and the exceptions of the module ``queue``."""

import queue
from multiprocessing import Process, Queue


def take_all(limited, taken):
    for item in iter(limited.get, None):
        taken.put(item * 2)


if __name__ == "__main__":
    limited, taken = Queue(maxsize=2), Queue()
    limited.put("a")
    limited.put("b")
    print(limited.full(), limited.qsize())
    for put in (limited.put_nowait, lambda item: limited.put(item, timeout=0.05)):
        try:
            put("c")
        except queue.Full as error:
            print("Full:", error.args)
    for get in (taken.get_nowait, lambda: taken.get(timeout=0.05), lambda: taken.get(block=False)):
        try:
            get()
        except queue.Empty as error:
            print("Empty:", error.args)
    process = Process(target=take_all, args=(limited, taken))
    process.start()
    for item in "cdef":
        limited.put(item)
    limited.put(None)
    print([taken.get() for _ in "abcdef"])
    process.join()
