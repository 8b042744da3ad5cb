"""Workers of one kind: started with the first call, grown, shrunk, rested and let go."""

from types import SimpleNamespace

import pytest

from fiber._base import values
from fiber._tasks import protocol
from fiber._tasks.outcomes import Outcomes
from fiber._tasks.protocol import Mode
from fiber._wire.frames import Kind
from fiber._workers.group import Crew, CrewOptions, Needs
from fiber.exceptions import StartError, TerminatedError, WireError
from fiber.model import Capabilities, JobState, JobStatus, Reason, ReasonKind, ResourceRequest
from tasks_world import FakePeer, FakeReactor, Sink, message, until

RUNNING = JobStatus(state=JobState.RUNNING)
LEFT = JobStatus(state=JobState.SUCCEEDED, exit_code=0, reason=Reason(ReasonKind.EXIT, 0))
KILLED = JobStatus(state=JobState.FAILED, exit_code=-9, reason=Reason(ReasonKind.SIGNAL, 9))


class FakeChild:
    """A job that runs at once and ends when it is told to."""

    host, failure = "here", ""

    def __init__(self, ident, processes, on_status):
        self.ident, self.processes, self.name = ident, processes, f"worker {ident}"
        self._on_status = on_status
        self.status = None

    def poll(self):
        return self.status.exit_code if self.status is not None else None

    def tell(self, status):
        if self.poll() is None:
            self.status = status
            self._on_status(self, status)

    def kill(self):
        self.tell(KILLED)

    def signal(self, index, signum):
        self.kill()


class FakeProcess:
    def __init__(self, target):
        self.target, self.child = target, None

    def started_as(self, child):
        self.child = child

    def is_alive(self):
        return self.child.poll() is None


class FakeRuntime:
    lease = 3.0
    info = SimpleNamespace(capabilities=Capabilities(fork=True))

    def __init__(self):
        self.config = SimpleNamespace(grow_after=0.0, shrink_after=0.0)
        self.reactor = FakeReactor()
        self.endpoint = SimpleNamespace(serve=self._serve, withdraw=self._withdraw)
        self.launcher = SimpleNamespace(launch=self._launch)
        self.services, self.parts, self.children, self.notified = {}, [], [], []
        self.asked = []

    def new_target(self):
        return 7

    def own(self, part):
        self.parts.append(part)

    def disown(self, part):
        if part in self.parts:
            self.parts.remove(part)

    def notify(self, hook, **facts):
        self.notified.append((hook, facts))

    def _serve(self, target, service):
        self.services[target] = service

    def _withdraw(self, target):
        self.services.pop(target, None)

    def _launch(self, process, *, resources, image, processes, drains, waits, on_status):
        assert drains, "workers exit when they are told to"
        self.asked.append((resources, image, processes))
        child = FakeChild(str(len(self.children)), processes, on_status)
        self.children.append(child)
        return child


class World:
    """A crew, and workers that do what a test says."""

    def __init__(self, size=2, least=None, most=None, needs=None, quota=None):
        self.runtime = FakeRuntime()
        self.crew = Crew(
            self.runtime,
            needs or Needs(),
            CrewOptions(
                size=size,
                least=size if least is None else least,
                most=size if most is None else most,
                quota=quota,
                per_job=1,
                max_attempts=3,
                memory=None,
                make_process=FakeProcess,
            ),
            name="pool-1",
        )
        self.peers = {}

    @property
    def children(self):
        return self.runtime.children

    def begin(self, count):
        self.crew.begin()
        until(lambda: len(self.children) == count)

    def up(self):
        """Let every worker that runs and has not yet asked ask."""
        for child in self.children:
            if child.poll() is None and child.ident not in self.peers:
                child.tell(RUNNING)
                peer = self.peers[child.ident] = FakePeer(child.ident)
                self.say(peer, Kind.ASK, [protocol.ask(1)])

    def say(self, peer, kind, segments):
        self.crew.dispatcher.on_message(peer, message(kind, segments))

    def call(self, items, sink=None):
        call = self.crew.dispatcher.prepare(abs, Mode.MAP, sink or Sink(), items=items)
        self.crew.dispatcher.add(call)

    def look(self):
        """Let the crew look at itself."""
        self.runtime.reactor.go_off()

    def obey(self):
        """Let those who were told to exit do it."""
        for ident, peer in self.peers.items():
            if peer.of_kind(Kind.RETIRE):
                self.children[int(ident)].tell(LEFT)

    def end(self):
        self.crew.terminate()
        assert self.crew.join(20)


