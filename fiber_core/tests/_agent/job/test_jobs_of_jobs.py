"""Jobs of jobs are submitted by an ancestor, reported to their submitter, and end with it."""

import signal
import sys

import psutil
import pytest

import fiber
from children import start
from pool_tasks import square, tell_and_wait
from waiting import until


@pytest.fixture(autouse=True, params=["dialled", "by streams"])
def _way(request, remote_host):
    """Jobs have no plugin of their backend, as most images have none, or cannot dial at all."""
    if request.param == "dialled":
        remote_host.use(far_path="")
    else:
        remote_host.use(far_streams=True)


def terminate_one(queue):
    its = fiber.Queue()
    child = start(tell_and_wait, its)
    assert its.get(timeout=60) == child.pid
    child.terminate()
    child.join(60)
    queue.put(child.exitcode)


def begin_one(queue):
    child = fiber.Process(target=tell_and_wait, args=(queue,), daemon=False)
    child.start()
    queue.put(child.pid)
    signal.pause()


def pool_inside(n):
    with fiber.Pool(2) as pool:
        return pool.map(square, range(n))


def generations(n):
    if n:
        child = start(generations, n - 1)
        child.join(90)
        sys.exit(child.exitcode + 1)
    sys.exit(5)


def test_children_have_children_with_exact_ends():
    process = start(generations, 2)
    process.join(120)
    assert process.exitcode == 7


def test_a_pool_works_inside_a_worker():
    with fiber.Pool(1) as pool:
        assert pool.apply(pool_inside, (6,)) == [x * x for x in range(6)]


@pytest.mark.parametrize("_way", ["dialled"], indirect=True)
def test_requests_reach_them():
    queue = fiber.Queue()
    process = start(terminate_one, queue)
    assert queue.get(timeout=60) == -signal.SIGTERM
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.parametrize("_way", ["dialled"], indirect=True)
def test_what_a_killed_process_had_started_ends_with_it():
    queue = fiber.Queue()
    process = start(begin_one, queue)
    pids = {queue.get(timeout=60), queue.get(timeout=60)}
    assert len(pids) == 1
    process.kill()
    process.join(60)
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
