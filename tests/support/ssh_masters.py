"""Programs that use ssh hosts, started by tests as by users: ``python ssh_masters.py NAME N``.

Each prints its result as one line of JSON at the end. Most print ``up`` with the hosts and pids of
their workers once these run.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import fiber

ITEMS = 400


def where(_: int = 0) -> tuple[str, int]:
    """Host and pid of the worker, after a pause in which other workers take the next tasks."""
    time.sleep(0.1)
    return socket.gethostname(), os.getpid()


def slow_square(number: int) -> int:
    """A task that takes a while."""
    time.sleep(0.02)
    return number * number


def read(path: str) -> tuple[str, str]:
    """Host of the worker, and the text of a file in its working directory."""
    time.sleep(0.1)
    return socket.gethostname(), Path(path).read_text()


def answers(pool: Any, task: Any, items: Any, processes: int) -> list[Any]:
    """The different answers to a map, made again until there are as many as workers: one may do all."""
    found: set[Any] = set()
    deadline = time.monotonic() + 60
    while len(found) < processes and time.monotonic() < deadline:
        found.update(pool.map(task, items, chunksize=1))
    return sorted(found)


def print_up(pool: Any, processes: int) -> None:
    """Wait until all workers have run a task; print their hosts and pids."""
    print("up", json.dumps(answers(pool, where, range(processes * 2), processes)), flush=True)


def squares(processes: int) -> None:
    """Map over slow tasks while hosts and workers die; prints correctness, seconds and workers."""
    with fiber.Pool(processes) as pool:
        print_up(pool, processes)
        begin = time.monotonic()
        found = pool.map(slow_square, range(ITEMS), chunksize=1)
        good = found == [n * n for n in range(ITEMS)]
        seconds = time.monotonic() - begin
        after = sorted(set(pool.map(where, range(40), chunksize=1)))
    print(json.dumps({"good": good, "seconds": seconds, "after": after}), flush=True)


def wait(processes: int) -> None:
    """Workers that run until this program is killed."""
    with fiber.Pool(processes) as pool:
        print_up(pool, processes)
        pool.map(time.sleep, [600] * processes, chunksize=1)


def files(processes: int) -> None:
    """Read a file on all hosts."""
    with fiber.Pool(processes) as pool:
        print_up(pool, processes)
        found = answers(pool, read, ["data/words.txt"] * 20, processes)
    print(json.dumps(found), flush=True)


def make(objects: Any, over: Any) -> None:
    """Make shared objects for a process on another host, and use them with it."""
    queue, lock, counter = fiber.Queue(), fiber.Lock(), fiber.Value("i", 0)
    local, remote = fiber.Pipe()
    with fiber.Manager() as manager:
        names = manager.dict()
        objects.put((socket.gethostname(), queue, remote, names, lock, counter))
        local.send(len(queue.get()))
        local.send(local.recv())
        with lock:
            counter.value += 1
            names["maker"] = socket.gethostname()
        over.wait()


def use(objects: Any, over: Any, answers: Any) -> None:
    """Use shared objects that a process on another host has made."""
    maker, queue, end, names, lock, counter = objects.get()
    queue.put(bytes(8 << 20))
    size = end.recv()
    end.send("there and back")
    words = end.recv()
    while True:
        with lock:
            if "maker" in names:
                counter.value += 1
                break
        time.sleep(0.05)
    answers.put(
        {
            "hosts": [maker, socket.gethostname()],
            "size": size,
            "words": words,
            "names": names.copy(),
            "count": counter.value,
        }
    )
    over.set()


def meet(_: int) -> None:
    """Two processes and a manager's: one owns the objects that the other uses."""
    objects, answers, over = fiber.Queue(), fiber.Queue(), fiber.Event()
    processes = [
        fiber.Process(target=make, args=(objects, over)),
        fiber.Process(target=use, args=(objects, over, answers)),
    ]
    for process in processes:
        process.start()
    found = answers.get(timeout=90)
    for process in processes:
        process.join()
    print(json.dumps({**found, "codes": [p.exitcode for p in processes]}), flush=True)


if __name__ == "__main__":
    programs = (squares, wait, files, meet)
    {program.__name__: program for program in programs}[sys.argv[1]](int(sys.argv[2]))
