"""The status of a run: what it tells, who may ask, and that it costs nobody who does not."""

import json
import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

import fiber
from fiber._base import values
from fiber._runtime import runtime
from fiber._runtime.inspection import NAME
from fiber._tasks.dispatcher import Dispatcher, HeldTasks, Mishaps
from fiber._tasks.pending.table import PendingTable
from fiber._watch import status as module
from fiber._watch.status import Asker
from fiber._workers.group import WorkerGroup
from fiber._workers.state import WorkerRecord
from fiber.exceptions import FiberError
from fiber.model import JobState, JobStatus
from pool_tasks import die_once, fail_at, square
from tasks_world import FakeJob
from waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("shared_runtime")


def sleep_longer_as(times):
    pid, slow, fast = times
    time.sleep(slow if os.getpid() == pid else fast)


def wait_for(path):
    until(Path(path).exists)


@pytest.fixture
def pool():
    with fiber.Pool(2) as pool:
        yield pool
    pool.join()


def only_pool():
    (found,) = fiber.status().pools
    return found


def test_it_tells_what_waits_runs_and_has_failed_and_which_workers_do_it(pool, tmp_path):
    with pytest.raises(ValueError, match="bad 2"):
        pool.starmap(fail_at, [(number, 2) for number in range(5)])
    results = pool.map_async(wait_for, [tmp_path / "go"] * 7)
    until(lambda: only_pool().states == {"busy": 2})

    found = fiber.status()
    (told,) = found.pools
    (tmp_path / "go").touch()
    results.get(PATIENCE)

    assert (found.run, found.pid) == (runtime.current().run_id, os.getpid())
    assert (told.wanted, told.ready, told.reason) == (2, 2, "")
    assert (told.waiting + told.running, told.done, told.failed, told.retried) == (7, 5, 1, 0)
    assert sum(worker.running for worker in told.workers) == told.running
    assert {worker.function for worker in told.workers} == {"wait_for"}
    assert None not in {worker.pid for worker in told.workers}
    (error,) = told.errors
    assert (error.function, error.item, error.error) == ("fail_at", 2, "ValueError: bad 2")
    assert error.worker in {worker.name for worker in told.workers}
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    # from the function on
    assert error.traceback.splitlines()[1].endswith(", in fail_at")
    assert error.traceback.endswith("\nValueError: bad 2")
    assert error.replay == ""
    until(lambda: only_pool().done == 12)


def test_a_task_that_takes_much_longer_than_the_others_of_its_call_is_slow(
    pool, tmp_path, monkeypatch
):
    timing = values.evolve(runtime.current().timing, slow_task=0.05)
    monkeypatch.setattr(runtime.current(), "timing", timing)
    results = pool.map_async(wait_for, [tmp_path] * 20 + [tmp_path / "go"], chunksize=1)
    until(lambda: only_pool().done == 20)
    until(lambda: [worker.is_slow for worker in only_pool().workers].count(True) == 1)

    slow, other = sorted(only_pool().workers, key=lambda worker: -worker.is_slow)
    (tmp_path / "go").touch()
    results.get(PATIENCE)

    assert slow.seconds >= 5 * slow.usual
    assert (slow.function, other.function, other.seconds, other.usual) == (
        "wait_for",
        "",
        0.0,
        None,
    )
    until(lambda: not any(worker.is_slow for worker in only_pool().workers))


@pytest.mark.parametrize(
    "seconds, usual, expected",
    [(100.0, None, False), (0.9, 0.001, False), (1.0, 0.2, True), (9.0, 2.0, False)],
)
def test_a_task_is_slow_after_a_second_and_five_times_the_median(seconds, usual, expected):
    assert module._is_slow(HeldTasks(1, "train", seconds, usual), 1.0) is expected


def test_a_worker_that_takes_longer_than_the_others_for_its_tasks_is_told_steadily():
    with fiber.Pool(3) as pool:
        until(lambda: only_pool().ready == 3)
        slow = only_pool().workers[0]
        results = pool.map_async(sleep_longer_as, [(slow.pid, 0.05, 0.005)] * 300, chunksize=1)
        until(lambda: any(one.others for one in only_pool().workers))
        results.get(PATIENCE)
        # not only while a task takes long
        told = {one.name: one for one in only_pool().workers}
    pool.join()

    (found,) = [one for one in told.values() if one.others]
    assert found.name == slow.name
    assert found.lately >= 0.05 > found.lately / 2 >= found.others
    assert sum(one.done for one in told.values()) == 300