@pytest.fixture
def worlds():
    made = []

    def make(**options):
        world = World(**options)
        made.append(world)
        return world

    yield make
    for world in made:
        world.end()


def test_nobody_is_started_before_the_first_call(worlds):
    world = worlds()
    assert not world.crew.began
    assert world.children == []
    world.begin(2)
    assert world.crew.began
    world.crew.begin()
    assert len(world.children) == 2


def test_workers_get_what_the_crew_needs(worlds):
    request = ResourceRequest(cpu=2, devices={"gpu": 1})
    world = worlds(size=1, needs=Needs(resources=request, image="mine"))
    world.begin(1)
    assert world.runtime.asked == [(request, "mine", 1)]


def test_equal_needs_are_equal():
    def needs(**devices):
        return Needs(resources=ResourceRequest(cpu=1, devices=devices)).key

    assert needs(a=1, b=2) == needs(b=2, a=1)
    assert needs(a=1) != needs(a=2)
    assert Needs(image="x").key != Needs().key


def test_strangers_are_no_workers(worlds):
    world = worlds()
    world.begin(2)
    with pytest.raises(WireError):
        world.say(FakePeer("stranger"), Kind.ASK, [protocol.ask(1)])


def test_a_loss_is_told_with_its_counts_and_an_end_that_was_wished_for_is_not(worlds):
    world = worlds(size=1)
    world.begin(1)
    world.call([1])
    world.up()
    world.children[0].tell(KILLED)
    ((hook, facts),) = world.runtime.notified
    assert hook == "fiber_worker_lost"
    assert facts["worker"] == "worker 0"
    assert str(facts["cause"]) == "SIGNAL(9)"
    assert (facts["requeued"], facts["abandoned"]) == (1, 0)
    until(lambda: len(world.children) == 2)
    world.crew.dispatcher.end(TerminatedError("over"))
    world.end()
    assert len(world.runtime.notified) == 1


def test_one_whose_end_was_told_before_its_first_words_were_read_keeps_no_work(worlds):
    world = worlds(size=1)
    world.begin(1)
    world.children[0].tell(RUNNING)
    world.children[0].tell(KILLED)
    until(lambda: len(world.children) == 2)
    sink = Sink()
    world.call([5], sink)
    # while another one is being started, it might be that one
    world.crew.fleet._roster.starting += 1
    zombie = FakePeer("0")
    world.say(zombie, Kind.ASK, [protocol.ask(1)])
    world.crew.fleet._roster.starting -= 1
    assert zombie.of_kind(Kind.TASKS)
    world.crew.dispatcher.on_peer_lost(zombie)
    world.up()
    assert world.peers["1"].of_kind(Kind.TASKS)


def test_one_whose_place_is_taken_away_gets_nothing_more_is_replaced_and_is_no_loss(worlds):
    world = worlds(size=1)
    world.begin(1)
    world.up()
    world.children[0].tell(values.evolve(RUNNING, draining=True))
    until(lambda: len(world.children) == 2)
    sink = Sink()
    world.call([5], sink)
    assert world.peers["0"].of_kind(Kind.TASKS) == []
    world.obey()
    world.up()
    assert world.peers["1"].of_kind(Kind.TASKS)
    assert world.runtime.notified == []


def test_a_quota_that_is_done_is_no_loss(worlds):
    world = worlds(size=1, quota=1)
    world.begin(1)
    sink = Sink()
    world.call([5], sink)
    world.up()
    head, _ = world.peers["0"].tasks()[0]
    outcomes = Outcomes()
    outcomes.add(5)
    done = protocol.Done(head.entry, 0, 1, 0.1, 1)
    world.say(world.peers["0"], Kind.DONE, [done.encode(), *outcomes.encode()])
    world.obey()
    until(lambda: len(world.children) == 2)
    assert world.runtime.notified == []
    assert sink.is_done


def test_ended_processes_are_not_kept(worlds):
    world = worlds(size=1)
    world.begin(1)
    world.up()
    for number in range(5):
        world.children[-1].tell(KILLED)
        until(lambda n=number: len(world.children) == n + 2)
        world.up()
    assert [process.child for process in world.crew.processes()] == [world.children[-1]]
    assert len(world.crew._processes) == 1


def test_closed_it_retires_its_workers_and_leaves_nothing(worlds):
    world = worlds()
    world.begin(2)
    world.up()
    world.crew.retire()
    until(lambda: all(peer.of_kind(Kind.RETIRE) for peer in world.peers.values()))
    assert not world.crew.join(0.01)
    world.obey()
    assert world.crew.join(20)
    assert world.runtime.services == {}
    assert world.runtime.parts == []


