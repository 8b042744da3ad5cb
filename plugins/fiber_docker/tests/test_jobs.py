"""Containers are created, started and removed in an order that leaves none, whatever happens."""

import contextlib
import socket
import threading

import attrs
import pytest

from fiber.backend_parts.feed import Feed
from fiber.exceptions import BackendError, BackendUnavailableError
from fiber.model import JobSpec, JobState, JobStatus, Reason, ReasonKind
from fiber_docker.config import DockerConfig
from fiber_docker.container import ContainerContext
from fiber_docker.devices import Devices
from fiber_docker.images import Images
from fiber_docker.jobs import JobStarter
from fiber_docker.stream import Stream
from fiber_docker.timing import DockerTiming

PATIENCE = 30.0


@attrs.define(slots=False)
class FakeClient:
    """An engine whose answers come when a test says so."""

    containers: set = attrs.field(factory=set)
    makers: list = attrs.field(factory=list)
    asked: threading.Event = attrs.field(factory=threading.Event)
    may_make: threading.Event = attrs.field(factory=threading.Event)
    may_start: threading.Event = attrs.field(factory=threading.Event)
    ends: list = attrs.field(factory=list)
    #: starts that were not answered yet
    starting: int = 0
    on_start: object = lambda name: None
    on_signal: object = lambda name: None

    def create(self, name, body):
        self.makers.append(threading.current_thread())
        self.asked.set()
        assert self.may_make.wait(PATIENCE)
        self.containers.add(name)

    def attach(self, name, *, stdin, output):
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        return Stream(ours)

    def start(self, container, name):
        self.on_start(container)
        self.starting += 1
        try:
            assert self.may_start.wait(PATIENCE)
        finally:
            self.starting -= 1

    def put(self, container, folder, archive):
        pass

    def signal(self, name, number):
        self.on_signal(name)

    def remove(self, name):
        self.containers.discard(name)


@pytest.fixture
def client():
    client = FakeClient()
    yield client
    for end in client.ends:
        end.close()


@pytest.fixture
def feed():
    feed = Feed()
    yield feed
    feed.close()


@pytest.fixture
def starter(client, feed):
    config = DockerConfig(pull="never")
    images = Images(client, config)
    devices = Devices(client, {}, "python3")
    starter = JobStarter(
        "docker", client, config, feed, images, devices, DockerTiming(), partial_line=0.1
    )
    yield starter
    client.may_make.set()
    client.may_start.set()
    starter.close()


def process(**fields):
    """One of Fiber's own processes."""
    return attrs.evolve(
        JobSpec(run_id="00c0ffee", name="p", argv=("python3", "-m", "x"), entry="x:y"), **fields
    )


def in_thread(function, *words):
    thread = threading.Thread(target=function, args=words)
    thread.start()
    return thread


CONTEXT = ContainerContext(image="i")


def test_close_waits_for_a_container_that_is_being_made_and_removes_it(client, starter):
    submitter = in_thread(starter.submit, process(), CONTEXT)
    assert client.asked.wait(PATIENCE)
    left = []

    def close():
        starter.close()
        left.append((client.may_make.is_set(), set(client.containers)))

    closer = in_thread(close)
    threading.Timer(0.2, client.may_make.set).start()
    closer.join(PATIENCE)
    submitter.join(PATIENCE)

    # not before the engine had answered, and nothing was there then
    assert left == [(True, set())]
    assert client.containers == set()


def test_after_close_none_is_made(client, starter, feed):
    client.may_make.set()
    starter.close()

    job = starter.submit(process(), CONTEXT)

    assert client.makers == []
    assert feed.status(job.id).state is JobState.FAILED


def test_no_thread_of_a_user_asks_for_a_container(client, starter):
    client.may_make.set()
    client.may_start.set()

    starter.submit(process(), CONTEXT)

    assert threading.current_thread() not in client.makers


def test_a_process_that_was_killed_before_its_start_is_removed_whatever_a_signal_does(
    client, starter, feed
):
    """Podman has an error for a signal to a container that was not started."""

    def refuse(name):
        raise BackendError("can only kill running containers")

    client.on_signal = refuse
    submitter = in_thread(starter.submit, process(), CONTEXT)
    assert client.asked.wait(PATIENCE)
    starter.cancel_unstarted()
    client.may_make.set()
    submitter.join(PATIENCE)

    starter.close()

    assert client.containers == set()


