"""Processes and pools on a host of which nothing is known, whatever dies there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import fiber
from children import start
from fiber._base import values
from fiber._runtime import runtime
from fiber.exceptions import StartError
from fiber.model import JobState, Reason, ReasonKind
from fiber.testing import fake_remote
from pool_tasks import tell_and_wait
from remote_world import supervisor_of
from waiting import until

pytestmark = pytest.mark.usefixtures("remote_host")


def wait_for_ever():
    signal.pause()


def describe(queue, names):
    environ = {name: os.environ.get(name) for name in names}
    queue.put((str(Path.cwd()), os.getpid(), environ, psutil.Process().parent().environ()))


def note(signum, queue, times=1):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # a handler runs once the main thread does, which may have begun to read: this is written at once
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signum, lambda *_: None)
    queue.put("ready")
    for time_ in range(1, times + 1):
        os.read(reader, 1)
        queue.put((signum, time_))
    sys.exit(3)


def leave_one_behind(queue):
    queue.put(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)


def complain():
    print("a last word")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def child_of(process):
    return process._popen


class TestProcesses:
    def test_a_job_has_its_own_place_and_what_the_program_sets(self, remote_host, monkeypatch):
        monkeypatch.setenv("SET_BY_THE_PROGRAM", "1")
        monkeypatch.setenv("MKL_NUM_THREADS", "7")
        monkeypatch.setenv("XDG_CONFIG_HOME", "/mine")
        remote_host.use(cpu=2)
        expected = {
            "HOME": str(remote_host.home),
            "PATH": "/usr/bin:/bin",
            "FIBER_BACKEND": "far",
            "FIBER_BOOTSTRAP": None,
            "SET_BY_THE_PROGRAM": "1",
            # as many threads as CPUs
            "OMP_NUM_THREADS": "2",
            "MKL_NUM_THREADS": "7",
            "XDG_CONFIG_HOME": None,
        }
        queue = fiber.Queue()
        process = start(describe, queue, list(expected))
        folder, pid, environ, of_the_platform = queue.get(timeout=60)
        assert (folder, pid) == (str(remote_host.home), process.pid)
        assert environ == expected
        assert not {"SET_BY_THE_PROGRAM", "MKL_NUM_THREADS"} & of_the_platform.keys()
        assert of_the_platform["FIBER_BACKEND"] == "far"
        process.join(60)
        assert process.exitcode == 0

    @pytest.mark.parametrize(
        "act, signum", [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)]
    )
    def test_ends_by_request_are_reported_as_such(self, act, signum):
        process = start(wait_for_ever)
        assert supervisor_of(process.pid)
        getattr(process, act)()
        process.join(60)
        assert process.exitcode == -signum
        status = child_of(process).status
        assert status.reason.kind is ReasonKind.SIGNAL
        assert status.message.endswith("as asked")

    def test_an_end_by_the_platform_is_told_with_its_reason_and_words(self, caplog):
        process = start(wait_for_ever)
        assert supervisor_of(process.pid)
        assert process.exitstatus is None
        platform = runtime.current().backend.platform
        platform.lose(child_of(process).job, Reason(ReasonKind.PREEMPTED), "by job 7", grace=60)
        process.join(60)
        assert process.exitcode == -signal.SIGTERM
        end = process.exitstatus
        assert (end.reason, end.exit_code) == (Reason(ReasonKind.PREEMPTED), -signal.SIGTERM)
        assert end.message == "killed by SIGTERM: PREEMPTED: by job 7"
        # who waits for its end may know of it before the line is written
        until(lambda: f"fiber: {process.name} was ended: {end.message}" in caplog.messages)

    def test_an_interrupt_of_the_program_is_passed_on_once_unless_it_comes_again(self):
        queue = fiber.Queue()
        process = start(note, signal.SIGINT, queue, 2)
        assert queue.get(timeout=60) == "ready"
        assert child_of(process).pass_interrupt_on(again=False)
        assert queue.get(timeout=60) == (signal.SIGINT, 1)
        assert not child_of(process).pass_interrupt_on(again=False)
        assert child_of(process).pass_interrupt_on(again=True)
        assert queue.get(timeout=60) == (signal.SIGINT, 2)
        process.join(60)
        assert process.exitcode == 3
        assert not child_of(process).pass_interrupt_on(again=True)

    def test_any_signal_reaches_a_process_and_one_that_ignores_sigterm_goes_on(self):
        queue = fiber.Queue()
        process = start(note, signal.SIGUSR1, queue)
        assert queue.get(timeout=60) == "ready"
        process.terminate()
        child_of(process).signal(0, signal.SIGUSR1)
        assert queue.get(timeout=60) == (signal.SIGUSR1, 1)
        process.join(60)
        assert process.exitcode == 3

    @pytest.mark.parametrize("end", ["kill", "interrupt of the program"])
    def test_a_job_ended_before_it_runs_has_a_report(self, end):
        runtime.current().backend.platform.hold()
        process = start(wait_for_ever)
        if end == "kill":
            process.kill()
        else:
            assert child_of(process).pass_interrupt_on(again=False)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL

    def test_a_killed_process_is_reported_with_its_last_lines(self):
        process = start(complain)
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        (status,) = child_of(process).status.processes
        assert status.log_tail == ("a last word",)
        assert status.peak_memory > 1 << 20
        assert "cause unknown" in status.message

    def test_what_a_process_leaves_behind_ends_with_the_job(self):
        queue = fiber.Queue()
        process = start(leave_one_behind, queue)
        pid = queue.get(timeout=60)
        process.join(60)
        assert process.exitcode == 0
        until(lambda: not psutil.pid_exists(pid))

    def test_one_that_is_stopped_is_suspended_and_goes_on(self):
        process = start(wait_for_ever)
        changed = []
        child_of(process)._on_status = lambda _, status: changed.append(status.state)
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: JobState.SUSPENDED in changed)
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: changed[-1] is JobState.RUNNING)
        process.kill()
        process.join(60)

    def test_a_killed_supervisor_takes_its_process_with_it(self):
        queue = fiber.SimpleQueue()
        process = start(tell_and_wait, queue)
        pid = queue.get()
        supervisor_of(pid).kill()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        until(lambda: not psutil.pid_exists(pid))


class TestPools:
    def test_several_processes_share_a_job(self):
        with fiber.Pool(3, processes_per_job=3) as pool:
            assert pool.map(abs, range(50), chunksize=1) == list(range(50))
            pids = [process.pid for process in pool._pool]
            assert len({supervisor_of(pid).pid for pid in pids if pid}) == 1

    def test_a_killed_supervisor_loses_nothing(self):
        with fiber.Pool(2) as pool:
            first = pool.apply(os.getpid)
            result = pool.map_async(time.sleep, [0.05] * 40, 1)
            supervisor_of(first).kill()
            assert result.get(60) == [None] * 40


class TestJobsThatNeverComeUp:
    def test_a_python_without_fiber_is_named_with_the_command_that_mends_it(
        self, remote_host, tmp_path
    ):
        fake = tmp_path / "python3"
        fake.write_text("#!/bin/sh\necho \"$0: No module named 'fiber'\" >&2\nexit 1\n")
        fake.chmod(0o755)
        remote_host.use(far_python=str(fake))
        process = start(int)
        with pytest.raises(StartError, match="pip install 'fiber-core=="):
            process.join(60)

    @pytest.fixture(params=[False, True], ids=["own log", "log on the terminal"])
    def shown(self, request, remote_host, monkeypatch):
        """Whether output is on the terminal; Fiber has another version there."""
        capabilities = values.evolve(fake_remote.REMOTE_CAPABILITIES, output=request.param)
        monkeypatch.setattr(fake_remote, "REMOTE_CAPABILITIES", capabilities)
        remote_host.use()
        (remote_host.site / "sitecustomize.py").write_text(
            "import fiber._version\nfiber._version.__version__ = '99.1'\n"
        )
        return request.param

    def test_another_version_of_fiber_is_refused_naming_both_once(self, shown, caplog):
        process = start(int)
        with pytest.raises(StartError, match=r"fiber is .* and 99\.1 on .*pip install"):
            process.join(60)
        assert child_of(process).status.state is JobState.FAILED
        assert caplog.messages == []
        log = "\n".join(runtime.started().backend.logs(child_of(process).job))
        assert log.count("99.1") == (0 if shown else 1)

    @pytest.mark.usefixtures("shown")
    def test_a_pool_says_so_once_though_all_its_workers_are_refused(self, caplog, capfd):
        with fiber.Pool(3) as pool, pytest.raises(StartError, match=r"99\.1 on .*pip install"):
            pool.map(abs, [1])
        told = caplog.text + capfd.readouterr().err
        assert told.count("99.1") <= 1, told

    def test_one_that_nobody_waits_for_is_told_of_in_the_log(self, remote_host, caplog):
        remote_host.use(far_python="/nowhere/python3")
        process = start(int)
        until(lambda: caplog.messages)
        assert caplog.messages[0].startswith(f"fiber: {process.name} did not start")
        with pytest.raises(StartError):
            process.join(60)
        assert len(caplog.messages) == 1
