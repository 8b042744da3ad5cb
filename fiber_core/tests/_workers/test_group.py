"""A group of workers: started with the first call, grown, shrunk, stopped and retired."""

import threading
from types import SimpleNamespace

import pytest

from fiber._tasks import protocol
from fiber._tasks.protocol import Mode
from fiber._wire.frames import Kind
from fiber._workers.group import GroupOptions, WorkerGroup, WorkerSpec
from fiber.exceptions import SubmitError, TerminatedError, WireError
from fiber.model import Capabilities, JobState, JobStatus, ProcessStatus, ResourceRequest, Timing
from making import making
from tasks_world import (
    KILLED,
    LEFT,
    RUNNING,
    STOPPED,
    FakeJob,
    FakePeer,
    FakeReactor,
    Sink,
    message,
)
from waiting import until
from wire_world import in_thread, threads


class FakeProcess:
    def __init__(self, target):
        self.target, self.child = target, None

    def _started_as(self, child):
        self.child = child

    def is_alive(self):
        return self.child.poll() is None


class FakeRuntime:
    info = SimpleNamespace(capabilities=Capabilities(fork=True))

    def __init__(self, lease=3.0, **timing):
        self.lease, self.timing = lease, Timing(**timing)
        #: errors of the next submissions
        self.refusals = []
        #: called with each job before its submission returns
        self.at_start = lambda child: None
        self.config = SimpleNamespace(grow_after=0.0, shrink_after=0.0)
        self.reactor = FakeReactor()
        self.services, self.parts, self.children, self.notified = {}, set(), [], []
        self.own, self.disown = self.parts.add, self.parts.discard
        self.endpoint = SimpleNamespace(
            serve=self.services.__setitem__,
            withdraw=lambda target: self.services.pop(target, None),
        )
        self.launcher = SimpleNamespace(launch_many=self._launch_many, takes_many=False)
        self.asked, self.calls = [], []

    def new_target(self):
        return 7

    def notify(self, hook, **facts):
        self.notified.append((hook, facts))

    def _launch(self, process, *, resources, image, processes, drains, on_status):
        assert drains, "workers exit when they are told to"
        self.asked.append((resources, image, processes))
        if self.refusals:
            raise self.refusals.pop(0)
        child = FakeJob(str(len(self.children)), processes, on_status)
        self.at_start(child)
        process._started_as(child)
        self.children.append(child)
        return child

    def _launch_many(self, jobs, *, waits):
        if len(jobs) == 1:
            return [self._launch(process, **options) for process, options in jobs]
        self.calls.append(len(jobs))
        found = []
        for process, options in jobs:
            try:
                found.append(self._launch(process, **options))
            except SubmitError as error:
                found.append(error)
        return found


class World:
    """A group, and workers played by the tests."""

    def __init__(self, size=2, min_size=None, max_size=None, spec=None, per_job=1, **durations):
        self.runtime = FakeRuntime(**durations)
        self.group = WorkerGroup(
            self.runtime,
            spec or WorkerSpec(),
            GroupOptions(
                size=size,
                min_size=size if min_size is None else min_size,
                max_size=size if max_size is None else max_size,
                maxtasksperchild=None,
                per_job=per_job,
                max_attempts=3,
                store=None,
                keeper=None,
                make_process=FakeProcess,
            ),
            name="pool-1",
        )
        self.peers = {}

    @property
    def children(self):
        return self.runtime.children

    def begin(self, count):
        self.group.begin()
        until(lambda: len(self.children) == count)

    def work(self, count):
        """Begin with so many workers and have them ready."""
        self.begin(count)
        self.up()

    def up(self):
        """Let every worker that runs and has not yet asked ask."""
        for child in self.children:
            if child.poll() is None and child.ident not in self.peers:
                child.report(RUNNING)
                peer = self.peers[child.ident] = FakePeer(child.ident)
                self.send(peer, Kind.ASK, [protocol.ask(1)])

    def send(self, peer, kind, segments):
        self.group.dispatcher.on_message(peer, message(kind, segments))

    def call(self, items, sink=None):
        call = self.group.dispatcher.prepare(abs, Mode.MAP, sink or Sink(), items=items)
        self.group.dispatcher.add(call)

    def look(self):
        """Let the autoscale timer go off."""
        self.runtime.reactor.go_off()

    def await_retire(self):
        """Wait until all workers were sent RETIRE."""
        until(lambda: all(peer.of_kind(Kind.RETIRE) for peer in self.peers.values()))

    def obey(self):
        """Let the workers that were sent RETIRE exit."""
        for ident, peer in self.peers.items():
            if peer.of_kind(Kind.RETIRE):
                self.children[int(ident)].report(LEFT)

    def end(self):
        self.group.terminate()
        assert self.group.join(20)


