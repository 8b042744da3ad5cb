"""Workers that are fed by a queue, answer through another, and stop at a word."""

import random
import time
from multiprocessing import Process, Queue, current_process


def worker(todo, done):
    for function, args in iter(todo.get, "that is all"):
        done.put(work(function, args))


def work(function, args):
    name = current_process().name.partition("-")[0]
    return f"a {name} says that {function.__name__}{args} is {function(*args)}"


def minus(a, b):
    time.sleep(0.02 * random.random())
    return a - b


def power(a, b):
    time.sleep(0.02 * random.random())
    return a**b


if __name__ == "__main__":
    first = [(minus, (i, 4)) for i in range(12)]
    second = [(power, (i, 3)) for i in range(8)]
    todo, done = Queue(), Queue()
    for task in first:
        todo.put(task)
    workers = [Process(target=worker, args=(todo, done)) for _ in range(3)]
    for process in workers:
        process.start()
    print("unordered results, sorted:")
    for line in sorted(done.get() for _ in first):
        print("  ", line)
    for task in second:
        todo.put(task)
    for line in sorted(done.get() for _ in second):
        print("  ", line)
    for _ in workers:
        todo.put("that is all")
    for process in workers:
        process.join()
    print("exit codes", [process.exitcode for process in workers], "left:", done.empty())
