"""The state machine of a ring: its reaction to each event."""

import pytest

from fiber._ring import events
from fiber._ring.events import (
    CollectState,
    EndWorker,
    StartJoin,
    StartRendezvous,
    StartRun,
    StartWorker,
    UpdateMembers,
)
from fiber._ring.model import ConditionKind, Failure
from fiber._ring.timing import RingTiming
from ring_world import DIED, RAISED, RingWorld


def ring(**policy):
    world = RingWorld()
    world.open(**policy)
    return world.start()


def test_user_code_begins_once_all_are_up_and_know_each_other():
    world = ring(workers=2).all_come_up()
    assert world.phase == "forming"
    assert world.all_of(StartRun) == []

    world.forms()

    assert world.all_of(StartRun) == [StartRun(1)]
    assert world.status.has(ConditionKind.RUNNING)


def test_it_has_succeeded_when_all_are_done_and_gone():
    world = ring(workers=2).runs().all_done()
    assert world.phase == "ending"

    world.those_ending_end()

    assert world.phase == "succeeded"
    assert world.concluded == [None]
    assert world.forgotten == 1


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


def test_no_worker_is_lost_because_the_controller_slept():
    world = ring(workers=2, heartbeat=5.0).runs()
    world.now += 3600

    world.feed(events.ControllerPaused()).passes(4.9)
    assert world.phase == "running"

    world.passes(0.2)
    assert world.status.failure.reason == "LEASE"


def test_workers_that_do_not_end_when_asked_are_killed_again_and_again_and_given_up():
    world = ring(workers=1, timing=RingTiming(grace=2.0, end=9.0)).runs().all_done()

    world.passes(20)

    assert [one.force for one in world.all_of(EndWorker)] == [False, True, True, True, True]
    assert world.phase == "succeeded"


# -- gang start


def test_none_runs_where_not_all_come_up_in_time():
    world = ring(workers=3, start_timeout=10.0)
    world.comes_up(1).comes_up(3).passes(10)

    assert world.all_of(StartRendezvous) == []
    assert world.ending == {1, 2, 3}
    world.those_ending_end()
    assert world.concluded[0].reason == "StartTimeout"
    assert "2 of 3 members came up within 10 s" in world.concluded[0].message
    assert "missing: 1" in world.concluded[0].message


def test_the_platforms_message_for_pending_workers_stands_once():
    world = ring(workers=3, start_timeout=10.0)
    world.comes_up(1)
    for _ in range(2):
        world.waits(2, "Insufficient cpu").waits(3, "Insufficient cpu")
    world.passes(10).those_ending_end()

    assert "missing: 1, 2 (Insufficient cpu)" in world.concluded[0].message
    found = [one.message for one in world.machine.status().events if one.reason == "MemberWaits"]
    assert found == ["member 1: Insufficient cpu", "member 2: Insufficient cpu"]


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


# -- restarts


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


def test_workers_that_are_kept_run_again_without_being_started():
    world = ring(workers=2, max_restarts=1, keeps_workers=True).runs()
    world.feed(events.RoundEnded(1, Failure(reason="EXIT(3)"))).collected()
    assert world.halting

    world.feed(events.Halted(1))

    assert world.phase == "forming"
    assert [one.worker for one in world.all_of(StartWorker)] == [1, 2]
    world.forms().feed(events.RoundEnded(2)).feed(events.Halted(2)).those_ending_end()
    assert world.concluded == [None]


# -- elastic


def test_an_elastic_ring_goes_on_with_those_that_came_and_a_later_one_costs_no_restart():
    timing = RingTiming(last_call=5.0)
    world = ring(workers=3, min=1, timing=timing).comes_up(1).comes_up(2)
    assert world.all_of(StartRendezvous) == []

    world.passes(5)
    assert len(world.members) == 2
    world.forms().comes_up(3).collected().those_ending_end().runs()

    assert len(world.members) == 3
    assert world.status.restarts == 0


@pytest.mark.parametrize("bounds", [{"min": 4}, {"max": 2}])
def test_bounds_that_do_not_fit_are_refused(bounds):
    with pytest.raises(ValueError, match="do not fit 3"):
        ring(workers=3, **bounds)


def test_it_is_not_resized_beyond_its_bounds():
    with pytest.raises(ValueError, match="min=1 and max=3 cannot have 4"):
        ring(workers=3, min=1, max=3).feed(events.ResizeRequested(4))


# -- suspended, ended, forgotten


def test_a_suspended_ring_has_no_workers_until_it_is_resumed():
    world = ring(workers=2).runs().feed(events.SuspendRequested()).collected().those_ending_end()

    assert world.phase == "suspended"
    assert world.jobs == {}
    assert world.machine.next_deadline() is None
    world.feed(events.ResumeRequested()).runs()
    assert world.phase == "running"
    assert not world.status.has(ConditionKind.SUSPENDED)
    assert world.status.restarts == 0


def test_the_deadline_holds_for_the_whole_ring_and_begins_anew_when_it_is_resumed():
    world = ring(workers=1, deadline=100.0, max_restarts=9, heartbeat=1000.0).runs().passes(90)
    world.feed(events.SuspendRequested()).collected().those_ending_end().passes(500)
    world.feed(events.ResumeRequested()).runs().passes(60).gone(2).runs().passes(39.9)
    assert world.phase == "running"

    world.passes(0.1).those_ending_end()

    assert world.concluded[0].reason == "DeadlineExceeded"


def test_what_is_known_stays_until_its_time_to_live_is_over():
    world = ring(workers=1, ttl=5.0).runs().all_done().those_ending_end()

    assert (world.phase, world.forgotten) == ("succeeded", 0)
    world.passes(5)
    assert world.forgotten == 1


def test_conditions_have_reason_and_time():
    world = ring(workers=1, max_restarts=1).passes(2).runs()
    true_in = []

    def conditions():
        true_in.append([one.kind.value for one in world.status.conditions if one.is_true])
        return [(c.kind.value, c.is_true, c.reason, c.time) for c in world.status.conditions]

    conditions()
    world.feed(events.SuspendRequested()).collected().those_ending_end()
    conditions()
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


CUT_OFF = Failure(reason="Unreachable", message="members cannot reach it")


def live(workers=3, **policy):
    world = RingWorld()
    world.open(workers=workers, is_live=True, **{"min": 1, "max": 5, **policy})
    return world.start().runs()


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


@pytest.mark.parametrize("dies", [False, True], ids=["is not reached", "dies meanwhile"])
def test_instead_of_a_newcomer_that_fails_another_one_is_tried(dies):
    world = live(timing=RingTiming(backoff=1.0))
    world.gone(world.members[2].worker).passes(1.0).all_come_up()
    newcomer = world.newcomer

    if dies:
        world.gone(newcomer).feed(events.JoinCompleted(1, newcomer))
    else:
        world.is_kept_out(CUT_OFF)

    assert world.all_of(EndWorker) == ([] if dies else [EndWorker(newcomer)])
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
