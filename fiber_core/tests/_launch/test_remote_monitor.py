"""A parent and its jobs' supervisors: which report counts, which messages are sent, leases."""

import contextlib
import os
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from fiber._agent.instructions import Instructions
from fiber._agent.job import MODULE, SupervisorConfig, supervisor_ident
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._base import values
from fiber._launch import remote_monitor as module
from fiber._launch.remote_monitor import OutputPrinter, RemoteJobMonitor
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Credentials
from fiber.exceptions import BackendUnavailableError, WireError
from fiber.model import (
    BackendInfo,
    Capabilities,
    Job,
    JobSpec,
    JobState,
    JobStatus,
    ProcessStatus,
    Reason,
    ReasonKind,
    ResourceRequest,
    Timing,
)
from tasks_world import FakeReactor
from waiting import until

RUNS = JobStatus(
    state=JobState.RUNNING,
    host="itself",
    processes=(ProcessStatus(index=0, state=JobState.RUNNING, pid=9),),
)
EXITED = JobStatus(
    state=JobState.FAILED, exit_code=3, reason=Reason(ReasonKind.EXIT, 3), host="itself"
)
LOST = JobStatus(state=JobState.FAILED, reason=Reason(ReasonKind.NODE_LOST), host="node")
KILLED = JobStatus(
    state=JobState.FAILED, exit_code=137, reason=Reason(ReasonKind.EXIT, 137), host="node"
)


class FakePeer:
    def __init__(self, ident):
        self.ident, self.sent = ident, []

    def send(self, kind, target, number, segments=()):
        decoder = Decoder()
        for segment in segments:
            decoder.feed(bytes(segment))
        self.sent.append((kind, *decoder.messages()))


class World:
    def __init__(self, *, near=False, **capabilities):
        self.statuses, self.failures, self.reports = [], [], []
        self.backend = Mock()
        self.reactor = FakeReactor()
        self.runtime = SimpleNamespace(
            lease=5.0,
            timing=Timing(),
            closing=False,
            info=BackendInfo(
                name="b",
                near=near,
                load=lambda _: None,
                capabilities=Capabilities(same_host=True, **capabilities),
            ),
            endpoint=SimpleNamespace(on_refused=None),
            reactor=self.reactor,
            backend=self.backend,
        )
        self.monitor = RemoteJobMonitor(self.runtime, self.tell)
        self.child = SimpleNamespace(
            ident="0a1b2c3d",
            name="a process",
            host="node",
            job=Job(id="1", name="a process", run_id="r", backend="b"),
            processes=1,
            ident_of=lambda index: "0a1b2c3d",
            set_start_failure=self.failures.append,
            note_report=self.reports.append,
        )
        self.monitor.expect(self.child)
        self.peer = FakePeer(supervisor_ident(self.child.ident))

    def tell(self, child, status):
        assert child is self.child
        self.statuses.append(status)
        if status.state.is_terminal:
            self.monitor.forget(child)

    def says(self, message, kind=Kind.CAST, peer=None):
        peer = peer or self.peer
        self.monitor.on_message(peer, Message(kind, 0, 1, memoryview(encode(message))))

    def platform(self, status):
        found = self.monitor.observed(self.child, status)
        if found is not None:
            self.tell(self.child, found)


@pytest.fixture
def world():
    return World()


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock.now)
    return clock


def is_fencing():
    return any(thread.name == "fiber-fence" for thread in threading.enumerate())


def reported(status):
    return messages.StatusChanged(job_id="0a1b2c3d", status=status)


