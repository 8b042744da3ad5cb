"""Programs that use ssh hosts, started by tests as users start them: ``python ssh_masters.py WHAT``.

Each prints what it found as one line of JSON at the end, and says ``up`` with the workers' hosts and
pids once it has them.
"""

from __future__ import annotations

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
    """The host and pid of the worker; others get the next ones."""
    time.sleep(0.1)
    return socket.gethostname(), os.getpid()


def slow_square(number: int) -> int:
    """A task that takes a while."""
    time.sleep(0.02)
    return number * number


def read(path: str) -> tuple[str, str]:
    """The host and what it finds in a file of its working directory."""
    time.sleep(0.1)
    return socket.gethostname(), Path(path).read_text()


def say_up(pool: Any, processes: int) -> None:
    """Wait until all workers were seen, and tell of them."""
    seen: set[tuple[str, int]] = set()
    deadline = time.monotonic() + 60
    while len(seen) < processes and time.monotonic() < deadline:
        seen.update(pool.map(where, range(processes * 2), chunksize=1))
    print("up", json.dumps(sorted(seen)), flush=True)


def squares(processes: int) -> None:
    """A map that goes on while hosts and workers die; the end tells what came of it."""
    with fiber.Pool(processes) as pool:
        say_up(pool, processes)
        begin = time.monotonic()
        found = pool.map(slow_square, range(ITEMS), chunksize=1)
        good = found == [n * n for n in range(ITEMS)]
        seconds = time.monotonic() - begin
        after = sorted(set(pool.map(where, range(40), chunksize=1)))
    print(json.dumps({"good": good, "seconds": seconds, "after": after}), flush=True)


def absolutes(processes: int) -> None:
    """The least that a pool can do."""
    with fiber.Pool(processes) as pool:
        found = pool.map(abs, [-1, -2], chunksize=1)
    print(json.dumps(found), flush=True)


def wait(processes: int) -> None:
    """Workers that run until somebody ends this program."""
    with fiber.Pool(processes) as pool:
        say_up(pool, processes)
        pool.map(time.sleep, [600] * processes, chunksize=1)


def files(processes: int) -> None:
    """What the hosts find in a file."""
    with fiber.Pool(processes) as pool:
        say_up(pool, processes)
        found = sorted(set(pool.map(read, ["data/words.txt"] * 20, chunksize=1)))
    print(json.dumps(found), flush=True)


def make(objects: Any, over: Any) -> None:
    """Make objects for a process elsewhere, and use them with it."""
    queue, lock, counter = fiber.Queue(), fiber.Lock(), fiber.Value("i", 0)
    near, far = fiber.Pipe()
    with fiber.Manager() as manager:
        names = manager.dict()
        objects.put((socket.gethostname(), queue, far, names, lock, counter))
        near.send(len(queue.get()))
        near.send(near.recv())
        with lock:
            counter.value += 1
            names["maker"] = socket.gethostname()
        over.wait()


def use(objects: Any, over: Any, answers: Any) -> None:
    """Use what a process elsewhere has made."""
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
    """Two processes, a manager's third one, and all that they share; one hosts what the other uses."""
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
    programs = (absolutes, squares, wait, files, meet)
    {program.__name__: program for program in programs}[sys.argv[1]](int(sys.argv[2]))
