"""Leases, and ways that end: jobs and their parents notice, and nothing is left."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

import fiber
from cuttable import Wire
from fiber._agent.job.config import MODULE
from fiber._runtime import runtime
from fiber.model import JobState, ReasonKind

LEASE = 2.0


def wait_for_ever():
    signal.pause()


def take_all(queue):
    total = 0
    while (item := queue.get()) is not None:
        total += item
    sys.exit(total)


def until(predicate, seconds=40):
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(target, *args):
    process = fiber.Process(target=target, args=args)
    process.start()
    assert process.pid
    return process


def supervisor_of(pid):
    parent = psutil.Process(pid).parent()
    assert MODULE in parent.cmdline()
    return parent


@pytest.fixture
def wire(remote_host):
    """Proxy that jobs dial in place of their parent."""
    with Wire() as wire:
        remote_host.use(far_forwarded=wire.address, lease=LEASE)
        wire.port = int(runtime.current().urls()[0].rpartition(":")[2])
        yield wire


class TestReach:
    def test_a_parent_that_cannot_be_dialled_is_reached_by_the_backends_address(self, wire):
        queue = fiber.Queue()
        process = start(take_all, queue)
        for item in (*range(10), None):
            queue.put(item)
        process.join(60)
        assert process.exitcode == 45
        # the supervisor, the process's work and its use of the queue
        assert wire.count >= 3

    def test_a_connection_that_ends_is_made_again_and_the_work_goes_on(self, wire):
        with fiber.Pool(1) as pool:
            pid = pool.apply(os.getpid)
            wire.cut()
            assert pool.apply(os.getpid) == pid


class TestLeases:
    def test_a_job_that_is_silent_is_given_up_and_fenced(self, wire):
        process = start(wait_for_ever)
        pid, supervisor = process.pid, supervisor_of(process.pid)
        wire.silence()
        process.join(60)
        status = process._popen.status
        assert status.state is JobState.FAILED
        assert status.reason.kind is ReasonKind.LEASE
        until(lambda: not psutil.pid_exists(pid) and not psutil.pid_exists(supervisor.pid))

    def test_a_job_whose_supervisor_is_stopped_is_given_up_too(self, remote_host):
        remote_host.use(lease=LEASE)
        process = start(wait_for_ever)
        pid, child = process.pid, process._popen
        # or it would say that it is stopped, which is no silence
        runtime.current().backend.platform.obscure(child.job)
        os.kill(supervisor_of(pid).pid, signal.SIGSTOP)
        process.join(60)
        assert child.status.reason.kind is ReasonKind.LEASE
        until(lambda: not psutil.pid_exists(pid))

    def test_a_job_that_cannot_be_fenced_ends_by_itself(self, wire, monkeypatch):
        process = start(wait_for_ever)
        pid = process.pid
        runtime.current().backend.platform.available = False
        wire.silence()
        process.join(60)
        assert process._popen.status.reason.kind is ReasonKind.LEASE
        until(lambda: not psutil.pid_exists(pid))
        runtime.current().backend.platform.available = True

    def test_the_work_of_a_lost_lease_runs_again(self, wire):
        with fiber.Pool(2) as pool:
            first = pool.apply(os.getpid)
            result = pool.map_async(time.sleep, [0.1] * 40, 1)
            os.kill(supervisor_of(first).pid, signal.SIGSTOP)
            os.kill(first, signal.SIGSTOP)
            assert result.get(60) == [None] * 40


MASTER = """
    import os, signal, time
    import fiber

    def wait_for_ever():
        signal.pause()

    if __name__ == "__main__":
        processes = [fiber.Process(target=wait_for_ever) for _ in range(2)]
        for process in processes:
            process.start()
        print(*(process.pid for process in processes), flush=True)
        signal.pause()
"""


@pytest.fixture
def master(remote_host, tmp_path):
    """Starts a program with two children, returns it and their ids."""
    script = tmp_path / "master.py"
    script.write_text(textwrap.dedent(MASTER))
    started = []

    def begin(backend):
        program = subprocess.Popen(
            [sys.executable, script],
            env={**remote_host.environ(backend, lease=LEASE), "XDG_RUNTIME_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(program)
        return program, [int(word) for word in program.stdout.readline().split()]

    yield begin
    for program in started:
        program.kill()
        program.wait()
        program.stdout.close()


def test_a_job_that_the_platform_reports_as_stopped_is_waited_for(remote_host):
    remote_host.use(lease=LEASE)
    process = start(wait_for_ever)
    supervisor, child = supervisor_of(process.pid), process._popen
    supervisor.suspend()
    until(lambda: child.status.state is JobState.SUSPENDED)
    time.sleep(LEASE + 2)
    supervisor.resume()
    until(lambda: child.status.state is JobState.RUNNING)
    process.terminate()
    process.join(60)
    assert process.exitcode == -signal.SIGTERM


class TestDeadMasters:
    @pytest.mark.parametrize("backend", ["far", "nearby"])
    def test_nothing_is_left_of_a_killed_one(self, master, remote_host, backend):
        program, pids = master(backend)
        pids += [supervisor_of(pid).pid for pid in pids]
        assert len(pids) == 4
        assert len(remote_host.left()) == 2
        program.kill()
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids), LEASE + 10)
        assert remote_host.left() == []

    def test_a_stopped_one_is_given_up_where_silence_means_something(self, master):
        program, pids = master("far")
        os.kill(program.pid, signal.SIGSTOP)
        until(lambda: not any(psutil.pid_exists(pid) for pid in pids), LEASE + 10)

    def test_a_stopped_one_is_waited_for_where_silence_means_nothing(self, master):
        program, pids = master("nearby")
        os.kill(program.pid, signal.SIGSTOP)
        time.sleep(LEASE + 2)
        assert all(psutil.pid_exists(pid) for pid in pids)
        os.kill(program.pid, signal.SIGCONT)
        # it was asleep itself, and judges nobody for that
        time.sleep(2)
        assert all(psutil.pid_exists(pid) for pid in pids)