def test_the_log_tail_is_known_though_the_container_ends_before_the_engine_answers(client, starter):
    words = []

    def speak_and_end(name):
        (end,) = client.ends
        text = b"No module named fiber\n"
        end.sendall(b"\x02\0\0\0" + len(text).to_bytes(4, "big") + text)
        end.close()
        asked = in_thread(lambda: words.extend(starter.log_tail(name)))
        # the engine's answer comes while its events are read
        threading.Timer(0.1, client.may_start.set).start()
        threads.append(asked)

    threads = []
    client.on_start = speak_and_end
    client.may_make.set()
    starter.submit(process(), CONTEXT)
    assert client.may_start.wait(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)

    assert words == ["No module named fiber"]


def test_a_start_that_fails_leaves_no_thread(client, starter, feed):
    def refuse(name):
        raise BackendError("no space left")

    client.on_start = refuse
    client.may_make.set()
    job = starter.submit(process(), CONTEXT)

    with contextlib.closing(feed.events("00c0ffee")) as events:
        end = next(
            status for published, status in events if published.id == job.id and status.exit_code
        )
    starter.close()

    assert end.message == "no space left"
    assert client.containers == set()


def test_a_job_that_is_removed_while_it_starts_has_ended_then(client, starter, feed):
    started = threading.Event()
    client.on_start = lambda name: started.set()
    client.may_make.set()
    job = starter.submit(process(), CONTEXT)
    assert started.wait(PATIENCE)

    unstarted = starter.cancel_unstarted()
    starter.remove_all([job.id])
    starter.publish_cancelled(unstarted)

    # the engine has not answered to the start yet, and nobody waited for that
    assert client.starting == 1
    assert unstarted == [job]
    assert feed.status(job.id).exit_code == -9
    client.may_start.set()


def test_an_end_that_was_published_stays(feed, client, starter):
    client.may_make.set()
    client.may_start.set()
    job = starter.submit(process(), CONTEXT)

    feed.publish(job, JobStatus(state=JobState.SUCCEEDED, reason=Reason(ReasonKind.EXIT, 0)))
    starter.close()

    assert feed.status(job.id).state is JobState.SUCCEEDED


class TestEngineThatGoesAway:
    @pytest.fixture(autouse=True)
    def _ready(self, client):
        client.may_make.set()
        client.may_start.set()

    @staticmethod
    def away(*_words):
        raise BackendUnavailableError("the engine does not answer")

    def test_a_container_that_was_perhaps_made_is_removed_at_the_end(
        self, client, starter, monkeypatch
    ):
        create = client.create

        def answer_is_lost(name, body):
            create(name, body)
            self.away()

        monkeypatch.setattr(client, "create", answer_is_lost)
        with pytest.raises(BackendUnavailableError):
            starter.submit(process(), CONTEXT)
        assert len(client.containers) == 1

        starter.close()
        assert client.containers == set()

    def test_one_that_was_perhaps_started_is_lost_with_its_engine_and_removed_at_the_end(
        self, client, starter, feed, monkeypatch, caplog
    ):
        monkeypatch.setattr(client, "start", self.away)
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(client, "remove", self.away)
            job = starter.submit(process(), CONTEXT)
            assert feed.wait_ended(job.id, PATIENCE)
            # the thread that was at it has found that it cannot remove it either
            starter._start_threads.run_all([lambda: None])
            starter._start_threads.close()
        status = feed.status(job.id)
        assert status.reason == Reason(ReasonKind.NODE_LOST)
        assert "the engine does not answer" in status.message
        assert client.containers == {job.id}

        starter.close()
        assert client.containers == set()
        assert not caplog.records

    def test_at_the_end_it_is_asked_no_more_once_it_does_not_answer(
        self, client, starter, monkeypatch
    ):
        jobs = [starter.submit(process(), CONTEXT) for _ in range(40)]
        asked = []

        def away(name):
            asked.append(name)
            self.away()

        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(client, "remove", away)
            with pytest.raises(BackendUnavailableError):
                starter.close()
        # those that were asked side by side when the first one failed
        assert 1 <= len(asked) <= 8
        monkeypatch.undo()
        starter.remove_all([job.id for job in jobs])
        assert client.containers == set()