def test_one_that_is_not_up_yet_may_finish_its_initializer(worlds):
    world = worlds(size=1)
    world.begin(1)
    world.children[0].tell(RUNNING)
    world.crew.retire()
    assert not world.crew.join(0.05)
    world.up()
    until(lambda: world.peers["0"].of_kind(Kind.RETIRE))
    world.obey()
    assert world.crew.join(20)


def test_nobody_has_to_wait_for_the_end_of_a_pool_that_was_collected(worlds):
    world = worlds()
    world.begin(2)
    world.crew.terminate()
    until(lambda: world.runtime.services == {})
    until(lambda: world.runtime.parts == [])


def test_closed_with_the_program_its_calls_end(worlds):
    world = worlds()
    world.begin(2)
    sink = Sink()
    world.call([1], sink)
    world.crew.close()
    assert isinstance(sink.error, TerminatedError)
    assert all(child.poll() == -9 for child in world.children)


def test_begun_after_its_end_it_starts_nobody(worlds):
    world = worlds()
    world.crew.terminate()
    world.crew.begin()
    assert world.children == []


def test_it_fails_with_the_reason_and_its_calls_with_it(worlds):
    world = worlds(size=1)
    world.begin(1)
    sink = Sink()
    world.call([1], sink)
    number = 0
    while sink.error is None:
        world.crew.fleet.is_broken(str(number), KeyError("initializer"))
        world.children[number].tell(KILLED)
        number += 1
        until(lambda n=number: sink.error or len(world.children) > n)
    assert isinstance(world.crew.error, StartError)
    assert sink.error is world.crew.error
    with pytest.raises(StartError):
        world.call([2])


class TestResting:
    def test_its_workers_leave_and_come_back_with_the_next_call(self, worlds):
        world = worlds()
        world.begin(2)
        world.up()
        world.crew.rest()
        assert not world.crew.began
        until(lambda: all(peer.of_kind(Kind.RETIRE) for peer in world.peers.values()))
        world.obey()
        world.begin(4)
        assert [child.poll() for child in world.children] == [0, 0, None, None]

    def test_those_on_their_way_out_are_still_known_and_waited_for(self, worlds):
        world = worlds(size=1)
        world.begin(1)
        world.children[0].tell(RUNNING)
        world.crew.rest()
        world.up()
        until(lambda: world.peers["0"].of_kind(Kind.RETIRE))
        world.crew.retire()
        assert not world.crew.join(0.01)
        world.obey()
        assert world.crew.join(20)

    def test_never_begun_there_is_nothing_to_rest(self, worlds):
        world = worlds()
        world.crew.rest()
        world.begin(2)

    def test_it_looks_at_itself_once_however_often_it_begins(self, worlds):
        world = worlds(size=1, least=1, most=4)
        world.begin(1)
        world.crew.rest()
        world.begin(2)
        assert len([t for t in world.runtime.reactor.timers if t.action]) == 1


class TestElastic:
    def test_it_grows_while_work_waits_and_nobody_is_idle(self, worlds):
        world = worlds(size=1, least=1, most=4)
        world.begin(1)
        world.up()
        world.call(list(range(100)))
        world.look()
        world.look()
        until(lambda: len(world.children) == 2)
        world.look()
        world.look()
        until(lambda: len(world.children) == 4)
        world.look()
        world.look()
        assert world.crew.fleet.size == 4

    def test_not_before_it_has_waited_long_enough(self, worlds):
        world = worlds(size=1, least=1, most=4)
        world.runtime.config.grow_after = 1000
        world.begin(1)
        world.call(list(range(100)))
        for _ in range(5):
            world.look()
        assert world.crew.fleet.size == 1

    def test_it_shrinks_to_the_least_when_idle(self, worlds):
        world = worlds(size=3, least=1, most=3)
        world.begin(3)
        world.up()

        def is_small():
            world.look()
            world.obey()
            return len(world.crew.fleet.members()) == 1

        until(is_small)
        world.look()
        assert world.crew.fleet.size == 1

    def test_not_while_they_are_busy(self, worlds):
        world = worlds(size=2, least=1, most=2)
        world.begin(2)
        world.call(list(range(100)))
        world.up()
        world.look()
        assert world.crew.fleet.size == 2

    def test_a_crew_of_one_size_never_looks(self, worlds):
        world = worlds()
        world.begin(2)
        assert world.runtime.reactor.timers == []

    def test_ended_it_looks_no_more(self, worlds):
        world = worlds(size=1, least=1, most=2)
        world.begin(1)
        world.end()
        world.look()
        assert world.runtime.reactor.timers == []