class TestSpecs:
    SPEC = JobSpec(
        run_id="r",
        name="n",
        argv=("/here/python", "-W", "error", "-m", "m"),
        entry="e:f",
        cwd="/here",
        processes=3,
        resources=ResourceRequest(cpu=2, memory=100),
    )
    INSTRUCTIONS = Instructions(
        credentials=Credentials.new(),
        urls=("u",),
        ident="i",
        directory="/d",
        processes=3,
        max_frame=2**20,
    )

    def test_a_backend_that_starts_programs_is_given_one(self, world):
        spec = world.monitor.with_supervisor(self.SPEC, self.INSTRUCTIONS)
        assert spec.argv == ("/here/python", "-W", "error", "-m", MODULE)
        assert (spec.processes, spec.cwd) == (1, "/here")
        config = SupervisorConfig.decode(spec.private)
        assert config.instructions == self.INSTRUCTIONS
        assert (config.cpu, config.memory, config.enforce_limits) == (2, 100, True)
        assert (config.lease, config.silence) == (5.0, 5.0)

    def test_on_one_host_short_silence_does_not_expire_a_lease(self):
        world = World(near=True, cpu_limit=True, memory_limit=True)
        spec = world.monitor.with_supervisor(self.SPEC, self.INSTRUCTIONS)
        config = SupervisorConfig.decode(spec.private)
        assert (config.silence, config.enforce_limits) == (None, False)


class TestWords:
    def test_a_supervisors_reports_are_passed_on(self, world):
        world.says(messages.Hello(pid=7))
        world.says(reported(RUNS))
        world.says(reported(EXITED), Kind.CALL)
        assert world.statuses == [RUNS, EXITED]
        assert world.peer.sent[-1] == (Kind.REPLY,)

    def test_a_sign_of_life_is_answered_and_nonsense_is_refused(self, world):
        world.says(messages.Ping())
        assert world.peer.sent == [(Kind.CAST, messages.Pong())]
        with pytest.raises(WireError, match="no message of its protocol"):
            world.says(messages.Exiting())

    def test_a_supervisor_whose_job_is_over_is_refused(self, world):
        world.monitor.forget(world.child)
        world.says(messages.Hello(pid=7))
        assert world.peer.sent == [(Kind.ERROR,)]
        assert world.monitor.is_supervisor(world.peer.ident)

    def test_a_refusal_for_its_versions_is_why_it_never_came(self, world):
        assert world.runtime.endpoint.on_refused(world.peer.ident, "Python is 3.10 there")
        assert not world.runtime.endpoint.on_refused("a stranger", "whatever")
        assert world.failures == ["Python is 3.10 there"]


class TestTheFirstWordCounts:
    @pytest.fixture
    def running(self, world):
        world.says(reported(RUNS))
        return world

    def test_a_platforms_end_waits_for_a_report_that_may_be_on_its_way(self, running):
        running.platform(KILLED)
        assert running.statuses == [RUNS]
        running.says(reported(EXITED), Kind.CALL)
        assert running.statuses[1:] == [values.evolve(EXITED, host="node")]
        running.monitor.on_peer_lost(running.peer)
        assert len(running.statuses) == 2

    @pytest.mark.parametrize("how", ["the supervisor is gone", "its report is overdue"])
    def test_the_platforms_counts_once_no_report_will_come(self, running, how):
        running.platform(KILLED)
        if how == "the supervisor is gone":
            running.monitor.on_peer_lost(running.peer)
        else:
            running.reactor.advance(Timing().report_after_end)
        assert running.statuses[-1].exit_code == -9
        assert running.statuses[-1].processes[0].exit_code == -9

    @pytest.mark.parametrize("how", ["reports its end", "is gone too"])
    def test_a_host_that_is_lost_to_its_platform_alone_goes_on_until_its_supervisor(
        self, running, how
    ):
        running.platform(LOST)
        running.reactor.advance(3600)
        assert [status.state for status in running.statuses] == [JobState.RUNNING]
        if how == "reports its end":
            running.says(reported(EXITED))
            assert running.statuses[-1].exit_code == 3
        else:
            running.monitor.on_peer_lost(running.peer)
            assert running.statuses[-1].reason == Reason(ReasonKind.NODE_LOST)

    def test_one_that_was_ended_on_request_needs_no_reason(self, world):
        assert not world.monitor.kill(world.child)
        world.platform(KILLED)
        assert world.failures == []
        assert world.statuses[-1].exit_code == -9


PREEMPTED = JobStatus(
    state=JobState.FAILED, exit_code=143, reason=Reason(ReasonKind.PREEMPTED), message="by job 7"
)


