"""The state machine of a ring: its reaction to each event."""

import pytest

from fiber._ring import events
from fiber._ring.events import CollectState, EndWorker, StartRendezvous, StartRun, StartWorker
from fiber._ring.model import ConditionKind, Failure, Group
from fiber._ring.timing import RingTiming
from ring_world import DIED, RAISED, RingWorld


def ring(*groups, **policy):
    world = RingWorld()
    world.open(*groups, **policy)
    return world.start()


def test_all_workers_are_started_at_once():
    assert [one.seat for one in ring(workers=3).all_of(StartWorker)] == [0, 1, 2]


def test_user_code_begins_once_all_are_up_and_know_each_other():
    world = ring(workers=2).all_come_up()
    assert world.phase == "forming"
    assert world.all_of(StartRun) == []

    world.forms()

    assert world.all_of(StartRun) == [StartRun(1)]
    assert world.status.has(ConditionKind.RUNNING)


def test_ranks_are_contiguous_on_each_host():
    world = ring(workers=4, slots=2)
    for worker, host in zip(list(world.jobs), "abab", strict=True):
        world.comes_up(worker, host)

    places = [(p.seat, list(p.ranks), p.local_rank, p.local_size, p.node) for p in world.members]

    assert places == [
        (0, [0, 1], 0, 4, 0),
        (2, [2, 3], 2, 4, 0),
        (1, [4, 5], 0, 4, 1),
        (3, [6, 7], 2, 4, 1),
    ]


def test_groups_may_differ():
    world = ring(Group(workers=2, slots=2), Group(workers=1)).all_come_up()

    assert [len(placement.ranks) for placement in world.members] == [2, 2, 1]


def test_it_has_succeeded_when_all_are_done_and_gone():
    world = ring(workers=2).runs().all_done()
    assert world.phase == "ending"

    world.those_ending_end()

    assert world.phase == "succeeded"
    assert world.concluded == [None]
    assert world.forgotten == 1


def test_one_death_ends_the_others_at_once():
    world = ring(workers=3).runs()

    world.gone(2)

    assert {one.worker for one in world.all_of(EndWorker)} == {1, 3}
    world.those_ending_end()
    assert world.phase == "failed"
    assert world.concluded[0].worker == 2
    assert world.concluded[0].reason == "SIGNAL(9)"


def test_a_death_is_the_cause_of_what_other_members_raise():
    world = ring(workers=3).runs()

    world.feed(events.WorkerFailed(1, RAISED))
    assert world.all_of(EndWorker) == []
    world.gone(2).passes(1).those_ending_end()

    assert world.concluded[0].worker == 2


def test_a_rank_that_raises_and_exits_fails_with_its_exception():
    world = ring(workers=2).runs()

    world.feed(events.WorkerFailed(1, RAISED)).gone(1, Failure(reason="EXIT(1)")).passes(1)

    world.those_ending_end()
    assert world.concluded[0].reason == "raised"


def test_words_of_members_that_come_early_late_or_twice_change_nothing():
    world = ring(workers=2).all_come_up()
    world.feed(events.WorkerDone(1)).feed(events.WorkerDone(9))
    assert world.phase == "forming"

    world.forms().feed(events.WorkerFailed(1, RAISED)).feed(events.WorkerFailed(1, DIED))

    world.passes(1).those_ending_end()
    assert world.concluded[0].reason == "raised"


def test_a_worker_that_ends_before_its_function_returned_is_a_failure():
    world = ring(workers=2).runs().gone(1, None).those_ending_end()

    assert world.concluded[0].reason == "EXIT(0)"


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


def test_a_refused_worker_fails_the_start_with_its_own_words():
    world = ring(workers=2).comes_up(1)
    world.gone(2, Failure(reason="IMAGE", message="no such image")).those_ending_end()

    assert world.concluded[0].reason == "IMAGE"


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


def test_members_that_cannot_reach_each_other_fail_the_start():
    world = ring(workers=2).all_come_up()

    world.feed(events.RendezvousFailed(1, Failure(reason="Unreachable", message="a to b"))).passes(
        0
    )

    world.those_ending_end()
    assert world.concluded[0].reason == "Unreachable"
    assert world.all_of(StartRun) == []


# -- restarts


def test_all_ranks_are_started_again_together():
    world = ring(workers=2, max_restarts=1).runs().gone(1)

    assert world.all_of(CollectState) == [CollectState(1, (2,))]
    world.collected().those_ending_end()
    assert world.status.restarts == 1
    assert world.status.has(ConditionKind.RESTARTING)
    world.runs()
    assert world.all_of(StartRendezvous)[-1].restarts == 1
    assert world.status.has(ConditionKind.RUNNING)
    assert not world.status.has(ConditionKind.RESTARTING)


