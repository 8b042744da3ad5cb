"""The state machine of a ring: its reaction to each event."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fiber._ring import events
from fiber._ring.events import (
    CleanUp,
    CollectState,
    Conclude,
    EndWorker,
    Halt,
    StartJoin,
    StartRendezvous,
    StartRun,
    StartWorker,
    UpdateMembers,
)
from fiber._ring.machine import RingMachine
from fiber._ring.model import (
    Clean,
    ConditionKind,
    Failure,
    Group,
    Host,
    Policy,
    RingPhase,
    RingTiming,
)

DIED = Failure(reason="SIGNAL(9)", message="killed")
RAISED = Failure(reason="raised", message="ValueError: no")


class RingWorld:
    """A model of the platform: the jobs, members and rounds that a machine's commands imply."""

    def open(self, *, workers, slots=1, timing=RingTiming(), **policy):
        self.now = 0.0
        self.policy = Policy(timing=timing, **policy)
        self.machine = RingMachine((Group(workers=workers, slots=slots),), self.policy)
        #: jobs that exist, with the command that made each
        self.jobs = {}
        self.hosts = {}
        self.up = set()
        self.ending = set()
        self.round = 0
        self.forming = self.running = self.collecting = self.halting = False
        self.members = ()
        #: the newcomer that is to be brought together with those that run
        self.newcomer = None
        self.concluded = []
        self.forgotten = 0
        self.log = []

    def feed(self, event):
        self.log.append(event)
        for command in self.machine.handle(event, self.now):
            self.log.append(command)
            self.follow(command, event)
        return self

    def follow(self, command, event):
        assert not self.forgotten, f"{command} after everything was forgotten"
        if isinstance(command, StartWorker):
            assert command.worker not in self.jobs
            assert command.seat not in {
                job.seat for number, job in self.jobs.items() if number not in self.ending
            }, "two workers on one seat"
            self.jobs[command.worker] = command
        elif isinstance(command, StartRendezvous):
            assert {placement.worker for placement in command.placements} <= self.up - self.ending
            assert command.round == self.round + 1
            self.round, self.forming, self.running = command.round, True, False
            self.members = command.placements
            ranks = [rank for placement in command.placements for rank in placement.ranks]
            assert ranks == list(range(len(ranks)))
        elif isinstance(command, StartJoin):
            assert self.running
            assert command.worker in self.up - self.ending
            self.newcomer = command.worker
        elif isinstance(command, UpdateMembers):
            assert self.running
            assert command.round == self.round
            ranks = [rank for placement in command.placements for rank in placement.ranks]
            assert ranks == list(range(len(ranks)))
            assert not {placement.worker for placement in command.placements} & self.ending
            self.members = command.placements
        elif isinstance(command, StartRun):
            assert self.forming
            assert event == events.RendezvousCompleted(command.round), "they do not know each other"
            assert command.round == self.round
            self.forming, self.running = False, True
        elif isinstance(command, CollectState):
            assert set(command.workers) <= {placement.worker for placement in self.members}
            self.collecting = True
        elif isinstance(command, EndWorker):
            self.ending.add(command.worker)
            if not self.policy.is_live:
                self.running = self.forming = False
        elif isinstance(command, Halt):
            self.halting = True
        elif isinstance(command, Conclude):
            self.concluded.append(command.failure)
        elif isinstance(command, CleanUp):
            self.forgotten += 1

    # -- what may happen

    def start(self):
        return self.feed(events.StartRequested())

    def comes_up(self, worker, host="a"):
        self.up.add(worker)
        self.hosts[worker] = host
        return self.feed(events.WorkerUp(worker, Host(host, host)))

    def all_come_up(self, host="a"):
        for worker in list(self.jobs):
            if worker not in self.up:
                self.comes_up(worker, host)
        return self

    def forms(self):
        return self.feed(events.RendezvousCompleted(self.round))

    def runs(self):
        """Whatever it takes from the start until user code runs."""
        return self.all_come_up().forms()

    def gone(self, worker, failure=DIED):
        self.jobs.pop(worker, None)
        self.up.discard(worker)
        self.ending.discard(worker)
        return self.feed(events.WorkerEnded(worker, failure))

    def those_ending_end(self):
        for worker in sorted(self.ending):
            self.gone(worker, None)
        return self

    def all_done(self):
        for placement in self.members:
            self.feed(events.WorkerDone(placement.worker))
        return self

    def joins(self):
        """The newcomer and those that run know each other."""
        newcomer, self.newcomer = self.newcomer, None
        return self.feed(events.JoinCompleted(self.round, newcomer))

    def is_kept_out(self):
        """They do not."""
        newcomer, self.newcomer = self.newcomer, None
        failure = Failure(reason="Unreachable", message="members cannot reach it")
        return self.feed(events.JoinFailed(self.round, newcomer, failure))

    def collected(self):
        self.collecting = False
        return self.feed(events.StateCollected(self.round))

    def passes(self, seconds):
        """Time passes; ticks come when they are due."""
        end = self.now + seconds
        for _ in range(1000):
            due = self.machine.next_deadline()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.feed(events.Tick())
        else:
            raise AssertionError("ticks without end")
        self.now = end
        return self.feed(events.Tick())

    @property
    def status(self):
        return self.machine.status()

    @property
    def phase(self):
        return self.machine.phase.value

    def all_of(self, kind):
        """The commands of a kind, so far."""
        return [one for one in self.log if isinstance(one, kind)]


