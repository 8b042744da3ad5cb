"""Live rings of processes: members come and go while the others go on."""

import os
import signal
import socket
import subprocess

import pytest

import fiber
from fiber.experimental import ConditionKind, Ring, current_ring

pytestmark = [
    pytest.mark.any_backend,
    pytest.mark.usefixtures("shared_runtime"),
    pytest.mark.timeout(180),
]


def until(queue, wanted):
    """Return items of a queue until all expected ones have come."""
    found = []
    while not wanted <= {place for _, place in found}:
        found.append(queue.get())
    return found


def places(rank, size, queue, doom):
    """Send each new rank and size with the process id, until there are four ranks."""
    ring, who = current_ring(), (socket.gethostname(), os.getpid())
    while True:
        seen, place = ring.changes, (ring.rank, ring.size)
        queue.put((who, place))
        if place[1] == 4:
            return who, place[0]
        if place == (1, 3) and not seen:
            # nobody else knows it by a number on every backend
            doom.get()
            os.kill(os.getpid(), signal.SIGKILL)
        assert ring.wait_for_change(seen, 60)


def test_members_come_and_go_and_the_others_do_not_restart():
    queue, doom = fiber.SimpleQueue(), fiber.SimpleQueue()
    ring = Ring(3, lambda rank, size: places(rank, size, queue, doom), min=1, max=4, elastic="live")
    ring.start()
    began = {place[0]: who for who, place in until(queue, {(0, 3), (1, 3), (2, 3)})}

    doom.put(None)
    until(queue, {(0, 2), (1, 2)})
    # somebody comes in its place
    until(queue, {(0, 3), (1, 3), (2, 3)})
    ring.resize(4)

    found = ring.join()
    assert [rank for _, rank in found] == [0, 1, 2, 3]
    # those that were not killed are the processes that they were
    assert [who for who, _ in found[:2]] == [began[0], began[2]]
    status = ring.status()
    assert (status.rounds, status.restarts, status.changes) == (1, 0, 3)
    assert status.has(ConditionKind.SUCCEEDED)


def test_a_newcomer_goes_on_from_what_the_others_know():
    offered = fiber.Event()

    def func(rank, size):
        ring = current_ring()
        if ring.state is not None:
            return ring.state, ring.step
        ring.offer(lambda: ("what they know", 12))
        offered.set()
        assert ring.wait_for_change(0, 60)
        return None

    ring = Ring(1, func, min=1, max=2, elastic="live")
    ring.start()
    assert offered.wait(60)

    ring.resize(2)

    assert ring.join() == [None, ("what they know", 12)]


def hosts(script):
    """Slots on all hosts, as an elastic launcher asks for them."""
    done = subprocess.run([script], capture_output=True, text=True, check=True)
    return sum(int(line.rpartition(":")[2]) for line in done.stdout.split())


def test_a_script_tells_the_hosts_of_the_moment():
    queue = fiber.SimpleQueue()

    def func(rank, size):
        ring = current_ring()
        while True:
            seen, rank = ring.changes, ring.rank
            found = hosts(os.environ["FIBER_RING_DISCOVER_HOSTS"])
            queue.put((os.getpid(), (rank, found)))
            if found == 3:
                return
            assert ring.wait_for_change(seen, 60)

    ring = Ring(2, func, min=1, max=3, elastic="live", framework="mpi")
    ring.start()
    until(queue, {(0, 2), (1, 2)})
    ring.resize(1)
    until(queue, {(0, 1)})
    ring.resize(3)
    until(queue, {(0, 3), (1, 3), (2, 3)})
    ring.join()
