"""Requests of a master to its supervisor until the end, and jobs whose supervisor is lost."""

import os
import signal
import threading

import pytest

from fiber._agent.supervisor import client
from fiber._agent.supervisor.client import SupervisorGoneError
from fiber.exceptions import ForkedError, WireError
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from supervised import exit_code_of


def test_closing_twice_is_no_error(own):
    own.client.close()
    own.client.close()

    assert own.client.has_ended
    assert not own.client.is_running
    with pytest.raises(SupervisorGoneError):
        own.submit("wait")


def test_many_threads_may_close_it(own):
    threads = [threading.Thread(target=own.client.close) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert own.process.returncode == 0


def test_a_fork_of_the_user_cannot_use_it_and_harms_nothing(supervised):
    supervised.ready("wait")

    def use():
        supervised.client.close()
        try:
            supervised.client.query()
        except ForkedError:
            return 0
        return 1

    assert exit_code_of(use) == 0
    assert len(supervised.client.query()) == 1


def test_what_cannot_be_sent_harms_nothing(supervised):
    with pytest.raises(WireError):
        supervised.submit("wait", labels={"x": object()})

    assert supervised.run("exit_with", b"\3").exit_code == 3


ENDED = ProcessStatus(index=0, state=JobState.SUCCEEDED, exit_code=0, pid=1)


def test_what_lived_is_lost_and_what_had_ended_stays():
    running = ProcessStatus(index=1, state=JobState.RUNNING, pid=2)
    status = client.lost_status(
        JobStatus(state=JobState.RUNNING, processes=(ENDED, running)), "gone"
    )

    assert status.state is JobState.FAILED
    assert (status.reason, status.message) == (Reason(ReasonKind.NODE_LOST), "gone")
    assert status.processes[0] == ENDED
    assert status.processes[1].exit_code == -signal.SIGKILL
    assert status.processes[1].reason == Reason(ReasonKind.NODE_LOST)


def test_it_counts_as_no_attempt():
    status = client.lost_status(client.accepted_status([1]), "gone")

    assert status.reason is not None
    assert not status.reason.counts_as_attempt


def test_a_job_without_processes_is_lost_too():
    status = client.lost_status(client.accepted_status([]), "gone")

    assert (status.state, status.exit_code) == (JobState.FAILED, -signal.SIGKILL)


def test_groups_of_living_processes_are_killed():
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.fork()
        os.write(writer, b"x")
        signal.alarm(20)
        while True:
            signal.pause()
    os.close(writer)
    assert os.read(reader, 1) == b"x"

    client.kill_groups(client.accepted_status([pid]))

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    # the grandchild held the pipe as well
    while os.read(reader, 1):
        pass
    os.close(reader)


def test_processes_that_have_ended_are_not_signalled():
    client.kill_groups(JobStatus(state=JobState.SUCCEEDED, processes=(ENDED,)))
