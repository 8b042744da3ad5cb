"""Jobs of jobs are submitted by an ancestor, reported to their submitter, and end with it."""

import os
import signal
import sys
import time

import psutil
import pytest

import fiber

pytestmark = pytest.mark.usefixtures("remote_host")


@pytest.fixture(autouse=True)
def _no_plugin_there(remote_host):
    """Jobs have no plugin of their backend, as most images have none."""
    remote_host.use(far_path="")


def until(predicate):
    deadline = time.monotonic() + 40
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_for_ever(queue):
    queue.put(os.getpid())
    signal.pause()


def exit_with(code):
    sys.exit(code)


def square(x):
    return x * x


def start_one(code):
    child = fiber.Process(target=exit_with, args=(code,))
    child.start()
    child.join(60)
    sys.exit(child.exitcode)


def terminate_one(queue):
    its = fiber.Queue()
    child = fiber.Process(target=wait_for_ever, args=(its,))
    child.start()
    assert its.get(timeout=60) == child.pid
    child.terminate()
    child.join(60)
    queue.put(child.exitcode)


def begin_one(queue):
    child = fiber.Process(target=wait_for_ever, args=(queue,), daemon=False)
    child.start()
    queue.put(child.pid)
    signal.pause()


def pool_inside(n):
    with fiber.Pool(2) as pool:
        return pool.map(square, range(n))


def generations(n):
    if n:
        child = fiber.Process(target=generations, args=(n - 1,))
        child.start()
        child.join(90)
        sys.exit(child.exitcode + 1)


def start(target, *args):
    process = fiber.Process(target=target, args=args)
    process.start()
    return process


def test_a_child_has_children_with_exact_ends():
    process = start(start_one, 5)
    process.join(90)
    assert process.exitcode == 5


def test_so_do_grandchildren():
    process = start(generations, 2)
    process.join(120)
    assert process.exitcode == 2


def test_requests_reach_them():
    queue = fiber.Queue()
    process = start(terminate_one, queue)
    assert queue.get(timeout=60) == -signal.SIGTERM
    process.join(60)
    assert process.exitcode == 0


def test_a_pool_works_inside_a_worker():
    with fiber.Pool(1) as pool:
        assert pool.apply(pool_inside, (6,)) == [x * x for x in range(6)]


def test_what_a_killed_process_had_started_ends_with_it():
    queue = fiber.Queue()
    process = start(begin_one, queue)
    pids = {queue.get(timeout=60), queue.get(timeout=60)}
    assert len(pids) == 1
    process.kill()
    process.join(60)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
