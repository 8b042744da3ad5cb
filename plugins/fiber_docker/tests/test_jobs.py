"""Containers are created, started and removed in an order that leaves none, with devices of their own."""

import json
import signal
import socket
import threading

import attrs
import pytest

from fiber._agent.resources.nvidia import NvidiaProvider
from fiber.backend_parts.feed import Feed
from fiber.exceptions import BackendError, BackendUnavailableError, ResourceError, SubmitError
from fiber.model import JobSpec, JobState, JobStatus, Reason, ReasonKind, ResourceRequest
from fiber_docker.config import DockerConfig, DockerTiming
from fiber_docker.container import ContainerContext
from fiber_docker.devices import Devices
from fiber_docker.images import Images
from fiber_docker.jobs import JobStarter
from fiber_docker.stream import Stream
from wire_world import in_thread

PATIENCE = 30.0
RUN = "00c0ffee"
CONTEXT = ContainerContext(image="i")
GPUS = [{"uuid": f"GPU-{n}{n}", "index": n, "name": "made up", "memory": 1 << 30} for n in range(2)]


class FakeClient:
    """An engine with two GPUs, whose answers come when a test says so."""

    def __init__(self):
        self.containers = set()
        #: names and bodies of the containers that were asked for, and the threads that did it
        self.asked_for, self.makers = [], []
        self.signals, self.ends = [], []
        self.asked, self.may_make, self.may_start = (threading.Event() for _ in range(3))
        #: devices that it lists by their names
        self.cdi = []
        #: starts that were not answered yet
        self.starting = 0
        self.on_start = self.on_signal = lambda name: None

    def create(self, name, body):
        if "-probe-" in name:
            self.asked_for.append(("probe", body))
            return name
        self.asked_for.append((name, body))
        self.makers.append(threading.current_thread())
        self.asked.set()
        assert self.may_make.wait(PATIENCE)
        self.containers.add(name)
        return name

    def attach(self, name, *, stdin, output):
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        return Stream(ours)

    def start(self, container, name):
        if name == "the probe":
            return
        self.on_start(container)
        self.starting += 1
        try:
            assert self.may_start.wait(PATIENCE)
        finally:
            self.starting -= 1

    def call(self, what, function):
        return {"wait": {"StatusCode": 0}, "report its info": {"DiscoveredDevices": self.cdi}}[what]

    def logs(self, container, *, tail, follow):
        return [json.dumps(GPUS).encode()]

    def put(self, container, folder, archive):
        pass

    def signal(self, name, number):
        self.signals.append((name, number))
        self.on_signal(name)

    def remove(self, name):
        self.containers.discard(name)

    def devices_asked_for(self):
        return [body["HostConfig"].get("DeviceRequests") for _, body in self.asked_for]


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
def devices(client):
    return Devices(client, {"gpu": NvidiaProvider()}, "python3")


@pytest.fixture
def starter(client, feed, devices):
    config = DockerConfig(pull="never")
    images = Images(client, config)
    starter = JobStarter(
        "docker", client, config, feed, images, devices, DockerTiming(), partial_line=0.1
    )
    feed._on_end = starter.ended
    yield starter
    client.may_make.set()
    client.may_start.set()
    starter.close()


@pytest.fixture
def ready(client):
    """An engine that answers at once."""
    client.may_make.set()
    client.may_start.set()


def gpus(count):
    return ResourceRequest(devices={"gpu": count})


def process(**fields):
    """One of Fiber's own processes."""
    return attrs.evolve(
        JobSpec(run_id=RUN, name="p", argv=("python3", "-m", "x"), entry="x:y"), **fields
    )


def until_started(starter):
    """Wait until the threads that start have done all that they were given."""
    starter._start_threads.run_all([lambda: None])
    starter._start_threads.close()


def test_close_waits_for_a_container_that_is_being_made_and_removes_it(client, starter):
    submitted = in_thread(starter.submit, process(), CONTEXT)
    assert client.asked.wait(PATIENCE)
    left = []

    def close():
        starter.close()
        left.append((client.may_make.is_set(), set(client.containers)))

    closed = in_thread(close)
    threading.Timer(0.2, client.may_make.set).start()
    closed()
    submitted()

    # not before the engine had answered, and nothing was there then
    assert left == [(True, set())]
    assert client.containers == set()


def test_no_thread_of_a_user_asks_for_a_container_and_after_close_none_does(
    client, starter, feed, ready
):
    starter.submit(process(), CONTEXT)
    (maker,) = client.makers
    assert maker is not threading.current_thread()
    starter.close()

    job = starter.submit(process(), CONTEXT)

    assert client.makers == [maker]
    assert feed.status(job.id).state is JobState.FAILED


def test_the_log_tail_is_known_though_the_container_ends_before_the_engine_answers(client, starter):
    told = []

    def speak_and_end(name):
        (end,) = client.ends
        text = b"No module named fiber\n"
        end.sendall(b"\x02\0\0\0" + len(text).to_bytes(4, "big") + text)
        end.close()
        told.append(in_thread(starter.log_tail, name))
        # the engine's answer comes while its events are read
        threading.Timer(0.1, client.may_start.set).start()

    client.on_start = speak_and_end
    client.may_make.set()
    starter.submit(process(), CONTEXT)
    assert client.may_start.wait(PATIENCE)
    (tail,) = told

    assert list(tail()) == ["No module named fiber"]


def test_a_start_that_fails_ends_the_job_and_leaves_nothing(client, starter, feed):
    def refuse(name):
        raise BackendError("no space left")

    client.on_start = refuse
    client.may_make.set()
    job = starter.submit(process(), CONTEXT)

    assert feed.wait_ended(job.id, PATIENCE)
    starter.close()
    assert feed.status(job.id).message == "no space left"
    assert client.containers == set()