def test_after_the_last_restart_it_has_failed():
    world = ring(workers=1, max_restarts=2)
    for _ in range(3):
        world.runs().gone(max(world.jobs))

    assert world.phase == "failed"
    assert world.status.restarts == 2


def test_survivors_that_send_no_state_are_awaited_until_the_timeout():
    world = ring(workers=2, max_restarts=1, timing=RingTiming(collect=10.0)).runs().gone(1)

    world.passes(9.9)
    assert world.ending == set()
    world.passes(0.1)
    assert world.ending == {2}


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


def test_an_elastic_ring_goes_on_with_those_that_came():
    world = ring(workers=3, min=1, timing=RingTiming(last_call=5.0)).comes_up(1).comes_up(2)
    assert world.all_of(StartRendezvous) == []

    world.passes(5)

    assert len(world.members) == 2


def test_a_later_worker_gets_a_rank_and_costs_no_restart():
    world = (
        ring(workers=3, min=1, timing=RingTiming(last_call=5.0))
        .comes_up(1)
        .comes_up(2)
        .passes(5)
        .forms()
    )

    world.comes_up(3).collected().those_ending_end().runs()

    assert len(world.members) == 3
    assert world.status.restarts == 0


def test_it_is_resized_by_its_user():
    world = ring(workers=3, min=1, max=3).runs()

    world.feed(events.ResizeRequested(2)).collected().those_ending_end().runs()
    assert len(world.members) == 2
    world.feed(events.ResizeRequested(3)).all_come_up().collected().those_ending_end().runs()
    assert len(world.members) == 3
    assert world.status.restarts == 0


def test_it_is_not_resized_beyond_its_bounds():
    with pytest.raises(ValueError, match="min=1 and max=3 cannot have 4"):
        ring(workers=3, min=1, max=3).feed(events.ResizeRequested(4))


@pytest.mark.parametrize("bounds", [{"min": 4}, {"max": 2}])
def test_bounds_that_do_not_fit_are_refused(bounds):
    with pytest.raises(ValueError, match="do not fit 3"):
        ring(workers=3, **bounds)


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


def test_the_deadline_holds_for_the_whole_ring():
    world = ring(workers=1, deadline=100.0, max_restarts=9, heartbeat=1000.0).runs()
    world.passes(60).gone(1).runs().passes(40).those_ending_end()

    assert world.concluded[0].reason == "DeadlineExceeded"


def test_the_deadline_begins_anew_when_it_is_resumed():
    world = ring(workers=1, deadline=10.0).runs().passes(9)
    world.feed(events.SuspendRequested()).collected().those_ending_end().passes(50)
    world.feed(events.ResumeRequested()).runs().passes(9)

    assert world.phase == "running"


def test_workers_stay_as_they_are_where_nothing_is_to_be_cleaned():
    from fiber._ring.policy import Clean

    world = ring(workers=2, clean=Clean.NONE, ttl=50.0).runs().gone(1)

    assert world.phase == "failed"
    assert world.ending == set()
    world.passes(50)
    assert world.ending == {2}
    world.those_ending_end()
    assert world.forgotten == 1


def test_what_is_known_stays_until_its_time_to_live_is_over():
    world = ring(workers=1, ttl=5.0).runs().all_done().those_ending_end()

    assert (world.phase, world.forgotten) == ("succeeded", 0)
    world.passes(5)
    assert world.forgotten == 1


def test_a_ring_that_is_over_never_starts_again():
    world = ring(workers=1, max_restarts=5).runs().all_done().those_ending_end()

    world.feed(events.ResumeRequested()).feed(events.SuspendRequested()).passes(1000)

    assert world.phase == "succeeded"
    assert len(world.all_of(StartWorker)) == 1


@pytest.mark.parametrize("moment", ["starting", "forming", "running", "settling", "suspended"])
def test_it_can_be_terminated_at_any_time(moment):
    world = ring(workers=2, max_restarts=1)
    if moment != "starting":
        world.all_come_up()
    if moment in ("running", "settling", "suspended"):
        world.forms()
    if moment == "settling":
        world.gone(1)
    if moment == "suspended":
        world.feed(events.SuspendRequested()).collected().those_ending_end()
    assert world.phase == moment

    world.feed(events.TerminateRequested()).those_ending_end()

    assert world.phase == "failed"
    assert world.concluded[0].reason == "Terminated"


def test_conditions_have_reason_and_time():
    world = ring(workers=1, max_restarts=1).passes(2).runs().passes(3).gone(1, DIED).runs()
    world.all_done().those_ending_end()

    found = [(c.kind.value, c.is_true, c.reason, c.time) for c in world.status.conditions]

    assert found == [
        ("Created", True, "RingCreated", 0.0),
        ("Restarting", False, "RingRunning", 5.0),
        ("Running", False, "RingSucceeded", 5.0),
        ("Succeeded", True, "RingSucceeded", 5.0),
    ]
