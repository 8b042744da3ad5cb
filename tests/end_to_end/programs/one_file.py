"""A user's program: a pool, a queue between processes, and a ring that trains and loses a member.

Nothing in it says where it runs; FIBER_BACKEND does.
"""

import contextlib
import math
import os
import signal
import socket

import fiber
from fiber.experimental import Ring, current_ring

MEMBERS = 3
STEPS = 200
LINKS = []


def square(number):
    return number * number


def add_one(inbox, outbox):
    for number in iter(inbox.get, None):
        outbox.put(number + 1)


def meet(ring):
    """In each member: the others dial the first one, as frameworks do."""
    first = ring.members[0]
    if ring.rank == 0:
        with socket.create_server((first.ip, first.port)) as server:
            LINKS.extend(server.accept()[0].makefile("rw") for _ in range(ring.size - 1))
        return
    while not LINKS:
        # it is about to listen
        with contextlib.suppress(ConnectionRefusedError):
            LINKS.append(socket.create_connection((first.ip, first.port)).makefile("rw"))


def total(rank, number):
    """The sum of a number over all members, at each of them."""
    if rank == 0:
        number = math.fsum([number, *(float(link.readline()) for link in LINKS)])
    for link in LINKS:
        link.write(f"{number!r}\n")
        link.flush()
    return number if rank == 0 else float(LINKS[0].readline())


def train(rank, size):
    """Fit y = 3x + 1, each member by points of its own; the last one is killed on the way."""
    ring = current_ring()
    points = [number / 50 for number in range(rank, 100, size)]
    slope, offset = ring.state or (0.0, 0.0)
    for step in range(ring.step, STEPS):
        errors = [(x, slope * x + offset - (3 * x + 1)) for x in points]
        slope -= total(rank, sum(error * x for x, error in errors)) / 200
        offset -= total(rank, sum(error for _, error in errors)) / 200
        ring.commit((slope, offset), step=step + 1)
        if step == STEPS // 2 and rank == size - 1 and ring.restarts == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return f"y = {slope:.2f} x + {offset:.2f}"


def main():
    with fiber.Pool(2) as pool:
        print("pool", sum(pool.map(square, range(1000))))

    inbox, outbox = fiber.Queue(), fiber.Queue()
    process = fiber.Process(target=add_one, args=(inbox, outbox))
    process.start()
    for number in (*range(100), None):
        inbox.put(number)
    print("queue", sum(outbox.get() for _ in range(100)))
    process.join()
    print("exit code", process.exitcode)

    ring = Ring(MEMBERS, train, meet, max_restarts=1)
    for rank, found in enumerate(ring.run()):
        print(f"rank {rank}: {found}")
    print("restarts", ring.status().restarts)


if __name__ == "__main__":
    main()