def by_signal(signum, *, ended=True, lives=False):
    how = {"reason": Reason(ReasonKind.SIGNAL, signum), "exit_code": -signum, "message": "killed"}
    first = ProcessStatus(index=0, state=JobState.FAILED, **how)
    second = ProcessStatus(index=1, state=JobState.RUNNING, pid=10)
    if lives:
        return JobStatus(state=JobState.RUNNING, host="itself", processes=(first, second))
    return JobStatus(state=JobState.FAILED, host="itself", processes=(first,), **how)


class TestStrangersSignals:
    """A supervisor that reports a signal waits for its platform's word on why."""

    @pytest.mark.parametrize("told", ["before", "with its end", "while it drains"])
    def test_an_end_is_told_once_with_the_platforms_reason(self, world, told):
        draining = values.evolve(PREEMPTED, state=JobState.RUNNING, exit_code=None, draining=True)
        if told == "before":
            world.platform(draining)
        world.says(reported(by_signal(15)), Kind.CALL)
        if told != "before":
            assert world.statuses == []
            world.platform(PREEMPTED if told == "with its end" else draining)
        end = world.statuses[-1]
        assert (end.reason, end.exit_code) == (PREEMPTED.reason, -15)
        assert end.processes[0].message == "killed by SIGTERM: PREEMPTED: by job 7"
        assert [one.state.is_terminal for one in world.statuses].count(True) == 1
        world.reactor.advance(3600)
        assert world.statuses[-1] is end

    @pytest.mark.parametrize("says", ["nothing", "that it ended", "that it runs"])
    def test_it_is_told_as_it_was_where_the_platform_says_no_reason(self, world, says):
        world.says(reported(by_signal(9)), Kind.CALL)
        if says == "that it ended":
            world.platform(KILLED)
        else:
            if says == "that it runs":
                world.platform(values.evolve(RUNS, processes=()))
            assert world.statuses == []
            assert world.reports == [by_signal(9)], "who need no reason need not wait"
            world.reactor.advance(Timing().platform_reason)
        (end,) = world.statuses
        assert (end.reason, end.message) == (Reason(ReasonKind.SIGNAL, 9), "killed")

    def test_what_this_program_sent_is_told_at_once(self, world):
        world.monitor.signal(world.child, 0, 15)
        world.says(reported(by_signal(15)))
        assert world.statuses[-1].message == "killed"

    def test_one_of_several_processes_is_waited_for_once(self, world):
        world.says(reported(by_signal(9, lives=True)))
        assert world.statuses == []
        world.reactor.advance(Timing().platform_reason)
        world.says(reported(by_signal(9, lives=True)))
        assert [one.state for one in world.statuses] == [JobState.RUNNING] * 2

    def test_processes_end_with_a_job_that_its_supervisor_reports_in_part(self, world):
        world.says(reported(by_signal(15, lives=True)))
        world.platform(PREEMPTED)
        world.monitor.on_peer_lost(world.peer)
        (end,) = world.statuses
        assert [one.reason for one in end.processes] == [PREEMPTED.reason] * 2


class TestTimeLeft:
    def test_a_supervisor_is_told_once_and_with_each_connection_how_long_its_platform_waits(
        self, world, clock
    ):
        def told():
            sent, world.peer.sent = world.peer.sent, []
            return [one.seconds for _, one in sent]

        leaving = values.evolve(RUNS, draining=True, seconds_left=120.0)
        world.says(reported(RUNS))
        world.platform(leaving)
        # with other news it comes again, and means the same
        clock.now += 20.0
        world.platform(values.evolve(leaving, message="preempted"))
        assert told() == [120.0]
        world.monitor.on_peer_lost(world.peer)
        world.says(messages.Hello(pid=9))
        assert told() == [100.0]
        world.platform(values.evolve(leaving, seconds_left=30.0))
        assert told() == [30.0]
        assert world.statuses[-1].seconds_left == 30.0
        world.platform(values.evolve(leaving, draining=False, seconds_left=7.0))
        assert told() == []


