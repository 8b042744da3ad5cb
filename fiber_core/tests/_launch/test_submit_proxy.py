"""Backend calls of a child reach its parent's backend, and statuses of its jobs come back."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock, call

import attrs
import pytest

import objects_world
from fiber._launch.submit_proxy import ManyProxyBackend, SubmitProxy
from fiber.exceptions import (
    BackendUnavailableError,
    FiberError,
    PeerLostError,
    SubmitError,
    UnknownJobError,
)
from fiber.model import (
    Capacity,
    Job,
    JobSpec,
    Reach,
    ReachKind,
)
from tasks_world import RUNNING, ended
from waiting import until

SPEC = JobSpec(run_id="r", name="a job", argv=("p",), private=b"secret")
ENDED = ended(3)


class World:
    """A child and its parent, connected for real, and the platform that the parent asks."""

    def __init__(self, nodes):
        self.job = Job(id="1", name=SPEC.name, run_id="r", backend="remote")
        self.platform = Mock()
        self.platform.submit.return_value = self.job
        self.platform.terminate.return_value = self.platform.kill.return_value = None
        self.platform.status.return_value = [RUNNING]
        self.platform.logs.return_value = iter(["one", "two", "three"])
        self.platform.capacity.return_value = Capacity(cpus=8.0)
        self.platform.reach.return_value = Reach(ReachKind.DIRECT)
        self.early = []
        self.child = nodes.node("child")
        self.endpoint = nodes.node("parent").endpoint
        self.relays = SubmitProxy(
            SimpleNamespace(
                backend=self.platform,
                submit=self.platform.submit,
                submit_many=self.platform.submit_many,
                endpoint=self.endpoint,
                launcher=SimpleNamespace(early_statuses=lambda job: self.early),
            )
        )
        self.statuses = []
        self.failures = []
        self.may_connect = threading.Event()
        self.may_connect.set()
        self.backend = ManyProxyBackend("remote", self.connect)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def asked(self):
        """What the platform was asked to do, but to start a job."""
        return [one for one in self.platform.mock_calls if one[0] != "submit"]

    def connect(self):
        assert self.may_connect.wait(60)
        return self.child.client(self.endpoint.urls[0])

    def cut(self):
        """Cut the connection; another one is made when it may be."""
        self.may_connect.clear()
        for peer in self.endpoint.peers():
            peer.close()
        until(lambda: not self.relays._peers)

    def _read(self):
        try:
            for job, status in self.backend.events("r"):
                self.statuses.append((job.id, status))
        except FiberError as error:
            self.failures.append(error)


@pytest.fixture
def world(folder):
    nodes = objects_world.World(folder)
    world = World(nodes)
    yield world
    world.backend.close()
    world.reader.join(20)
    until(lambda: not any(t.name == "fiber-submit-proxy" for t in threading.enumerate()))
    nodes.close()


@pytest.mark.parametrize("early", [[], [RUNNING]])
def test_a_job_is_submitted_and_its_changes_come_back_early_ones_too(world, early):
    world.early = early
    job = world.backend.submit(SPEC)
    world.platform.submit.assert_called_once_with(SPEC)
    for status in (RUNNING, ENDED, ENDED)[len(early) :]:
        assert world.relays.observed(job, status)
    until(lambda: len(world.statuses) == 2)
    assert world.statuses == [(job.id, RUNNING), (job.id, ENDED)]
    # jobs of others are none of it
    other = Job(id="x", name="n", run_id="r", backend="remote")
    assert not world.relays.observed(other, RUNNING)


def test_a_refusal_is_the_platforms(world):
    world.platform.submit.side_effect = SubmitError("no room")
    with pytest.raises(SubmitError, match="no room"):
        world.backend.submit(SPEC)


def test_many_jobs_are_one_call_there_too_and_each_is_answered_for_itself(world):
    world.platform.submit_many.return_value = [world.job, SubmitError("no room")]
    world.early = [RUNNING]

    job, refused = world.backend.submit_many([SPEC, SPEC])

    assert world.asked() == [call.submit_many([SPEC, SPEC])]
    assert (job, str(refused)) == (world.job, "no room")
    until(lambda: world.statuses == [(job.id, RUNNING)])
    world.relays.ended(["child"])
    until(lambda: world.asked()[1:] == [call.kill(job)])


def test_requests_and_questions_go_through_and_nothing_else(world):
    job = world.backend.submit(SPEC)
    world.backend.terminate(job, grace=1.0)
    world.backend.kill(job)
    assert world.asked() == [call.terminate(job), call.kill(job)]
    assert world.backend.status([job]) == [RUNNING]
    assert world.backend.capacity() == Capacity(cpus=8.0)
    assert world.backend.reach(job).kind is ReachKind.DIRECT
    assert list(world.backend.logs(job, tail=2)) == ["two", "three"]
    assert [check.ok for check in world.backend.check()] == [True]
    # others' jobs, and words of its own for its job, are not for the platform
    asked, other = len(world.asked()), attrs.evolve(job, id="2")
    for method in ("kill", "terminate", "logs", "reach", "status"):
        with pytest.raises(UnknownJobError, match="2 was not started by process child"):
            world.backend._ask(method, [job, other] if method == "status" else other)
    world.backend.kill(attrs.evolve(job, name="another", run_id="another"))
    assert world.asked()[asked:] == [call.kill(job)]
    with pytest.raises(FiberError, match="is not asked of a parent"):
        world.backend._ask("cleanup", "r")
    world.backend.cleanup("r")
    world.platform.cleanup.assert_not_called()


def test_a_platform_is_asked_some_questions_at_once_and_the_others_wait(world, monkeypatch):
    monkeypatch.setattr(world.relays._threads, "_limit", 2)
    answer, take, taken = threading.Event(), world.relays.on_message, []
    monkeypatch.setattr(world.relays, "on_message", lambda *words: taken.append(take(*words)))
    world.platform.capacity.side_effect = lambda: answer.wait(60) and Capacity(cpus=8.0)
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(world.backend.capacity) for _ in range(6)]
        until(lambda: len(taken) == 6)
        threads = sum(thread.name == "fiber-submit-proxy" for thread in threading.enumerate())
        answer.set()
        assert (threads, [one.result().cpus for one in asked]) == (2, [8.0] * 6)


def test_statuses_missed_while_disconnected_are_delivered(world):
    job = world.backend.submit(SPEC)
    world.cut()
    world.relays.observed(job, ENDED)
    world.may_connect.set()
    until(lambda: world.statuses == [(job.id, ENDED)])


def test_a_parent_that_is_gone_ends_the_events(world):
    world.backend.submit(SPEC)

    def refuse():
        raise PeerLostError("nobody there")

    world.backend._connect = refuse
    world.cut()
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