@pytest.mark.parametrize("is_here", [True, False])
def test_memory_is_told_of_workers_here_and_elsewhere(pool, monkeypatch, is_here):
    monkeypatch.setattr(WorkerGroup, "is_here", is_here)
    pool.map(square, range(50))

    until(lambda: all((one.memory or 0) > 2**20 for one in only_pool().workers))
    assert fiber.status().memory > 2**20


def test_a_task_that_ran_again_is_counted(pool, tmp_path):
    assert pool.apply(die_once, (tmp_path / "died",)) == "survived"

    assert (only_pool().retried, only_pool().failed) == (1, 0)


def test_processes_and_queues_are_told_too():
    queue, go = fiber.Queue(), fiber.Event()
    process = fiber.Process(target=lambda queue, go: go.wait(), args=(queue, go), name="waiter")
    process.start()
    queue.put(1)

    found = fiber.status()
    go.set()
    process.join(PATIENCE)

    assert [(one.name, one.pid) for one in found.processes] == [("waiter", process.pid)]
    assert [one.length for one in found.queues] == [1]


def test_a_program_that_has_started_nothing_has_an_empty_one(monkeypatch):
    monkeypatch.setattr(runtime, "started", lambda: None)

    assert fiber.status() == fiber.watching.RunStatus(
        run="",
        backend="",
        pid=os.getpid(),
        program=fiber.status().program,
        pools=(),
        processes=(),
        queues=(),
        host=os.uname().nodename,
    )


@pytest.mark.parametrize(
    "record, status, expected",
    [
        ({}, None, ("starting", "")),
        ({}, JobState.PENDING, ("waiting", "no room")),
        ({}, JobState.RUNNING, ("starting", "")),
        ({"ready": True}, JobState.RUNNING, ("busy", "")),
        ({"ready": True, "leaving": True}, JobState.RUNNING, ("leaving", "")),
        ({"ready": True, "suspended_at": 1.0}, JobState.SUSPENDED, ("suspended", "no room")),
        ({"ready": True, "stopped_at": 1.0}, JobState.SUSPENDED, ("stopped", "")),
    ],
)
def test_a_worker_is_in_one_state_and_its_platform_says_why(record, status, expected):
    job = FakeJob("1", 1, lambda job, status: None)
    job.status = None if status is None else JobStatus(state=status, message="no room")
    job.process_status = lambda index: None
    job.host, job.job = "", None

    found = module._of_worker(
        WorkerRecord("1", "worker-1", 0, job, **record), HeldTasks(1, "train"), 1.0
    )

    assert (found.state, found.reason) == expected


class TestSocket:
    def test_other_programs_of_the_user_are_told_the_same(self, pool):
        pool.map(square, range(5))
        folder = runtime.current().directory

        with Asker(folder, PATIENCE) as asker:
            first, second = asker.status(), asker.status()

        assert first["pools"][0]["done"] == second["pools"][0]["done"] == 5
        assert first["run"] == folder.name
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        until(lambda: not [t for t in threading.enumerate() if t.name == "fiber-status"])

    @pytest.mark.parametrize(
        "line",
        [b"\n", b"{}\n", b"[]\n", b'{"ask": "secrets"}\n', b"\x80\x04.\n", b"[" * 4000 + b"\n"],
    )
    def test_what_is_no_request_is_told_so(self, line):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(PATIENCE)
            stranger.connect(str(runtime.current().directory / NAME))
            stranger.sendall(line)
            with stranger.makefile("rb") as answers:
                assert set(json.loads(answers.readline())) == {"error"}

    def test_a_run_that_has_ended_does_not_answer(self, folder):
        with pytest.raises(FiberError, match=f"the program of run {folder.name} does not answer"):
            Asker(folder, PATIENCE)

    def test_one_that_asks_and_stays_does_not_keep_the_program_from_ending(self):
        runtime.current().close()
        process = fiber.Process(target=signal.Signals, args=(1,))
        process.start()
        process.join(PATIENCE)

        with Asker(runtime.current().directory, PATIENCE) as asker:
            asker.status()
            runtime.current().close()
            with pytest.raises(FiberError, match="does not answer"):
                asker.status()
        process = fiber.Process(target=signal.Signals, args=(1,))
        process.start()
        process.join(PATIENCE)


def test_nothing_is_done_for_a_task_where_nobody_asks(pool, monkeypatch):
    looks = Mock()
    for owner, name in [(Dispatcher, "look"), (PendingTable, "totals"), (Mishaps, "failed")]:
        monkeypatch.setattr(owner, name, looks)

    assert pool.map(square, range(2000)) == [x * x for x in range(2000)]
    assert pool.apply(square, (3,)) == 9

    assert not looks.called