def ring(**policy):
    world = RingWorld()
    world.open(**policy)
    return world.start()


@pytest.mark.parametrize("failure, reason", [(DIED, "SIGNAL(9)"), (None, "EXIT(0)")])
def test_one_that_ends_before_its_function_returned_ends_the_others_at_once(failure, reason):
    world = ring(workers=3).runs()

    world.gone(2, failure)

    assert {one.worker for one in world.all_of(EndWorker)} == {1, 3}
    world.those_ending_end()
    assert world.phase == "failed"
    assert (world.concluded[0].worker, world.concluded[0].reason) == (2, reason)


def test_a_death_is_the_cause_of_what_other_members_raise():
    world = ring(workers=3).runs()

    world.feed(events.WorkerFailed(1, RAISED))
    assert world.all_of(EndWorker) == []
    world.gone(2).passes(1).those_ending_end()

    assert world.concluded[0].worker == 2


def test_what_a_rank_raised_first_is_its_failure_and_words_that_come_early_are_none():
    world = ring(workers=2).all_come_up()
    world.feed(events.WorkerDone(1)).feed(events.WorkerDone(9))
    assert world.phase == "forming"

    world.forms().feed(events.WorkerFailed(1, RAISED)).feed(events.WorkerFailed(1, DIED))
    world.gone(1, Failure(reason="EXIT(1)")).passes(1).those_ending_end()

    assert world.concluded[0].reason == "raised"


def test_a_silent_worker_is_given_up():
    world = ring(workers=2, heartbeat=5.0).runs()

    for _ in range(3):
        world.passes(4).feed(events.WorkerHeartbeat(1))
    world.passes(3)

    world.those_ending_end()
    assert world.concluded[0].reason == "LEASE"
    assert world.concluded[0].worker == 2


def test_workers_that_do_not_end_when_asked_are_killed_again_and_again_and_given_up():
    world = ring(workers=1, timing=RingTiming(grace=2.0, end=9.0)).runs().all_done()

    world.passes(20)

    assert [one.force for one in world.all_of(EndWorker)] == [False, True, True, True, True]
    assert world.phase == "succeeded"


@pytest.mark.parametrize("words", ["", " (Insufficient cpu)"])
def test_none_runs_where_not_all_come_up_in_time_and_the_platforms_message_stands_once(words):
    world = ring(workers=3, start_timeout=10.0).comes_up(1)
    for worker in (2, 3, 2, 3) if words else ():
        world.feed(events.WorkerPending(worker, "Insufficient cpu"))
    world.passes(10)

    assert world.all_of(StartRendezvous) == []
    assert world.ending == {1, 2, 3}
    world.those_ending_end()
    assert world.concluded[0].reason == "StartTimeout"
    assert "1 of 3 members came up within 10 s" in world.concluded[0].message
    assert world.concluded[0].message.endswith(f"missing: 1, 2{words}")
    found = [one.message for one in world.machine.status().events if one.reason == "MemberWaits"]
    assert found == ["member 1: Insufficient cpu", "member 2: Insufficient cpu"] * bool(words)


@pytest.mark.parametrize(
    "event",
    [
        events.WorkerEnded(2, Failure(reason="cause", message="no such image")),
        events.RendezvousFailed(1, Failure(reason="cause", message="a cannot reach b")),
    ],
    ids=["refused", "members that cannot meet"],
)
def test_a_failed_start_has_the_words_of_its_cause(event):
    world = ring(workers=2).all_come_up().feed(event).passes(0).those_ending_end()

    assert world.concluded[0].reason == "cause"
    assert world.all_of(StartRun) == []


