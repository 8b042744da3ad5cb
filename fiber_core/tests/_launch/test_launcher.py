"""Process objects become jobs, and the platform's statuses reach their children."""

import contextlib
import json
import queue
import threading
from types import SimpleNamespace

import pytest

from fiber._agent import instructions
from fiber._agent.job import supervisor_ident
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import encode
from fiber._base import values
from fiber._launch import module_server
from fiber._launch.launcher import Launcher
from fiber._wire import codec, frames
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Credentials, Hello
from fiber.exceptions import (
    BackendError,
    BackendUnavailableError,
    StartError,
    SubmitError,
    WireError,
)
from fiber.model import (
    BackendInfo,
    Capabilities,
    Job,
    JobState,
    JobStatus,
    Reason,
    ReasonKind,
    ResourceRequest,
    Timing,
)
from fiber.process import Process
from tasks_world import KILLED, RUNNING, FakeReactor, Tied, ended
from waiting import until

#: too large to go with a process
LARGE = bytes(2**17)
PENDING = JobStatus(state=JobState.PENDING)


class FakeBackend:
    """Accepts jobs, and reports the statuses that a test puts in."""

    def __init__(self):
        self.events_queue = queue.Queue()
        self.streams = 0
        self.calls = []

    def events(self, run_id):
        self.streams += 1
        while (event := self.events_queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event

    def preload(self, modules):
        """A hint, which depends on what other tests have imported."""

    def __getattr__(self, name):
        return lambda job, *more: self.calls.append((name, job.id, *more))


def info(**capabilities):
    return BackendInfo(name="fake", load=lambda _: None, capabilities=Capabilities(**capabilities))


class FakeRuntime:
    """As much of a runtime as a launcher asks for."""

    run_id, ident = "0123abcd", "master"
    closing = False
    lease = 30.0

    def __init__(self, folder, timing, *, is_master):
        self.directory, self.timing, self.is_master = folder, timing, is_master
        self.backend = FakeBackend()
        self.reactor = FakeReactor()
        self.peers = []
        self.endpoint = SimpleNamespace(
            credentials=Credentials.new(), serve=lambda *_: None, peers=lambda: self.peers
        )
        self.hello = values.evolve(Hello.mine("master"), host="here")
        self.router = SimpleNamespace(observed=lambda _job, _status: None)
        self.config = SimpleNamespace(
            max_frame=2**22,
            image="an-image",
            log_prefix=False,
            start_timeout=5.0,
            env=(),
            to_environ=dict,
        )
        self.info = info(fork=True)
        self.specs, self.notified = [], []
        #: what the next submissions raise
        self.errors = []
        self.at_submit = lambda job: None

    takes_many = True

    def submit_many(self, specs):
        found = []
        for spec in specs:
            try:
                found.append(self.submit(spec))
            except BackendError as error:
                found.append(error)
        return found

    def urls(self):
        return ["ipc:///nowhere"]

    def submit(self, spec):
        self.specs.append(spec)
        if self.errors:
            raise self.errors.pop(0)
        job = Job(id=str(len(self.specs)), name=spec.name, run_id=spec.run_id, backend="fake")
        self.at_submit(job)
        return job

    def tell(self, child, *statuses):
        """The platform reports statuses."""
        for status in statuses:
            self.backend.events_queue.put((child.job, status))

    def notify(self, hook, **facts):
        self.notified.append((hook, facts["previous"], facts["current"]))


class FakePeer:
    def __init__(self, ident, host="here"):
        self.ident, self.sent = ident, []
        self.hello = SimpleNamespace(pid=7, host=host)

    def send(self, kind, target, number, segments=()):
        self.sent.append((kind, number, memoryview(frames.joined(segments))))


@pytest.fixture
def is_master():
    return True


@pytest.fixture
def timing():
    # a pause between attempts to ask a platform is sat out
    return Timing(outage_backoff=(0.01,))


@pytest.fixture
def runtime(tmp_path, is_master, timing):
    runtime = FakeRuntime(tmp_path, timing, is_master=is_master)
    yield runtime
    runtime.closing = True
    runtime.backend.events_queue.put(None)


def launching(runtime):
    launcher = Launcher(runtime)
    yield launcher
    runtime.backend.events_queue.put(None)
    launcher.close()


@pytest.fixture
def launcher(runtime):
    yield from launching(runtime)


@pytest.fixture
def remote(runtime):
    """A launcher of jobs that have a supervisor of their own."""
    runtime.info = info(same_host=True)
    yield from launching(runtime)


@pytest.fixture
def running(launcher, runtime):
    """A process that runs and has to ask for its work, without a hello so far."""
    child = launcher.launch(Process(args=(LARGE,)))
    runtime.tell(child, RUNNING)
    until(lambda: runtime.reactor.timers)
    return child


def call(launcher, peer, body=b""):
    launcher.on_message(peer, Message(Kind.CALL, 0, 3, memoryview(body)))
    return peer.sent[-1]


class TestLaunching:
    def test_a_process_becomes_a_job_with_all_it_needs_to_reach_its_parent(self, launcher, runtime):
        request = ResourceRequest(cpu=2)
        child = launcher.launch(
            Process(name="my own"), resources=request, image="mine", processes=3
        )
        (spec,) = runtime.specs
        assert (spec.name, spec.run_id, spec.processes) == ("my own", "0123abcd", 3)
        assert (spec.resources, spec.image, spec.entry) == (request, "mine", instructions.ENTRY)
        assert spec.labels == {"process": "my own", "parent": "master"}
        assert spec.env["FIBER_BACKEND"] == "fake"
        assert spec.argv[-2:] == ("-m", instructions.MODULE)
        found = instructions.Instructions.decode(spec.private)
        assert found.ident == child.ident
        assert found.urls == ("ipc:///nowhere",)
        assert found.credentials == runtime.endpoint.credentials

    def test_work_goes_with_a_process_that_its_backend_forks_unless_it_is_large(
        self, launcher, runtime
    ):
        launcher.launch(Process(name="small"))
        child = launcher.launch(Process(args=(LARGE,)))
        small, large = (instructions.Instructions.decode(spec.private) for spec in runtime.specs)
        assert codec.loads(memoryview(small.work))["preparation"]["name"] == "small"
        assert small.parent == runtime.hello
        assert (large.work, large.parent) == (None, None)
        assert list(launcher._payloads) == [child.ident]

    def test_the_setting_for_images_counts_where_jobs_run_in_images(self, launcher, runtime):
        launcher.launch(Process())
        runtime.info = info(images=True)
        launcher.launch(Process())
        assert [spec.image for spec in runtime.specs] == [None, "an-image"]

    def test_of_several_in_one_call_each_has_its_child_or_its_refusal(self, launcher, runtime):
        seen = []
        runtime.at_submit = lambda job: runtime.backend.events_queue.put((job, RUNNING))
        runtime.errors = [SubmitError("no")]

        def on_status(child, status):
            seen.append((child.name, status))

        found = launcher.launch_many(
            [
                (Process(name=f"worker {n}"), {"processes": n, "on_status": on_status})
                for n in (1, 2, 3)
            ]
        )
        refused, *children = found
        assert isinstance(refused, SubmitError)
        assert [child.name for child in children] == ["worker 2", "worker 3"]
        assert [spec.processes for spec in runtime.specs] == [1, 2, 3]
        assert launcher.alive() == children
        until(lambda: len(seen) == 2)
        assert sorted(seen) == [("worker 2", RUNNING), ("worker 3", RUNNING)]

    def test_several_of_which_one_cannot_be_pickled_leave_nothing(self, launcher, runtime):
        jobs = [(Process(), {}), (Process(args=(threading.Lock(),)), {})]
        with pytest.raises(TypeError, match="cannot pickle"):
            launcher.launch_many(jobs)
        assert (launcher.alive(), runtime.specs) == ([], [])

    def test_a_refusal_leaves_nothing(self, launcher, runtime):
        runtime.errors = [SubmitError("no")]
        with pytest.raises(SubmitError):
            launcher.launch(Process())
        assert launcher.alive() == []
        assert launcher._payloads == {}

    @pytest.mark.parametrize(
        "is_master,answered,closing,waits,is_waited_for",
        [
            pytest.param(True, True, False, True, True, id="it has answered"),
            pytest.param(False, False, False, True, True, id="it has started this process"),
            pytest.param(True, False, False, True, False, id="it never answered"),
            pytest.param(True, True, False, False, False, id="the caller retries itself"),
            pytest.param(True, True, True, True, False, id="the program ends"),
        ],
    )
    def test_a_platform_that_cannot_be_asked(
        self, launcher, runtime, caplog, answered, closing, waits, is_waited_for
    ):
        if answered:
            launcher.launch(Process())
        runtime.closing = closing
        runtime.errors = [BackendUnavailableError("it restarts"), BackendUnavailableError("still")]
        before = len(runtime.specs)
        if is_waited_for:
            launcher.launch(Process(), waits=waits)
            # the same job each time, which a platform may tell from another one by this
            assert len({spec.ident for spec in runtime.specs[before:]}) == 1
            # too short an outage to speak of
            assert not caplog.records
        else:
            with pytest.raises(BackendUnavailableError, match="it restarts"):
                launcher.launch(Process(), waits=waits)
            assert len(runtime.specs) == before + 1
            assert len(launcher.alive()) == before

    @pytest.mark.parametrize("timing", [Timing(outage=0.1, outage_notice=0.0)])
    def test_it_is_waited_for_a_bounded_time_with_a_notice(self, launcher, runtime, caplog):
        launcher.launch(Process())
        runtime.errors = [BackendUnavailableError("it is gone")] * 9
        with pytest.raises(BackendUnavailableError, match="it is gone"):
            launcher.launch(Process(name="late"))
        assert len(runtime.specs) == 3
        (message,) = caplog.messages
        assert message.startswith("fiber: late: the platform cannot be asked")
        assert len(launcher.alive()) == 1

    def test_what_cannot_be_pickled_is_not_submitted_and_lets_go_of_what_could(
        self, launcher, runtime
    ):
        with pytest.raises(TypeError, match="pickle"):
            launcher.launch(Process(target=print, args=(Tied(), (i for i in "x"))))
        assert runtime.specs == []
        assert Tied.held == 0


class TestFetching:
    def test_each_process_of_a_job_gets_its_object_once_and_nobody_else(self, launcher):
        child = launcher.launch(Process(name="my own", args=(LARGE,)), processes=2)
        for index in (0, 1):
            kind, number, body = call(launcher, FakePeer(f"{child.ident}.{index}"))
            assert (kind, number) == (Kind.REPLY, 3)
            assert codec.loads(body)["preparation"]["name"] == "my own"
        assert child.pid == 7
        for ident in (f"{child.ident}.0", "stranger"):
            assert call(launcher, FakePeer(ident))[0] is Kind.ERROR

    @pytest.mark.parametrize("body", [b"nonsense", b"[]", b"{}", b"\xff\xfe"])
    def test_a_question_that_makes_no_sense_is_refused(self, launcher, body):
        with pytest.raises(WireError, match="makes no sense"):
            call(launcher, FakePeer("x"), body)

    def test_a_module_is_described_by_its_file(self, launcher):
        name = __name__.partition(".")[0]
        answer = call(launcher, FakePeer("x"), json.dumps({"module": name}).encode())[2]
        assert json.loads(bytes(answer)) == module_server.describe(name)


class TestEvents:
    def test_statuses_reach_the_child_and_the_plugins_in_order(self, launcher, runtime):
        child = launcher.launch(Process())
        other = Job(id="of somebody else", name="n", run_id="r", backend="fake")
        runtime.backend.events_queue.put((other, ended(1)))
        runtime.tell(child, RUNNING, ended(3))
        assert child.wait(20) == 3
        until(lambda: len(runtime.notified) == 2)
        assert runtime.notified == [
            ("fiber_job_changed", None, RUNNING),
            ("fiber_job_changed", RUNNING, ended(3)),
        ]

    def test_what_a_child_held_alive_and_a_socket_that_it_left_go_with_it(self, launcher, runtime):
        child = launcher.launch(Process())
        left = runtime.directory / f"{child.ident}.sock"
        left.touch()
        released = threading.Event()
        child.on_release(released.set)
        runtime.tell(child, KILLED)
        assert released.wait(20)
        assert launcher.alive() == []
        assert not left.exists()

    def test_what_a_child_held_is_kept_until_all_that_it_sent_was_read(self, launcher, runtime):
        child = launcher.launch(Process(), processes=2)
        runtime.peers += [FakePeer(child.ident_of(0)), FakePeer(child.ident_of(1))]
        released = []
        child.on_release(lambda: released.append(list(runtime.peers)))
        runtime.tell(child, KILLED)
        until(lambda: launcher.alive() == [] and runtime.reactor.timers)
        while runtime.peers:
            launcher.on_peer_lost(runtime.peers.pop())
        assert released == [[]]

    def test_those_that_come_before_submit_returns_are_delivered_first_and_in_order(
        self, launcher, runtime
    ):
        def at_submit(job):
            for status in (PENDING, RUNNING):
                runtime.backend.events_queue.put((job, status))
            until(lambda: len(launcher._early.get(job.id, ())) == 2)

        def on_status(child, status):
            seen.append(status)
            if status is RUNNING:
                # during the delivery of earlier ones
                runtime.tell(child, ended(5))
                until(lambda: launcher._early.get(child.job.id))

        seen = []
        runtime.at_submit = at_submit
        child = launcher.launch(Process(), on_status=on_status)
        assert seen == [PENDING, RUNNING, ended(5)]
        assert child.returncode == 5
        assert launcher.alive() == []
        assert launcher._by_job == launcher._early == {}

    def test_a_callback_may_fail_and_later_statuses_come_all_the_same(
        self, launcher, runtime, caplog
    ):
        def fail(child, status):
            raise RuntimeError("a listener on purpose")

        first = launcher.launch(Process(), on_status=fail)
        second = launcher.launch(Process())
        runtime.tell(first, RUNNING)
        runtime.tell(second, ended(0))
        assert second.wait(20) == 0
        assert "a listener on purpose" in caplog.text

    def test_a_stream_that_breaks_orphans_the_children_and_the_next_one_gets_another(
        self, launcher, runtime, caplog
    ):
        first = launcher.launch(Process())
        runtime.backend.events_queue.put(BackendUnavailableError("cut"))
        assert first.wait(20) == 1
        assert first.status.reason.kind is ReasonKind.NODE_LOST
        until(lambda: launcher._thread is None)
        (record,) = caplog.records
        assert record.getMessage().endswith("children are lost from sight: cut")
        assert record.exc_info is None
        second = launcher.launch(Process())
        runtime.tell(second, ended(0))
        assert second.wait(20) == 0
        assert runtime.backend.streams == 2

    def test_a_stream_that_cannot_begin_is_an_error_of_the_call_that_needs_it(
        self, launcher, runtime, caplog
    ):
        def refuse(_):
            runtime.backend.events_queue.put(BackendUnavailableError("away"))
            until(lambda: launcher._thread is None)
            raise BackendUnavailableError("away")

        runtime.at_submit = refuse
        with pytest.raises(BackendUnavailableError):
            launcher.launch(Process())
        assert caplog.records == []


class TestSignals:
    def test_terminate_is_sigterm_to_each_process_and_kill_is_the_whole_job(
        self, launcher, runtime
    ):
        child = launcher.launch(Process(), processes=2)
        child.terminate()
        child.kill()
        assert runtime.backend.calls == [
            ("signal", "1", 0, 15),
            ("signal", "1", 1, 15),
            ("kill", "1"),
        ]

    def test_before_a_remote_job_has_a_supervisor_both_are_the_platforms(self, remote, runtime):
        child = remote.launch(Process())
        child.terminate()
        child.kill()
        assert runtime.backend.calls == [("terminate", "1"), ("kill", "1")]


class TestUnconfirmedEnds:
    @pytest.fixture
    def pass_by(self, runtime, monkeypatch):
        """Lets seconds of a launcher pass, one by one or at once."""
        time = SimpleNamespace(now=1000.0, monotonic=lambda: time.now)
        for module in ("launcher", "remote_monitor"):
            monkeypatch.setattr(f"fiber._launch.{module}.time", time)

        def pass_by(seconds, *, at_once=False):
            for step in [seconds] if at_once else [1.0] * round(seconds):
                time.now += step
                runtime.reactor.go_off()

        return pass_by

    @pytest.mark.parametrize(
        "kind,how", [("remote", "terminate"), ("remote", "kill"), ("launcher", "kill")]
    )
    def test_joining_a_job_that_never_came_up_ends(self, request, pass_by, kind, how):
        launcher = request.getfixturevalue(kind)
        # one that was not asked to end is waited for
        child, other = launcher.launch(Process()), launcher.launch(Process())
        getattr(child, how)()
        pass_by(Timing().unconfirmed)
        assert child.returncode is None
        pass_by(2)
        assert child.wait(20) == 1
        assert child.status.reason == Reason(ReasonKind.NODE_LOST)
        assert "has not confirmed that within 30 s" in child.status.message
        assert launcher.alive() == [other]

    def test_neither_another_kill_nor_an_outage_puts_that_off(self, remote, runtime, pass_by):
        def refuse(_):
            raise BackendUnavailableError("away")

        runtime.backend.kill = refuse
        child = remote.launch(Process())
        for _ in range(8):
            with contextlib.suppress(BackendUnavailableError):
                child.kill()
            pass_by(4)
        assert child.wait(20) == 1

    @pytest.mark.parametrize(
        "seconds,at_once", [(29, False), (1000, True)], ids=["in time", "the program was stopped"]
    )
    def test_a_confirmation_of_the_platform_counts(
        self, remote, runtime, pass_by, seconds, at_once
    ):
        child = remote.launch(Process())
        child.kill()
        pass_by(seconds, at_once=at_once)
        assert child.returncode is None
        runtime.tell(child, KILLED)
        assert child.wait(20) == -9
        pass_by(5)
        assert child.status == KILLED
        assert runtime.reactor.timers == []

    def test_one_whose_supervisor_has_connected_is_under_its_lease(self, remote, pass_by):
        child = remote.launch(Process())
        child.kill()
        supervisor = FakePeer(supervisor_ident(child.ident))
        ping = Message(Kind.CAST, 0, 1, memoryview(encode(messages.Ping())))
        for _ in range(40):
            remote.on_message(supervisor, ping)
            pass_by(1)
        assert child.returncode is None


class TestSilence:
    def test_one_that_runs_without_a_hello_is_killed_with_a_reason(
        self, running, launcher, runtime
    ):
        runtime.reactor.go_off()
        assert runtime.backend.calls == [("kill", "1")]
        runtime.tell(running, KILLED)
        assert running.wait(20) == -9
        with pytest.raises(StartError, match="5 s without a word"):
            running.raise_if_never_started()

    def test_where_its_platform_cannot_be_asked_it_has_ended_all_the_same(
        self, running, launcher, runtime
    ):
        def away(job):
            raise BackendUnavailableError("the engine is gone")

        runtime.backend.kill = away
        runtime.reactor.go_off()
        assert running.status.reason.kind is ReasonKind.LEASE
        assert "without a word" in running.failure
        assert launcher.alive() == []

    @pytest.mark.parametrize("how", ["it sent its hello", "it has ended"])
    def test_one_of_which_more_is_known_is_not(self, running, launcher, runtime, how):
        if how == "it has ended":
            runtime.tell(running, ended(0))
            until(lambda: launcher.alive() == [])
        else:
            call(launcher, FakePeer(running.ident))
        runtime.reactor.go_off()
        assert runtime.backend.calls == []

    def test_one_that_is_stopped_gets_its_time_anew(self, running, launcher, runtime):
        runtime.tell(running, JobStatus(state=JobState.SUSPENDED))
        until(lambda: running.status.state is JobState.SUSPENDED)
        runtime.reactor.go_off()
        assert runtime.backend.calls == []
        assert len(runtime.reactor.timers) == 1


def test_hosts_that_were_lost_are_avoided_for_a_while(launcher, runtime, monkeypatch):
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    lost = JobStatus(state=JobState.FAILED, reason=Reason(ReasonKind.LEASE), host="far")
    fine = JobStatus(state=JobState.FAILED, reason=Reason(ReasonKind.EXIT, 1), host="near")
    for status in lost, fine:
        child = launcher.launch(Process(target=print))
        launcher._changed(child.job, child, status)

    launcher.launch(Process(target=print))
    now += runtime.timing.avoid_lost_host + 1
    launcher.launch(Process(target=print))

    assert [spec.avoid_hosts for spec in runtime.specs[1:]] == [("far",), ("far",), ()]
