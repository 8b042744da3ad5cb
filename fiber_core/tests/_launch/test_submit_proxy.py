"""Backend calls of a child reach its parent's backend, and statuses of its jobs come back."""

import queue
import threading
from types import SimpleNamespace

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


class Platform:
    def __init__(self):
        self.calls = []
        self.refusal = None

    def submit(self, spec):
        if self.refusal is not None:
            raise self.refusal
        assert spec == SPEC
        return Job(id=str(len(self.calls) + 1), name=spec.name, run_id="r", backend="remote")

    def kill(self, job):
        self.calls.append(("kill", job.id))

    def terminate(self, job):
        self.calls.append(("terminate", job.id))

    def status(self, jobs):
        return [RUNS for _ in jobs]

    def logs(self, job):
        yield from ("one", "two", "three")

    def capacity(self):
        return Capacity(cpus=8.0)

    def reach(self, job):
        return Reach(ReachKind.DIRECT)

    def cleanup(self, run_id):
        self.calls.append(("cleanup", run_id))


class World:
    def __init__(self):
        self.platform = Platform()
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


def test_a_job_is_submitted_and_its_changes_come_back(world):
    job = world.backend.submit(SPEC)
    for status in (RUNS, ENDED, ENDED):
        assert world.relays.observed(job, status)
    until(lambda: len(world.statuses) == 2)
    assert world.statuses == [(job.id, RUNS), (job.id, ENDED)]


def test_what_came_before_the_answer_comes_too(world):
    world.early = [RUNS]
    job = world.backend.submit(SPEC)
    until(lambda: world.statuses == [(job.id, RUNS)])


def test_jobs_of_others_are_none_of_it(world):
    assert not world.relays.observed(Job(id="x", name="n", run_id="r", backend="remote"), RUNS)


def test_a_refusal_is_the_platforms(world):
    world.platform.refusal = SubmitError("no room")
    with pytest.raises(SubmitError, match="no room"):
        world.backend.submit(SPEC)


def test_requests_and_questions_go_through(world):
    job = world.backend.submit(SPEC)
    world.backend.terminate(job, grace=1.0)
    world.backend.kill(job)
    assert world.platform.calls == [("terminate", job.id), ("kill", job.id)]
    assert world.backend.status([job]) == [RUNS]
    assert world.backend.capacity() == Capacity(cpus=8.0)
    assert world.backend.reach(job).kind is ReachKind.DIRECT
    assert list(world.backend.logs(job, tail=2)) == ["two", "three"]
    assert [check.ok for check in world.backend.check()] == [True]


def test_a_child_cannot_ask_for_anything_else(world):
    with pytest.raises(FiberError, match="is not asked of a parent"):
        world.backend._ask("cleanup", "r")
    world.backend.cleanup("r")
    assert world.platform.calls == []


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
    assert first.id == second.id == "1"
    world.relays.ended(["another"])
    assert world.platform.calls == []
    world.relays.ended(["child"])
    until(lambda: world.platform.calls == [("kill", "1")])
    world.relays.ended(["child"])


def test_those_that_have_ended_are_left_alone(world):
    job = world.backend.submit(SPEC)
    world.relays.observed(job, ENDED)
    world.relays.ended(["child"])
    assert world.platform.calls == []