def test_a_start_is_tried_again_after_a_while_that_doubles():
    world = ring(workers=1, backoff_limit=2, timing=RingTiming(backoff=1.0))
    waits = []
    for _ in range(2):
        world.gone(max(world.jobs))
        due = world.machine.next_deadline()
        waits.append(due - world.now)
        world.passes(waits[-1])
    world.gone(max(world.jobs))

    assert waits == [1.0, 2.0]
    assert world.phase == "failed"
    assert world.status.restarts == 0


def test_all_ranks_are_started_again_together():
    timing = RingTiming(collect=10.0)
    world = ring(workers=2, max_restarts=1, timing=timing).runs().gone(1).passes(9.9)
    assert world.all_of(CollectState) == [CollectState(1, (2,))]
    # until the survivor has sent its state, or has had the time for it
    assert world.ending == set()

    world.passes(0.1)
    assert world.ending == {2}
    world.those_ending_end()
    assert world.status.restarts == 1
    assert world.status.has(ConditionKind.RESTARTING)
    world.runs()
    assert world.all_of(StartRendezvous)[-1].restarts == 1
    assert world.status.has(ConditionKind.RUNNING)
    assert not world.status.has(ConditionKind.RESTARTING)


def test_a_worker_lost_while_the_ring_forms_again_counts_as_a_restart():
    world = ring(workers=1, max_restarts=2).runs().gone(1)
    world.all_come_up().gone(2)

    assert world.status.restarts == 2
    assert world.runs().phase == "running"


def test_what_workers_run_is_halted_before_they_are_ended():
    world = ring(workers=2, max_restarts=1, halts=True).runs()
    failed = Failure(reason="EXIT(3)")
    world.feed(events.RoundEnded(1, failed)).collected()
    assert world.all_of(Halt) == [Halt(1, failed)]
    assert world.all_of(EndWorker) == []

    world.feed(events.Halted(1)).those_ending_end()

    world.runs().feed(events.RoundEnded(2)).feed(events.Halted(2)).those_ending_end()
    assert world.concluded == [None]


def test_an_elastic_ring_goes_on_with_those_that_came_and_a_later_one_costs_no_restart():
    timing = RingTiming(last_call=5.0)
    world = ring(workers=3, min=1, timing=timing).comes_up(1).comes_up(2)
    assert world.all_of(StartRendezvous) == []

    world.passes(5)
    assert len(world.members) == 2
    world.forms().comes_up(3).collected().those_ending_end().runs()

    assert len(world.members) == 3
    assert world.status.restarts == 0


def test_the_deadline_holds_for_the_whole_ring_and_begins_anew_when_it_is_resumed():
    world = ring(workers=1, deadline=100.0, max_restarts=9, heartbeat=1000.0).runs().passes(90)
    world.feed(events.SuspendRequested()).collected().those_ending_end().passes(500)
    world.feed(events.ResumeRequested()).runs().passes(60).gone(2).runs().passes(39.9)
    assert world.phase == "running"

    world.passes(0.1).those_ending_end()

    assert world.concluded[0].reason == "DeadlineExceeded"


def test_a_suspended_ring_has_no_workers_until_it_is_resumed_and_conditions_have_reason_and_time():
    world = ring(workers=1, max_restarts=1).passes(2).runs()
    true_in = []

    def conditions():
        true_in.append([one.kind.value for one in world.status.conditions if one.is_true])
        return [(c.kind.value, c.is_true, c.reason, c.time) for c in world.status.conditions]

    conditions()
    world.feed(events.SuspendRequested()).collected().those_ending_end()
    conditions()
    assert (world.phase, world.jobs, world.machine.next_deadline()) == ("suspended", {}, None)
    world.feed(events.ResumeRequested()).runs().passes(3).gone(2).runs()
    world.all_done().those_ending_end()

    assert conditions() == [
        ("Created", True, "RingCreated", 0.0),
        ("Suspended", False, "RingResumed", 2.0),
        ("Restarting", False, "RingRunning", 5.0),
        ("Running", False, "RingSucceeded", 5.0),
        ("Succeeded", True, "RingSucceeded", 5.0),
    ]
    assert true_in == [["Created", "Running"], ["Created", "Suspended"], ["Created", "Succeeded"]]


def live(workers=3, **policy):
    return ring(workers=workers, is_live=True, **{"min": 1, "max": 5, **policy}).runs()


