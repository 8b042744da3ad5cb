"""Requests of a master to its supervisor until the end, and jobs whose supervisor is lost."""

import signal
import threading

import pytest

from fiber._agent.supervisor import client
from fiber._agent.supervisor.client import SupervisorGoneError
from fiber.exceptions import ForkedError, WireError
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from supervised import exit_code_of


def test_many_threads_may_close_it_and_more_than_once(own):
    threads = [threading.Thread(target=own.client.close) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own.client.close()

    assert own.process.returncode == 0
    assert own.client.has_ended
    assert not own.client.is_running
    with pytest.raises(SupervisorGoneError):
        own.submit("wait")


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
RUNNING = ProcessStatus(index=1, state=JobState.RUNNING, pid=2)


@pytest.mark.parametrize("processes", [(ENDED, RUNNING), (RUNNING,), ()])
def test_what_lived_is_lost_and_what_had_ended_stays_and_no_attempt_is_counted(processes):
    status = client.lost_status(JobStatus(state=JobState.RUNNING, processes=processes), "gone")

    assert (status.state, status.message) == (JobState.FAILED, "gone")
    assert status.reason == Reason(ReasonKind.NODE_LOST)
    assert not status.reason.counts_as_attempt
    if ENDED in processes:
        assert status.processes[0] == ENDED
    else:
        assert status.exit_code == -signal.SIGKILL
    if RUNNING in processes:
        lost = status.processes[-1]
        assert (lost.exit_code, lost.reason) == (-signal.SIGKILL, status.reason)


def test_processes_that_have_ended_are_not_signalled():
    client.kill_groups(JobStatus(state=JobState.SUCCEEDED, processes=(ENDED,)))