@pytest.fixture
def worlds():
    with making(World, World.end) as make:
        yield make


def test_no_worker_is_started_before_the_first_call(worlds):
    world = worlds()
    assert not world.group.began
    assert world.children == []
    world.begin(2)
    assert world.group.began
    world.group.begin()
    assert len(world.children) == 2
    # nobody looks whether it is to grow: its size is fixed
    assert world.runtime.reactor.timers == []


def test_workers_get_the_resources_and_image_of_the_group(worlds):
    request = ResourceRequest(cpu=2, devices={"gpu": 1})
    world = worlds(size=1, spec=WorkerSpec(resources=request, image="mine"))
    world.begin(1)
    assert world.runtime.asked == [(request, "mine", 1)]


def test_equal_specs_have_equal_keys():
    def spec(**devices):
        return WorkerSpec(resources=ResourceRequest(cpu=1, devices=devices)).key

    assert spec(a=1, b=2) == spec(b=2, a=1)
    assert spec(a=1) != spec(a=2)
    assert WorkerSpec(image="x").key != WorkerSpec().key


def test_strangers_are_no_workers(worlds):
    world = worlds()
    world.begin(2)
    with pytest.raises(WireError):
        world.send(FakePeer("stranger"), Kind.ASK, [protocol.ask(1)])


def test_one_whose_exit_was_reported_before_its_first_message_was_read_gets_no_work(worlds):
    world = worlds(size=1)
    world.begin(1)
    world.children[0].report(RUNNING)
    world.children[0].report(KILLED)
    until(lambda: len(world.children) == 2)
    world.call([5], Sink())
    # also while another one is being started
    world.group.manager._state.starting += 1
    zombie = FakePeer("0")
    world.send(zombie, Kind.ASK, [protocol.ask(1)])
    world.group.manager._state.starting -= 1
    assert zombie.closed
    assert not zombie.sent
    world.up()
    assert world.peers["1"].of_kind(Kind.TASKS)


def test_ended_processes_are_not_kept(worlds):
    world = worlds(size=1)
    world.work(1)
    for number in range(5):
        world.children[-1].report(KILLED)
        until(lambda n=number: len(world.children) == n + 2)
        world.up()
    assert [process.child for process in world.group.processes()] == [world.children[-1]]
    assert len(world.group._processes) == 1


def test_closed_it_retires_its_workers_and_leaves_nothing(worlds):
    world = worlds()
    world.work(2)
    world.group.retire()
    world.await_retire()
    assert not world.group.join(0.01)
    world.obey()
    assert world.group.join(20)
    assert world.runtime.services == {}
    assert world.runtime.parts == set()


def test_closed_with_the_program_its_calls_end(worlds):
    world = worlds()
    world.begin(2)
    sink = Sink()
    world.call([1], sink)
    world.group.close()
    assert isinstance(sink.error, TerminatedError)
    assert all(child.poll() == -9 for child in world.children)


def test_begun_after_its_end_it_starts_no_worker(worlds):
    world = worlds()
    world.group.terminate()
    world.group.begin()
    assert world.children == []


class TestStoppingWorkers:
    def test_its_workers_leave_and_come_back_with_the_next_call(self, worlds):
        world = worlds()
        world.work(2)
        world.group.stop_workers()
        assert not world.group.began
        world.await_retire()
        world.obey()
        world.begin(4)
        assert [child.poll() for child in world.children] == [0, 0, None, None]

    def test_those_on_their_way_out_are_still_known_and_waited_for(self, worlds):
        world = worlds(size=1)
        world.begin(1)
        world.children[0].report(RUNNING)
        world.group.stop_workers()
        world.up()
        world.await_retire()
        world.group.retire()
        assert not world.group.join(0.01)
        world.obey()
        assert world.group.join(20)


class TestElastic:
    def test_it_grows_while_work_has_waited_long_enough_and_no_worker_is_idle(self, worlds):
        world = worlds(size=1, min_size=1, max_size=4)
        world.runtime.config.grow_after = 1000
        world.work(1)
        world.call(list(range(100)))
        for _ in range(5):
            world.look()
        assert world.group.manager.size == 1
        world.runtime.config.grow_after = 0.0
        for size in (2, 4, 4):
            world.look()
            world.look()
            until(lambda n=size: len(world.children) == n)
        assert world.group.manager.size == 4

    def test_it_does_not_shrink_while_its_workers_are_busy(self, worlds):
        world = worlds(size=2, min_size=1, max_size=2)
        world.begin(2)
        world.call(list(range(100)))
        world.up()
        world.look()
        assert world.group.manager.size == 2