def seats(world):
    return [placement.seat for placement in world.members]


def test_those_that_stay_go_on_when_one_is_lost_and_who_comes_in_its_place_joins_as_the_last():
    world = live(timing=RingTiming(backoff=1.0))

    world.gone(world.members[1].worker)

    assert world.phase == "running"
    assert world.all_of(EndWorker) == []
    assert [(one.seat, one.first_rank) for one in world.members] == [(0, 0), (2, 1)]
    status = world.status
    assert (status.changes, status.restarts, status.rounds) == (1, 0, 1)
    assert status.has(ConditionKind.RUNNING)
    assert status.events[-1].reason == "MemberLost"
    assert len(world.all_of(StartWorker)) == 3

    world.passes(1.0).all_come_up()
    assert world.all_of(StartJoin) == [StartJoin(1, 4)]
    assert seats(world) == [0, 2]
    world.joins()

    assert seats(world) == [0, 2, 1]
    assert len(world.all_of(StartRendezvous)) == 1
    assert world.status.events[-1].reason == "MemberJoined"


def test_newcomers_join_one_after_another():
    world = live(workers=1)
    world.feed(events.ResizeRequested(3)).all_come_up()
    assert len(world.all_of(StartJoin)) == 1

    world.joins()
    assert len(world.all_of(StartJoin)) == 2
    world.joins()

    assert seats(world) == [0, 1, 2]
    assert world.status.changes == 2


@pytest.mark.parametrize("why", ["is not reached", "dies meanwhile", "is not met in time"])
def test_instead_of_a_newcomer_that_fails_another_one_is_tried(why):
    world = live(timing=RingTiming(backoff=1.0), start_timeout=20.0)
    world.gone(world.members[2].worker).passes(1.0).all_come_up()
    newcomer = world.newcomer

    if why == "dies meanwhile":
        world.gone(newcomer).feed(events.JoinCompleted(1, newcomer))
    elif why == "is not reached":
        world.is_kept_out()
    else:
        world.passes(20.0)
        assert "did not all dial it and send their states in" in world.status.events[-1].message

    assert world.all_of(EndWorker) == ([] if why == "dies meanwhile" else [EndWorker(newcomer)])
    assert (world.phase, seats(world)) == ("running", [0, 1])
    world.those_ending_end().passes(4.0).all_come_up().joins()
    assert seats(world) == [0, 1, 2]


def test_a_resize_to_fewer_workers_ends_the_last_ones():
    world = live()

    world.feed(events.ResizeRequested(2))

    assert seats(world) == [0, 1]
    assert len(world.all_of(EndWorker)) == 1
    assert world.those_ending_end().all_done().phase == "ending"
    world.those_ending_end()
    assert world.concluded == [None]


@pytest.mark.parametrize("failure", [RAISED, Failure(reason="EXIT(3)"), DIED])
def test_a_failure_of_the_code_and_a_loss_beyond_its_least_are_the_rings(failure):
    world = live(min=3 if failure is DIED else 1)

    world.feed(events.WorkerFailed(world.members[1].worker, failure)).passes(1.0)

    assert world.all_of(UpdateMembers) == []
    assert world.those_ending_end().phase == "failed"


def test_without_the_member_that_opened_what_all_need_all_start_again():
    world = live(max_restarts=1)

    world.gone(world.members[0].worker)
    world.collected().those_ending_end()
    world.passes(2.0).all_come_up().forms()

    assert (world.phase, world.status.restarts, world.round) == ("running", 1, 2)
    assert seats(world) == [0, 1, 2]


def test_when_all_that_are_left_are_done_it_has_succeeded():
    world = live()
    first, second, third = (placement.worker for placement in world.members)
    world.feed(events.WorkerDone(first)).feed(events.WorkerDone(third))

    world.gone(second, DIED)

    assert world.those_ending_end().phase == "succeeded"


