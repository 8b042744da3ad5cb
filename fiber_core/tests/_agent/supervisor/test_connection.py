"""A master's end of the channel: a supervisor that is gone is found out, and its jobs with it."""

import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from fiber._agent.supervisor import client, messages
from fiber._agent.supervisor.client import SupervisorClient, SupervisorGoneError
from fiber._agent.supervisor.messages import Decoder, encode
from fiber.exceptions import ForkedError, WireError
from fiber.model import JobSpec, JobState, JobStatus, ProcessStatus, Reason, ReasonKind, Timing
from making import making
from supervised import exit_code_of, is_alive, until_gone
from waiting import until

#: signs of life come often, and all that healthy peers have to be in time for is as long as ever
OFTEN = Timing(heartbeat=0.1)


def test_a_killed_supervisor_is_lost_with_all_its_jobs_once(own):
    jobs = [own.ready("wait", processes=2), own.submit("with_grandchild")]
    grandchild = int(own.lines(jobs[1], 1)[0])

    own.process.kill()

    assert "ended without a word" in own.reasons.get(timeout=30)
    for job in jobs:
        terminal = [s for s in own.statuses[job.job_id] if s.state.is_terminal]
        assert [s.reason for s in terminal] == [Reason(ReasonKind.NODE_LOST)]
        assert terminal[0].exit_code == -signal.SIGKILL
    until_gone(grandchild, *(pid for job in jobs for pid in job.pids))


@pytest.mark.parametrize("private", [b"", b"x" * (64 << 20)], ids=["pending", "blocked"])
def test_a_silent_supervisor_is_killed_with_its_jobs_and_requests_fail(make, private):
    supervised = make(silence=1.0, timing=OFTEN)
    job = supervised.ready("ignore_signals")
    supervised.process.send_signal(signal.SIGSTOP)

    with pytest.raises(SupervisorGoneError, match="silent"):
        supervised.submit("wait", private)
    with pytest.raises(SupervisorGoneError, match="silent"):
        supervised.submit("wait")

    assert "it has been silent for" in supervised.reasons.get(timeout=30)
    assert supervised.process.returncode == -signal.SIGKILL
    assert supervised.end(job).reason == Reason(ReasonKind.NODE_LOST)
    until_gone(*job.pids)


class Peer:
    """Plays a supervisor."""

    def __init__(self, **options):
        ours, self.socket = socket.socketpair()
        self.ends = []
        self.events = []
        self.client = SupervisorClient(
            ours,
            on_status=lambda job_id, status: self.events.append((job_id, status)),
            on_notice=self.events.append,
            on_end=self.ends.append,
            **{"silence": 20.0, "timing": OFTEN, **options},
        )
        self._decoder = Decoder()

    def receive(self, kind):
        while True:
            for message in self._decoder.messages():
                if isinstance(message, kind):
                    return message
            data = self.socket.recv(65536)
            assert data, f"the client has ended: {self.ends}"
            self._decoder.feed(data)

    def send(self, *sent):
        self.socket.sendall(b"".join(map(encode, sent)))

    def close(self):
        self.socket.close()
        self.client.close()


@pytest.fixture
def peer():
    with making(Peer, Peer.close) as make:
        yield make


@pytest.fixture
def asking():
    """Threads that wait for replies."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def test_a_supervisor_that_leaves_has_not_carried_out_what_it_did_not_answer(asking, peer):
    played = peer()
    reply = asking(played.client.kill, "a")
    played.receive(messages.Kill)

    played.send(messages.Exiting())
    played.socket.close()

    assert isinstance(reply.exception(30), SupervisorGoneError)
    played.client.close()
    assert played.ends == [""]


def test_replies_reach_their_requests_in_any_order(asking, peer):
    played = peer()
    replies, requests = [], []
    for _ in range(3):
        replies.append(asking(played.client.preload, ("m",)))
        requests.append(played.receive(messages.Preload))
    for request in reversed(requests):
        played.send(messages.Done(number=request.number, words={"m": str(request.number)}))

    found = [reply.result(30) for reply in replies]
    assert found == [{"m": str(request.number)} for request in requests]


def test_the_acceptance_of_a_job_comes_before_its_statuses(asking, peer):
    played = peer()
    spec = JobSpec(run_id="0badcafe", name="a", argv=("a",))
    reply = asking(
        lambda: played.client.submit(spec, environ={}, cwd="/", on_accepted=played.events.append)
    )
    request = played.receive(messages.Submit)
    accepted = messages.Accepted(number=request.number, job_id="a", pids=(1,))
    status = JobStatus(state=JobState.SUCCEEDED, exit_code=0)
    played.send(accepted, messages.StatusChanged(job_id="a", status=status))

    assert reply.result(30) == accepted
    played.socket.close()
    played.client.close()
    assert played.events == [accepted, ("a", status)]


def test_nonsense_is_the_end(peer):
    played = peer()
    played.socket.sendall(b"\xff" * 10)

    until(lambda: played.ends)
    assert "it speaks nonsense" in played.ends[0]


def test_an_import_may_take_longer_than_the_lease(asking, peer):
    # until it greets it has longer, and so has a busy machine for the request
    process = SimpleNamespace(pid=os.getpid(), kill=lambda: None, wait=lambda timeout: 0)
    played = peer(silence=0.05, process=process)
    reply = asking(played.client.preload, ("heavy",))
    request = played.receive(messages.Preload)
    played.send(messages.Hello(pid=os.getpid()))

    # the client asks for signs of life; twice without an answer is far too long
    played.receive(messages.Ping)
    played.receive(messages.Ping)
    played.send(messages.Done(number=request.number))

    assert reply.result(30) == {}


def test_a_master_that_was_stopped_itself_does_not_judge(asking, peer, monkeypatch):
    stopped_for = 0.0
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stopped_for)
    monkeypatch.setattr(client, "time", clock)
    played = peer(silence=60.0)
    played.receive(messages.Ping)

    # to whoever was stopped that is a jump of the clock
    stopped_for = 1000.0
    for _ in range(5):
        # the last of them was sent after it
        played.receive(messages.Ping)
    reply = asking(played.client.kill, "a")
    request = played.receive(messages.Kill)
    played.send(messages.Done(number=request.number))

    assert reply.result(30) is None
    assert not played.ends


def test_many_threads_may_close_it_and_more_than_once(asking, own):
    for ended in [asking(own.client.close) for _ in range(5)]:
        ended.result(30)
    own.client.close()

    assert own.process.returncode == 0
    assert own.client.has_ended
    assert not own.client.is_running
    with pytest.raises(SupervisorGoneError):
        own.submit("wait")


def test_a_fork_of_the_user_cannot_use_it_and_harms_nothing(supervised):
    accepted = supervised.ready("wait")

    def use():
        supervised.client.close()
        try:
            supervised.settle()
        except ForkedError:
            return 0
        return 1

    assert exit_code_of(use) == 0
    supervised.settle()
    assert all(map(is_alive, accepted.pids))


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
