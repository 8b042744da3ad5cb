"""Leases, and ways that end: jobs and their parents notice, and nothing is left."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

import fiber
from children import start
from cuttable import StreamCutter, Wire
from fiber._runtime import runtime
from fiber.model import JobState, ReasonKind
from fiber.testing.fake_remote import AWAY
from remote_world import supervisor_of
from supervised import until_gone
from waiting import until

#: a sign of life each half second; a job that ends by itself is seen to 1.5 s after its lease, by when its
#: parent has given it up
SOON = {"lease": 4.0, "time_scale": 0.5}
#: in seconds, until a lease that is not renewed has ended
ENDED = 5.0


def wait_for_ever(ready):
    ready.set()
    signal.pause()


def started():
    """A process that waits, with the ids of it and of its supervisor."""
    ready = fiber.Event()
    process = start(wait_for_ever, ready)
    # one that is still dialling would end by itself
    assert ready.wait(60)
    return process, [process.pid, supervisor_of(process.pid).pid]


@contextlib.contextmanager
def wired(remote_host, **settings):
    """Proxy that jobs dial in place of their parent."""
    with Wire() as wire:
        remote_host.use(far_forwarded=wire.address, **settings)
        wire.port = int(runtime.current().urls()[0].rpartition(":")[2])
        yield wire


def test_a_connection_that_ends_is_made_again_and_the_work_goes_on(remote_host):
    with wired(remote_host) as wire, fiber.Pool(1) as pool:
        pid = pool.apply(os.getpid)
        before = wire.count
        wire.cut()
        assert pool.apply(os.getpid) == pid
        assert wire.count > before > 0


@pytest.fixture(params=["dialled", "by streams"])
def fall_silent(request, remote_host):
    """Cuts off all jobs of this process, however they are reached."""
    if request.param == "dialled":
        with wired(remote_host, **SOON) as wire:
            yield wire.silence
        return
    remote_host.use(far_streams=True, **SOON)
    yield StreamCutter(runtime.current().backend).cut_for_good


class TestLeases:
    @pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "out of reach"])
    def test_a_job_that_is_silent_is_given_up_and_ends(self, fall_silent, remote_host, fenced):
        process, pids = started()
        away = remote_host.home / AWAY
        if not fenced:
            # nobody can end it from outside: its supervisor does
            away.touch()
        fall_silent()
        process.join(60)
        status = process._popen.status
        assert (status.state, status.reason.kind) == (JobState.FAILED, ReasonKind.LEASE)
        until_gone(*pids)
        away.unlink(missing_ok=True)

    def test_a_job_whose_supervisor_is_stopped_is_given_up_too(self, remote_host):
        remote_host.use(**SOON)
        process, pids = started()
        child = process._popen
        # or it would say that it is stopped, which is no silence
        runtime.current().backend.platform.obscure(child.job)
        os.kill(pids[1], signal.SIGSTOP)
        process.join(60)
        assert child.status.reason.kind is ReasonKind.LEASE
        until_gone(*pids)

    @pytest.mark.parametrize("streams", [False, True], ids=["dialled", "by streams"])
    def test_the_work_of_a_lost_lease_runs_again(self, remote_host, streams):
        remote_host.use(far_streams=streams, **SOON)
        with fiber.Pool(2) as pool:
            first = pool.apply(os.getpid)
            result = pool.map_async(time.sleep, [0.05] * 40, 1)
            supervisor_of(first).suspend()
            os.kill(first, signal.SIGSTOP)
            assert result.get(60) == [None] * 40

    def test_a_job_that_the_platform_reports_as_stopped_is_waited_for(self, remote_host):
        remote_host.use(**SOON)
        process, (_, supervisor) = started()
        child = process._popen
        os.kill(supervisor, signal.SIGSTOP)
        until(lambda: child.status.state is JobState.SUSPENDED)
        time.sleep(ENDED)
        os.kill(supervisor, signal.SIGCONT)
        until(lambda: child.status.state is JobState.RUNNING)
        process.terminate()
        process.join(60)
        assert process.exitcode == -signal.SIGTERM


MASTER = """
    import signal
    import fiber

    def wait_for_ever(ready):
        ready.put(True)
        signal.pause()

    if __name__ == "__main__":
        ready = fiber.SimpleQueue()
        processes = [fiber.Process(target=wait_for_ever, args=(ready,)) for _ in range(2)]
        for process in processes:
            process.start()
        for _ in processes:
            ready.get()
        print(*(process.pid for process in processes), flush=True)
        signal.pause()
"""


@pytest.fixture
def master(remote_host, tmp_path):
    """Starts a program with two children; returns it and their ids and their supervisors'."""
    script = tmp_path / "master.py"
    script.write_text(textwrap.dedent(MASTER))
    programs = []

    def begin(backend, **settings):
        program = subprocess.Popen(
            [sys.executable, script],
            env={**remote_host.environ(backend, **settings), "XDG_RUNTIME_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        programs.append(program)
        pids = [int(word) for word in program.stdout.readline().split()]
        assert len(pids) == 2
        return program, [*pids, *(supervisor_of(pid).pid for pid in pids)]

    yield begin
    for program in programs:
        program.kill()
        program.wait()
        program.stdout.close()
        program.stderr.close()


class TestDeadMasters:
    @pytest.mark.parametrize(
        "backend, settings",
        [
            # at the usual pace
            pytest.param("far", {"lease": 2.0}, id="far"),
            pytest.param("nearby", SOON, id="nearby"),
            pytest.param("far", {"far_streams": "1", **SOON}, id="by streams"),
        ],
    )
    def test_nothing_is_left_of_a_killed_one(self, master, remote_host, backend, settings):
        program, pids = master(backend, **settings)
        assert len(remote_host.left()) == 2
        program.kill()
        until_gone(*pids)
        assert remote_host.left() == []
        assert program.stderr.read().count("cannot dial this program") <= 1

    def test_a_stopped_one_is_given_up_where_silence_means_something(self, master):
        program, pids = master("far", **SOON)
        program.send_signal(signal.SIGSTOP)
        # their supervisors are children of the program, which waits for nobody
        until_gone(*pids[:2])

    def test_a_stopped_one_is_waited_for_where_silence_means_nothing(self, master):
        program, pids = master("nearby", **SOON)
        program.send_signal(signal.SIGSTOP)
        time.sleep(ENDED)
        assert all(psutil.pid_exists(pid) for pid in pids)
        program.send_signal(signal.SIGCONT)
        # it was asleep itself, and judges nobody for that
        time.sleep(ENDED)
        assert all(psutil.pid_exists(pid) for pid in pids)
