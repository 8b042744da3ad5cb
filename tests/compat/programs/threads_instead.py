"""The package's double that uses threads."""

import threading
from multiprocessing import dummy
from multiprocessing.pool import ThreadPool


def where(number):
    return number * 2, threading.current_thread() is not threading.main_thread()


def put(queue, value):
    queue.put((dummy.current_process().name, value))


if __name__ == "__main__":
    with dummy.Pool(3) as pool:
        print(pool.map(where, range(4)), isinstance(pool, ThreadPool))
    with ThreadPool(processes=2) as pool:
        result = pool.apply_async(lambda: "lambdas as well")
        print(result.get(timeout=60), sorted(pool.imap_unordered(where, range(3))))
    queue = dummy.Queue()
    process = dummy.Process(target=put, args=(queue, 12), name="a thread")
    process.start()
    process.join()
    print(queue.get(), process.exitcode, process in dummy.active_children())
    manager = dummy.Manager()
    mapping = manager.dict(a=1)
    with dummy.Lock():
        mapping["b"] = 2
    print(mapping, dummy.Value("i", 4).value, dummy.Array("i", [1, 2])[1])
    ours, theirs = dummy.Pipe()
    ours.send("through a queue")
    print(theirs.recv(), theirs.poll())
