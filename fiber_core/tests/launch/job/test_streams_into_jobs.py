"""Where nobody can dial, the parent's streams carry everything: to it, from it, and among its jobs."""

import os
import signal
import sys

import pytest

import fiber
from fiber import runtime


@pytest.fixture(autouse=True)
def _nobody_dials(far):
    far.use(far_streams=True)


def take_all(queue):
    total = 0
    while (item := queue.get()) is not None:
        total += item
    sys.exit(total)


def square(x):
    return x * x


def own_queue(sender):
    """Make a queue here and have others use it."""
    queue = fiber.Queue()
    sender.send(queue)
    total = 0
    while (item := queue.get(timeout=60)) is not None:
        total += item
    sys.exit(total)


def feed(queue):
    for item in (*range(5), None):
        queue.put(item)


def start_one(code):
    child = fiber.Process(target=sys.exit, args=(code,))
    child.start()
    child.join(60)
    sys.exit(child.exitcode)


def start(target, *args):
    process = fiber.Process(target=target, args=args)
    process.start()
    return process


def test_a_child_reaches_its_parent():
    queue = fiber.Queue()
    process = start(take_all, queue)
    for item in (*range(10), None):
        queue.put(item)
    process.join(60)
    assert process.exitcode == 45


def test_a_parent_reaches_what_a_child_has_made():
    reader, writer = fiber.Pipe(duplex=False)
    process = start(own_queue, writer)
    feed(reader.recv())
    process.join(60)
    assert process.exitcode == 10


def test_siblings_reach_each_other():
    reader, writer = fiber.Pipe(duplex=False)
    owner = start(own_queue, writer)
    other = start(feed, reader.recv())
    owner.join(60)
    other.join(60)
    assert (owner.exitcode, other.exitcode) == (10, 0)


def test_a_child_has_children():
    process = start(start_one, 5)
    process.join(90)
    assert process.exitcode == 5


def test_a_pool_works():
    with fiber.Pool(2) as pool:
        assert pool.map(square, range(100)) == [x * x for x in range(100)]


def test_signals_arrive():
    with fiber.Pool(1) as pool:
        assert pool.apply(os.getpid) != os.getpid()
    process = start(signal.pause)
    assert process.pid
    process.terminate()
    process.join(60)
    assert process.exitcode == -signal.SIGTERM


def test_nobody_is_told_where_to_dial():
    (url,) = runtime.current().urls()
    assert url.startswith("hub+tls+tcp://")