class EventOrders(RingWorld, RuleBasedStateMachine):
    @initialize(
        policy=st.fixed_dictionaries(
            {
                "workers": st.integers(1, 4),
                "max_restarts": st.integers(0, 2),
                "backoff_limit": st.integers(0, 2),
                "deadline": st.sampled_from([None, 40.0]),
                "ttl": st.sampled_from([None, 3.0]),
                "clean": st.sampled_from(Clean),
            }
        ),
        bounds=st.sampled_from([{}, {"min": 1, "max": 5}]),
        changes=st.sampled_from([{}, {"halts": True}, {"is_live": True}]),
    )
    def begin(self, policy, bounds, changes):
        timing = RingTiming(last_call=5.0)
        self.open(**policy, **bounds, **changes, start_timeout=20.0, timing=timing, heartbeat=8.0)
        self.start()

    @rule(data=st.data(), host=st.sampled_from("abc"))
    def one_comes_up(self, data, host):
        waiting = sorted(set(self.jobs) - self.up)
        if waiting:
            self.comes_up(data.draw(st.sampled_from(waiting)), host)

    @rule(data=st.data(), failure=st.sampled_from([DIED, None]))
    def one_is_gone(self, data, failure):
        if self.jobs:
            self.gone(data.draw(st.sampled_from(sorted(self.jobs))), failure)

    @rule(data=st.data())
    def one_raises(self, data):
        if self.running and self.members:
            place = data.draw(st.sampled_from(self.members))
            self.feed(events.WorkerFailed(place.worker, RAISED))

    @rule(data=st.data())
    def one_is_done(self, data):
        if self.running and self.members:
            self.feed(events.WorkerDone(data.draw(st.sampled_from(self.members)).worker))

    @rule()
    def all_send_heartbeats(self):
        for worker in list(self.jobs):
            self.feed(events.WorkerHeartbeat(worker))

    @precondition(lambda self: self.forming)
    @rule(well=st.booleans())
    def it_forms(self, well):
        if well:
            self.forms()
        else:
            self.feed(events.RendezvousFailed(self.round, Failure(reason="Unreachable")))

    @precondition(lambda self: self.newcomer is not None)
    @rule(well=st.booleans())
    def a_newcomer_is_met(self, well):
        if well:
            self.joins()
        else:
            self.is_kept_out()

    @precondition(lambda self: self.collecting)
    @rule()
    def states_arrive(self):
        self.collected()

    @precondition(lambda self: self.halting)
    @rule()
    def it_halts(self):
        self.halting = False
        self.feed(events.Halted(self.round))

    @rule()
    def those_that_are_ended_end(self):
        self.those_ending_end()

    @rule(seconds=st.sampled_from([0.0, 0.6, 3.0, 9.0]))
    def time_passes(self, seconds):
        self.passes(seconds)

    @rule(
        event=st.sampled_from(
            [
                events.SuspendRequested(),
                events.ResumeRequested(),
                events.ResumeRequested(),
                events.Tick(),
            ]
        )
    )
    def its_user_asks(self, event):
        self.feed(event)

    @precondition(lambda self: self.policy.min is not None)
    @rule(workers=st.integers(1, 5))
    def it_is_resized(self, workers):
        self.feed(events.ResizeRequested(workers))

    @rule(late=st.integers(0, 3))
    def old_news_changes_nothing(self, late):
        before = self.machine.phase
        self.feed(events.RendezvousCompleted(-1))
        self.feed(events.StateCollected(-1))
        self.feed(events.RoundEnded(-1, DIED))
        self.feed(events.WorkerEnded(-late - 1, DIED))
        assert self.machine.phase is before

    @invariant()
    def the_outcome_is_published_once(self):
        assert len(self.concluded) == self.machine.phase.is_over

    @invariant()
    def what_is_due_is_ahead(self):
        due = self.machine.next_deadline()
        assert due is None or due > self.now

    @invariant()
    def only_what_the_policy_allows_is_spent(self):
        assert self.status.restarts <= self.policy.max_restarts

    def teardown(self):
        if not hasattr(self, "machine"):
            return
        # left alone it ends, or waits for its user
        for _ in range(200):
            if self.machine.phase.is_over:
                break
            if self.machine.phase is RingPhase.SUSPENDED:
                # but for those that could not be killed within the policy's time, and were given up
                assert not set(self.jobs) - self.ending
                self.feed(events.TerminateRequested())
                continue
            self.those_ending_end()
            if self.halting:
                self.it_halts()
            # nobody comes up, nobody is heard
            self.passes(25.0)
            if self.running and self.machine.phase is RingPhase.RUNNING:
                # all are done, and stay silent
                self.all_done()
        assert self.machine.phase.is_over, self.machine.phase
        self.feed(events.TerminateRequested())
        self.halting = False
        self.those_ending_end()
        self.passes(60.0)
        assert self.forgotten == 1
        assert not set(self.jobs) - self.ending


# many orders of many events, on a busy machine too
TestEventOrders = pytest.mark.timeout(300)(EventOrders.TestCase)
