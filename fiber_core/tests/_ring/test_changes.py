"""Members that come and go while a ring runs, where those that stay go on."""

import pytest

from fiber._ring import events
from fiber._ring.events import EndWorker, StartJoin, StartRendezvous, StartWorker, UpdateMembers
from fiber._ring.model import ConditionKind, Failure
from fiber._ring.timing import RingTiming
from ring_world import DIED, RAISED, RingWorld

CUT_OFF = Failure(reason="Unreachable", message="members cannot reach it")


def live(workers=3, **policy):
    world = RingWorld()
    world.open(workers=workers, is_live=True, **{"min": 1, "max": 5, **policy})
    return world.start().runs()


def seats(world):
    return [placement.seat for placement in world.members]


def test_those_that_stay_go_on_when_one_is_lost():
    world = live()
    lost = world.members[1].worker

    world.gone(lost)

    assert world.phase == "running"
    assert world.all_of(EndWorker) == []
    assert seats(world) == [0, 2]
    assert [placement.first_rank for placement in world.members] == [0, 1]
    status = world.status
    assert (status.changes, status.restarts, status.rounds) == (1, 0, 1)
    assert status.has(ConditionKind.RUNNING)
    assert status.events[-1].reason == "MemberLost"


def test_somebody_is_started_in_its_place_and_joins_as_the_last():
    world = live(timing=RingTiming(backoff=1.0))
    world.gone(world.members[1].worker)
    assert len(world.all_of(StartWorker)) == 3

    world.passes(1.0)
    world.all_come_up()
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


def test_a_newcomer_that_is_not_reached_is_ended_and_another_one_is_tried():
    world = live(timing=RingTiming(backoff=1.0))
    world.gone(world.members[2].worker).passes(1.0).all_come_up()
    newcomer = world.newcomer

    world.is_kept_out(CUT_OFF)

    assert world.all_of(EndWorker) == [EndWorker(newcomer)]
    assert world.phase == "running"
    assert seats(world) == [0, 1]
    world.those_ending_end().passes(4.0).all_come_up().joins()
    assert seats(world) == [0, 1, 2]


def test_a_newcomer_that_dies_meanwhile_is_forgotten():
    world = live(timing=RingTiming(backoff=1.0))
    world.gone(world.members[2].worker).passes(1.0).all_come_up()
    newcomer = world.newcomer

    world.gone(newcomer).feed(events.JoinCompleted(1, newcomer))

    assert seats(world) == [0, 1]
    assert world.phase == "running"


def test_a_resize_to_fewer_workers_ends_the_last_ones():
    world = live()

    world.feed(events.ResizeRequested(2))

    assert seats(world) == [0, 1]
    assert len(world.all_of(EndWorker)) == 1
    assert world.those_ending_end().all_done().phase == "ending"
    world.those_ending_end()
    assert world.concluded == [None]


def test_a_silent_member_is_lost():
    world = live(heartbeat=10.0)
    others = [placement.worker for placement in world.members[:2]]

    world.passes(9.0)
    for worker in others:
        world.feed(events.WorkerHeartbeat(worker))
    world.passes(2.0)

    assert seats(world) == [0, 1]
    assert world.phase == "running"


@pytest.mark.parametrize("failure", [RAISED, Failure(reason="EXIT(3)")])
def test_a_failure_of_the_code_itself_is_the_rings(failure):
    world = live()

    world.feed(events.WorkerFailed(world.members[1].worker, failure))
    world.passes(1.0)

    assert world.all_of(UpdateMembers) == []
    assert world.those_ending_end().phase == "failed"


def test_it_does_not_go_on_with_fewer_than_its_least():
    world = live(min=3)

    world.gone(world.members[1].worker)

    assert world.those_ending_end().phase == "failed"


def test_without_the_member_that_opened_what_all_need_all_start_again():
    world = live(max_restarts=1)

    world.gone(world.members[0].worker)
    world.collected().those_ending_end()
    world.passes(2.0).all_come_up().forms()

    assert (world.phase, world.status.restarts, world.round) == ("running", 1, 2)
    assert seats(world) == [0, 1, 2]


def test_a_ring_that_is_not_live_starts_all_again():
    world = RingWorld()
    world.open(workers=3, min=1, max=3)
    world.start().runs()

    world.feed(events.ResizeRequested(2)).collected()

    assert world.all_of(UpdateMembers) == []
    assert len(world.all_of(EndWorker)) == 3


def test_when_all_that_are_left_are_done_it_has_succeeded():
    world = live()
    first, second, third = (placement.worker for placement in world.members)
    world.feed(events.WorkerDone(first)).feed(events.WorkerDone(third))

    world.gone(second, DIED)

    assert world.those_ending_end().phase == "succeeded"