class TestManager:
    """The thread that keeps the workers alive."""

    def test_the_first_is_started_by_the_caller_and_the_others_by_the_manager(self, worlds):
        world, names = worlds(size=3), []
        world.runtime.at_start = lambda _: names.append(threading.current_thread().name)
        world.begin(3)
        assert names == [threading.current_thread().name, *["fiber-pool-1"] * 2]

    def test_what_cannot_be_started_is_the_callers_error_and_may_be_tried_again(self, worlds):
        world = worlds()
        world.runtime.refusals = [SubmitError("no")]
        with pytest.raises(SubmitError):
            world.group.begin()
        world.begin(2)

    def test_the_others_come_in_one_call_and_those_of_it_that_were_refused_again(self, worlds):
        world = worlds(size=6)
        world.runtime.launcher.takes_many = True

        def at_start(child):
            if child.ident == "3" and not world.runtime.asked[6:]:
                raise SubmitError("quota")
            # before the call has returned
            child.report(RUNNING)

        world.runtime.at_start = at_start
        world.begin(6)
        until(lambda: len(world.group.manager.workers()) == 6)
        assert world.runtime.calls == [5]
        assert len(world.group.processes()) == 6
        assert world.group.error is None

    @pytest.mark.parametrize("error", [SubmitError("quota"), OSError("too many open files")])
    def test_a_start_that_fails_later_is_tried_again_whatever_it_raised(self, worlds, error):
        world = worlds(size=1)
        world.work(1)
        world.runtime.refusals = [error]
        world.children[0].kill()
        until(lambda: len(world.children) == 2)
        assert world.group.error is None

    def test_statuses_that_come_before_the_submission_returned_keep_their_order(self, worlds):
        world = worlds(size=1)

        def at_start(child):
            if child.ident == "0":
                child.report(RUNNING)
                child.kill()

        world.runtime.at_start = at_start
        world.begin(2)
        ((_, facts),) = world.runtime.notified
        assert facts["worker"] == "worker 0"

    def test_one_that_cannot_be_retired_is_ended(self, worlds):
        world = worlds(size=1)
        world.begin(1)
        world.children[0].report(RUNNING)
        # it has a connection that the dispatcher does not know
        world.group.worker_ready("0")
        world.group.retire()
        assert world.group.join(20)
        assert world.children[0].kills == 1

    def test_terminated_by_several_threads_each_ends_once(self, worlds):
        world = worlds(size=3)
        world.group.begin()
        with threads(4, lambda _: world.group.terminate()):
            pass
        assert world.group.join(20)
        assert world.group.manager.workers() == []
        assert world.runtime.notified == []

    def test_a_job_that_was_being_submitted_at_the_end_is_ended(self, worlds):
        world = worlds(size=1)
        begun, go_on = threading.Event(), threading.Event()

        def at_start(_):
            begun.set()
            assert go_on.wait(20)

        world.runtime.at_start = at_start
        started = in_thread(world.group.begin)
        assert begun.wait(20)
        world.group.terminate()
        go_on.set()
        started()
        assert world.group.join(20)
        assert world.children[0].kills == 1
        # nobody has lost it
        assert world.runtime.notified == []

    def test_who_waits_for_one_that_does_not_end_is_told_after_a_while(self, worlds, caplog):
        world = worlds(size=1, wait_report=0.05)
        world.work(1)
        world.group.retire()
        joined = in_thread(world.group.join)
        until(lambda: "waiting for worker 0 to end; has a task left a thread" in caplog.text)
        world.obey()
        assert joined()

    def test_a_platform_that_does_not_answer_is_asked_again_to_end_a_worker(self, worlds):
        world = worlds(size=1, kill_again=0.05)
        world.begin(1)
        world.children[0].unreachable = 2
        world.group.terminate()
        assert world.group.join(20)
        assert world.children[0].kills == 3

    def test_of_a_job_with_others_only_the_silent_process_is_ended(self, worlds):
        world = worlds(size=2, per_job=2, lease=0.05)
        world.begin(1)
        (child,) = world.children
        parts = (
            ProcessStatus(index=0, state=STOPPED.state, reason=STOPPED.reason),
            ProcessStatus(index=1, state=JobState.RUNNING),
        )
        signalled = []
        child.signal = lambda index, signum: signalled.append((index, signum))
        child.report(JobStatus(state=JobState.RUNNING, processes=parts))
        until(lambda: signalled)
        assert signalled[0] == (0, 9)
        del child.signal