class TestCancellation:
    @pytest.mark.parametrize("entry", [None, "x:y"])
    def test_a_job_whose_container_is_being_made_ends_by_its_signal_and_never_runs(
        self, client, starter, feed, entry
    ):
        def refuse(name):
            """As Podman does where a container was not started."""
            raise BackendError("can only kill running containers")

        client.on_signal = refuse if entry else client.on_signal
        started = []
        client.on_start = started.append
        submitted = in_thread(starter.submit, process(entry=entry), CONTEXT)
        assert client.asked.wait(PATIENCE)
        (job, _) = next(feed.events(RUN))

        # the first one counts
        assert [starter.cancel(job, number) for number in (15, 9)] == [True, True]
        assert not feed.status(job.id).state.is_terminal
        client.may_make.set()
        submitted()
        until_started(starter)

        assert started == []
        assert feed.status(job.id).reason == Reason(ReasonKind.SIGNAL, 15)
        # a program's container stays for its logs until the backend is closed
        assert client.containers == (set() if entry else {job.id})
        assert client.signals == ([] if entry else [(job.id, signal.SIGKILL)])
        starter.close()
        assert client.containers == set()

    @pytest.mark.parametrize("number", [9, 15])
    def test_a_job_that_waits_for_devices_has_ended_at_once_and_is_forgotten(
        self, client, starter, feed, ready, number
    ):
        first, waiting, also = (
            starter.submit(process(resources=gpus(count)), CONTEXT) for count in (2, 1, 1)
        )

        assert starter.cancel(waiting, number)

        status = feed.status(waiting.id)
        assert (status.state, status.exit_code) == (JobState.FAILED, -number)
        assert not starter.is_submitted_here(waiting.id)
        feed.publish(first, JobStatus(state=JobState.SUCCEEDED, exit_code=0))
        # nothing was created for it
        starter._create_threads.close()
        assert [name for name, _ in client.asked_for] == ["probe", first.id, also.id]

    def test_a_job_that_runs_or_is_not_ours_cannot_be_cancelled(self, starter, feed, ready):
        job = starter.submit(process(entry=None), CONTEXT)
        until_started(starter)

        assert not starter.cancel(job, 9)
        assert not starter.cancel(attrs.evolve(job, id="another"), 9)
        assert feed.status(job.id).state is JobState.PENDING
        assert starter.cancel_unstarted() == []

    def test_a_job_that_is_removed_while_it_starts_has_ended_then(self, client, starter, feed):
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


@pytest.mark.usefixtures("ready")
class TestEngineThatGoesAway:
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
            # the thread that was at it has found that it cannot remove it either
            until_started(starter)
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


@pytest.mark.usefixtures("ready")
class TestDevices:
    @staticmethod
    def by_driver(*ids):
        """The request that engines have understood since there are any."""
        return [{"Driver": "nvidia", "Capabilities": [["gpu"]], "DeviceIDs": list(ids)}]

    def test_each_job_asks_for_its_own_by_their_ids_and_others_for_none(self, client, starter):
        for count in (0, 1, 1):
            starter.submit(process(resources=gpus(count)), CONTEXT)

        everything = [{"Driver": "nvidia", "Capabilities": [["gpu"]], "Count": -1}]
        granted = [self.by_driver("GPU-00"), self.by_driver("GPU-11")]
        assert client.devices_asked_for() == [None, everything, *granted]

    def test_an_engine_that_lists_devices_is_asked_for_them_by_name(self, client, starter):
        client.cdi = [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-00"}]

        starter.submit(process(resources=gpus(1)), CONTEXT)

        names = [["nvidia.com/gpu=all"], ["nvidia.com/gpu=GPU-00"]]
        assert client.devices_asked_for() == [[{"Driver": "cdi", "DeviceIDs": n}] for n in names]

    def test_a_program_in_an_image_without_python_keeps_its_devices(self, client, starter):
        def lack_python(name):
            if len(client.asked_for) == 2:
                raise SubmitError("exec: python3: executable file not found")

        client.on_start = lack_python
        starter.submit(process(resources=gpus(1), entry=None), CONTEXT)
        until_started(starter)

        _, wrapped, bare = client.asked_for
        assert (wrapped[1]["Entrypoint"], bare[1]["Cmd"]) == (["python3"], ["-m", "x"])
        assert client.devices_asked_for()[1:] == [self.by_driver("GPU-00")] * 2

    def test_first_come_is_first_served_also_where_a_later_one_would_fit(self, devices):
        devices.probe(gpus(2), "i")
        got = []

        def ask(name, count):
            return devices.grant(name, gpus(count), lambda requests: got.append((name, requests)))

        assert [ask(*one) for one in (("a", 1), ("b", 2), ("c", 1), ("d", 1))] == [
            True,
            *[False] * 3,
        ]
        assert got == [("a", (self.by_driver("GPU-00")[0],))]

        devices.release("a")
        # one that gave up waiting is forgotten
        devices.release("c")
        assert [name for name, _ in got] == ["a", "b"]
        devices.release("b")
        assert [name for name, _ in got] == ["a", "b", "d"]
        assert devices.free_counts() == {"gpu": 1}

    @pytest.mark.parametrize(
        "wanted, words",
        [
            ({"gpu": 3}, r"3 of 'gpu' are asked for.*has 2"),
            ({"gadget": 1}, r"'gadget'.*installed are: gpu"),
        ],
    )
    def test_what_the_machine_never_has_is_an_error(self, devices, wanted, words):
        with pytest.raises(ResourceError, match=words):
            devices.probe(ResourceRequest(devices=wanted), "i")
