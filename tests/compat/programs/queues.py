"""Queues: that feed workers, that know when all is done, that have limits, and that are closed."""

import queue
from multiprocessing import JoinableQueue, Process, Queue, SimpleQueue, current_process


def work(todo, done):
    for function, args in iter(todo.get, "that is all"):
        name = current_process().name.partition("-")[0]
        done.put(f"a {name} says that {function.__name__}{args} is {function(*args)}")
        todo.task_done()
    todo.task_done()


def feed_workers():
    todo, done = JoinableQueue(), Queue()
    first = [(pow, (i, 4)) for i in range(12)]
    second = [(divmod, (i, 3)) for i in range(8)]
    for task in first:
        todo.put(task)
    workers = [Process(target=work, args=(todo, done)) for _ in range(3)]
    for process in workers:
        process.start()
    print("unordered results, sorted:", *sorted(done.get() for _ in first), sep="\n   ")
    for task in second:
        todo.put(task)
    todo.join()
    print("all is done:", *sorted(done.get() for _ in second), sep="\n   ")
    for _ in workers:
        todo.put("that is all")
    todo.join()
    for process in workers:
        process.join()
    print("exit codes", [process.exitcode for process in workers], "left:", done.empty())
    fails(ValueError, todo.task_done)


def fails(kind, call):
    try:
        call()
    except kind as error:
        print(f"{type(error).__name__}: {error.args}")


def take_all(limited, taken):
    for item in iter(limited.get, None):
        taken.put(item * 2)


def meet_limits():
    limited, taken = Queue(maxsize=2), Queue()
    limited.put("a")
    limited.put("b")
    print(limited.full(), limited.qsize())
    fails(queue.Full, lambda: limited.put_nowait("c"))
    fails(queue.Full, lambda: limited.put("c", timeout=0.05))
    for get in (taken.get_nowait, lambda: taken.get(timeout=0.05), lambda: taken.get(block=False)):
        fails(queue.Empty, get)
    process = Process(target=take_all, args=(limited, taken))
    process.start()
    for item in "cdef":
        limited.put(item)
    limited.put(None)
    print([taken.get() for _ in "abcdef"])
    process.join()


def write_and_close(queue, simple):
    # more than a pipe holds
    queue.put({"much": "X" * 1_500_000, "missing": None})
    queue.close()
    queue.join_thread()
    simple.put("and done")
    simple.close()


def close():
    queue, simple = Queue(), SimpleQueue()
    process = Process(target=write_and_close, args=(queue, simple))
    process.start()
    found = queue.get()
    print(len(found["much"]), found["missing"], simple.get(), simple.empty(), queue.empty())
    process.join()
    print(process.exitcode)
    queue.close()
    try:
        queue.put("too late")
    except ValueError as error:
        print("ValueError:", str(error).endswith("is closed"))


if __name__ == "__main__":
    feed_workers()
    meet_limits()
    close()