class TestRequests:
    def test_signals_go_to_the_supervisor_those_that_come_too_early_once(self, world):
        def sent(signum):
            return Kind.CAST, messages.Signal(0, world.child.ident, 0, signum, False)

        assert not world.monitor.signal(world.child, 0, 10)
        world.says(messages.Hello(pid=7))
        assert world.monitor.signal(world.child, 0, 15)
        casts = [message for message in world.peer.sent if message[0] is Kind.CAST]
        assert casts == [sent(10), sent(15)]
        again = FakePeer(world.peer.ident)
        world.monitor.on_peer_lost(world.peer)
        world.says(messages.Hello(pid=7), peer=again)
        world.monitor.forget(world.child)
        assert world.monitor.signal(world.child, 0, 15)
        assert again.sent == []

    def test_a_kill_that_is_not_carried_out_is_the_platforms(self, world):
        world.says(messages.Hello(pid=7))
        assert world.monitor.kill(world.child)
        world.backend.kill.assert_not_called()
        world.reactor.advance(Timing().remote_kill)
        until(lambda: world.backend.kill.called and not is_fencing())
        world.backend.kill.assert_called_once_with(world.child.job)


class TestLeases:
    def silence(self, world, clock, seconds):
        for _ in range(seconds):
            clock.now += 1.0
            world.reactor.advance(1.0)

    @pytest.mark.parametrize("error", [None, BackendUnavailableError("no way there")])
    def test_one_that_is_silent_is_ended_and_lost(self, world, clock, error):
        world.backend.kill.side_effect = error
        world.says(reported(RUNS))
        self.silence(world, clock, 4)
        assert world.statuses == [RUNS]
        self.silence(world, clock, 3)
        until(lambda: len(world.statuses) == 2)
        assert world.statuses[-1].reason.kind is ReasonKind.LEASE
        world.backend.kill.assert_called_once_with(world.child.job)
        until(lambda: not is_fencing())

    def test_signs_of_life_keep_it_also_over_a_connection_that_is_made_again(self, world, clock):
        world.says(reported(RUNS))
        for _ in range(5):
            self.silence(world, clock, 3)
            world.says(messages.Ping())
        world.monitor.on_peer_lost(world.peer)
        self.silence(world, clock, 4)
        world.says(messages.Ping(), peer=FakePeer(world.peer.ident))
        self.silence(world, clock, 4)
        assert world.statuses == [RUNS]

    @pytest.mark.parametrize("word_first", [True, False])
    def test_one_that_is_known_to_be_stopped_is_waited_for(self, world, clock, word_first):
        """Also where its last words are read after that."""
        if word_first:
            world.says(reported(RUNS))
        world.platform(JobStatus(state=JobState.SUSPENDED))
        if not word_first:
            world.says(reported(RUNS))
        self.silence(world, clock, 60)
        assert world.statuses[-1].state is JobState.SUSPENDED


@contextlib.contextmanager
def slow_reader(shown):
    """Somebody who reads this process's output when asked, by a descriptor."""
    reader, writer = os.pipe()
    saved = os.dup(1)
    os.dup2(writer, 1)
    try:
        yield reader
    finally:
        shown.close()
        os.dup2(saved, 1)
        for descriptor in (saved, reader, writer):
            os.close(descriptor)


@pytest.fixture
def shown():
    with contextlib.closing(OutputPrinter()) as shown:
        yield shown


def test_each_stream_gets_its_own_in_order_and_there_are_no_others(shown, capfd):
    for stream, text in ((1, b"one\n"), (2, b"two\n"), (7, b"nonsense"), (1, b"three\n")):
        shown.write(stream, text)
    shown.close()

    assert capfd.readouterr() == ("one\nthree\n", "two\n")


def test_settling_returns_once_output_is_written(shown, capfd):
    for number in range(50):
        shown.write(1, b"%d\n" % number)
        shown.settle(60)

        assert capfd.readouterr().out == f"{number}\n"


def test_a_slow_reader_holds_up_no_writer_and_nobody_who_waits_for_it(shown):
    parts = [bytes([number]) * (1 << 14) for number in range(64)]
    with slow_reader(shown) as reader:
        for part in parts:
            shown.write(1, part)
        shown.settle(0.05)
        read = b""
        while len(read) < 64 << 14:
            read += os.read(reader, 1 << 16)

    assert read == b"".join(parts)
