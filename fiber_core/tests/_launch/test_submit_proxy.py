"""Backend calls of a child reach its parent's backend, and statuses of its jobs come back."""

import queue
import threading
from types import SimpleNamespace
from unittest.mock import Mock, call

import pytest

from fiber._launch.submit_proxy import TARGET, ProxyBackend, SubmitProxy
from fiber._wire import codec, frames
from fiber._wire.frames import Kind, Message
from fiber.exceptions import BackendUnavailableError, FiberError, PeerLostError, SubmitError
from fiber.model import (
    Capacity,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    Reach,
    ReachKind,
    Reason,
    ReasonKind,
)
from waiting import until

SPEC = JobSpec(run_id="r", name="a job", argv=("p",), private=b"secret")
RUNS = JobStatus(state=JobState.RUNNING)
ENDED = JobStatus(state=JobState.FAILED, exit_code=3, reason=Reason(ReasonKind.EXIT, 3))


class Wire:
    """One connection: the child's client and the parent's peer in one."""

    def __init__(self, relays, ident="child"):
        self.ident, self.lost = ident, False
        self._relays = relays
        self._answers = {}
        self._cast = self._on_lost = lambda *_: None

    # of the client

    def call(self, target, segments):
        assert target == TARGET
        if self.lost:
            raise PeerLostError("gone")
        number = len(self._answers) + 1
        answer = self._answers[number] = queue.SimpleQueue()
        body = memoryview(frames.joined(segments))
        self._relays.on_message(self, Message(Kind.CALL, target, number, body))
        found = []

        def result():
            kind, body = found[0]
            if kind is Kind.ERROR:
                raise codec.loads(body)
            return body

        return SimpleNamespace(wait=lambda: found.append(answer.get(timeout=20)), result=result)

    def on_cast(self, target, action):
        self._cast = action

    def on_lost(self, action):
        self._on_lost = action

    def close(self):
        self.lost = True

    # of the peer

    def send(self, kind, target, number, segments=()):
        body = memoryview(frames.joined(segments))
        if kind is Kind.CAST:
            self._cast(Message(kind, target, 0, body))
        else:
            self._answers[number].put((kind, body))

    def cut(self):
        self.lost = True
        self._relays.on_peer_lost(self)
        self._on_lost()


class World:
    def __init__(self):
        self.job = Job(id="1", name=SPEC.name, run_id="r", backend="remote")
        self.platform = Mock()
        self.platform.submit.return_value = self.job
        self.platform.terminate.return_value = self.platform.kill.return_value = None
        self.platform.status.return_value = [RUNS]
        self.platform.logs.return_value = iter(["one", "two", "three"])
        self.platform.capacity.return_value = Capacity(cpus=8.0)
        self.platform.reach.return_value = Reach(ReachKind.DIRECT)
        self.early = []
        self.relays = SubmitProxy(
            SimpleNamespace(
                backend=self.platform,
                submit=self.platform.submit,
                endpoint=SimpleNamespace(serve=lambda target, service: None),
                launcher=SimpleNamespace(early_statuses=lambda job: self.early),
            )
        )
        self.wires = []
        self.statuses = []
        self.failures = []
        self.backend = ProxyBackend("remote", self.connect)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def asked(self):
        """What the platform was asked to do, but to start a job."""
        return [one for one in self.platform.mock_calls if one[0] != "submit"]

    def connect(self):
        self.wires.append(Wire(self.relays))
        return self.wires[-1]

    def _read(self):
        try:
            for job, status in self.backend.events("r"):
                self.statuses.append((job.id, status))
        except FiberError as error:
            self.failures.append(error)


@pytest.fixture
def world():
    world = World()
    yield world
    world.backend.close()
    world.reader.join(20)
    until(lambda: not any(t.name == "fiber-submit-proxy" for t in threading.enumerate()))


@pytest.mark.parametrize("early", [[], [RUNS]])
def test_a_job_is_submitted_and_its_changes_come_back_early_ones_too(world, early):
    world.early = early
    job = world.backend.submit(SPEC)
    world.platform.submit.assert_called_once_with(SPEC)
    for status in (RUNS, ENDED, ENDED)[len(early) :]:
        assert world.relays.observed(job, status)
    until(lambda: len(world.statuses) == 2)
    assert world.statuses == [(job.id, RUNS), (job.id, ENDED)]
    # jobs of others are none of it
    other = Job(id="x", name="n", run_id="r", backend="remote")
    assert not world.relays.observed(other, RUNS)


def test_a_refusal_is_the_platforms(world):
    world.platform.submit.side_effect = SubmitError("no room")
    with pytest.raises(SubmitError, match="no room"):
        world.backend.submit(SPEC)


def test_requests_and_questions_go_through_and_nothing_else(world):
    job = world.backend.submit(SPEC)
    world.backend.terminate(job, grace=1.0)
    world.backend.kill(job)
    assert world.asked() == [call.terminate(job), call.kill(job)]
    assert world.backend.status([job]) == [RUNS]
    assert world.backend.capacity() == Capacity(cpus=8.0)
    assert world.backend.reach(job).kind is ReachKind.DIRECT
    assert list(world.backend.logs(job, tail=2)) == ["two", "three"]
    assert [check.ok for check in world.backend.check()] == [True]
    with pytest.raises(FiberError, match="is not asked of a parent"):
        world.backend._ask("cleanup", "r")
    world.backend.cleanup("r")
    world.platform.cleanup.assert_not_called()


def test_statuses_missed_while_disconnected_are_delivered(world):
    job = world.backend.submit(SPEC)
    wire = world.wires[0]
    world.relays.on_peer_lost(wire)
    world.relays.observed(job, ENDED)
    wire.cut()
    until(lambda: world.statuses == [(job.id, ENDED)])
    assert len(world.wires) == 2


def test_a_parent_that_is_gone_ends_the_events(world):
    world.backend.submit(SPEC)

    def refuse():
        raise PeerLostError("nobody there")

    world.backend._connect = refuse
    world.wires[0].cut()
    until(lambda: world.failures)
    with pytest.raises(BackendUnavailableError, match="cannot be asked"):
        world.backend.capacity()
    assert [check.ok for check in world.backend.check()] == [False]


def test_jobs_end_with_the_process_that_asked_for_them(world):
    first, second = world.backend.submit(SPEC), world.backend.submit(SPEC)
    assert first == second == world.job
    world.relays.ended(["another"])
    assert world.asked() == []
    world.relays.ended(["child"])
    until(lambda: world.asked() == [call.kill(world.job)])
    world.relays.ended(["child"])


def test_those_that_have_ended_are_left_alone(world):
    job = world.backend.submit(SPEC)
    world.relays.observed(job, ENDED)
    world.relays.ended(["child"])
    assert world.asked() == []
