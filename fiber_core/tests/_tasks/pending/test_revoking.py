"""Work that waits behind a slow unit, and the idle workers it is asked back for."""

from __future__ import annotations

import pytest

from fiber._tasks.pending import (
    Abandon,
    Accept,
    CallAdded,
    CallDone,
    CallDropped,
    Dispatch,
    Requeue,
    Retire,
    Revoke,
    RevokeAnswered,
    WorkerDraining,
)
from fiber.exceptions import WireError


@pytest.fixture
def stuck(play):
    """Worker a holds items 2 to 11 and reports nothing; b is idle."""
    play.join("a", maxtasksperchild=20)
    play.join("b")
    play(CallAdded(1, 38))
    play.turn("a", seconds=1e-6)
    assert play.spans("a") == [(2, 11)]
    while play.spans("b"):
        play.turn("b", seconds=1e-6)
    return play


def asked_back(play):
    return [done for done in play.wait(0.05) if isinstance(done, Revoke)]


def test_the_table_says_when_it_must_look_again(stuck):
    assert stuck.table.next_deadline() == pytest.approx(stuck.now + 0.05)
    assert stuck.wait(0.049) == []
    (revoke,) = asked_back(stuck)
    assert revoke == Revoke("a", stuck.entry("a").entry)
    assert stuck.table.next_deadline() == pytest.approx(stuck.now + 0.1)
    assert stuck.wait(0.09) == []


def test_nothing_is_asked_back_while_work_is_queued(play):
    play.join("a", slots=2)
    play(CallAdded(1, 10_000))
    play.turn("a")
    assert play.table.next_deadline() is None
    assert play.wait(5.0) == []


def test_a_worker_that_makes_progress_is_left_alone(stuck):
    for _ in range(4):
        assert stuck.wait(0.04) == []
        stuck.finish("a", units=1, seconds=0.04)


def test_what_is_handed_back_goes_to_the_idle_worker_as_a_batch(stuck):
    (revoke,) = asked_back(stuck)
    out = stuck(RevokeAnswered("a", revoke.entry, 3))
    assert out == [Dispatch("b", stuck.entry("b").entry, 1, 3, 5, 1)]
    assert not stuck.table.held("b")[0].is_suspect
    assert stuck.spans("a") == [(2, 3)]


def test_a_worker_that_keeps_everything_is_not_asked_twice(stuck):
    (revoke,) = asked_back(stuck)
    assert stuck(RevokeAnswered("a", revoke.entry, 11)) == []
    assert stuck.wait(5.0) == []


def test_a_unit_whose_entry_was_cut_is_alone_when_its_worker_dies(stuck):
    (revoke,) = asked_back(stuck)
    stuck(RevokeAnswered("a", revoke.entry, 3))
    assert stuck.kill("a") == [Requeue(1, 2, 3)]


def test_units_handed_back_count_as_left_again(stuck):
    assert stuck.table.snapshot().workers[0].units_left == 10
    (revoke,) = asked_back(stuck)
    stuck(RevokeAnswered("a", revoke.entry, 3))
    assert stuck.table.snapshot().workers[0].units_left == 18


def test_without_an_answer_the_work_is_duplicated_and_the_first_result_wins(stuck):
    asked_back(stuck)
    (sent,) = stuck.wait(0.1)
    assert (sent.worker, sent.start) == ("b", 3)
    copy = stuck.spans("b")[0]
    assert stuck.finish("b", seconds=0.0)[0] == Accept(1, *copy)
    late = stuck.finish("a", seconds=0.0)
    assert [done for done in late if isinstance(done, Accept)] == [
        Accept(1, 2, 3),
        Accept(1, copy[1], 11),
    ]
    assert late[-1] == CallDone(1)
    assert stuck.table.queued == 0


def test_the_loss_of_the_copy_requeues_nothing_that_the_other_still_holds(stuck):
    asked_back(stuck)
    stuck.wait(0.1)
    assert stuck.kill("b") == []
    out = stuck.kill("a")
    items = sorted(item for done in out for item in range(done.start, done.stop))
    assert items == list(range(2, 11))
    stuck.join("c", slots=2)
    assert stuck.table.held("c")[0].is_suspect


def test_what_the_lost_copy_may_have_begun_travels_alone_when_it_is_handed_back(stuck):
    (revoke,) = asked_back(stuck)
    stuck.wait(0.1)
    copy = stuck.spans("b")[0]
    stuck.kill("b")
    stuck(RevokeAnswered("a", revoke.entry, 3))
    stuck.join("c", slots=2)
    for item in range(*copy):
        assert stuck.spans("c") == [(item, item + 1)]
        assert stuck.table.held("c")[0].is_suspect
        stuck.turn("c")
    assert not stuck.table.held("c")[0].is_suspect


def test_the_loss_of_the_stuck_worker_leaves_the_copy_running(stuck):
    asked_back(stuck)
    stuck.wait(0.1)
    start, stop = stuck.spans("b")[0]
    lost = [
        item
        for done in stuck.kill("a")
        if isinstance(done, Requeue)
        for item in range(done.start, done.stop)
    ]
    assert lost == [2, *range(stop, 11)]
    assert stuck.table.queued == len(lost)
    assert stuck.finish("b")[0] == Accept(1, start, stop)


def test_a_late_answer_queues_nothing_twice(stuck):
    (revoke,) = asked_back(stuck)
    stuck.wait(0.1)
    held = stuck.spans("b")[0]
    queued = stuck.table.queued
    assert stuck(RevokeAnswered("a", revoke.entry, 3)) == []
    assert stuck.table.queued == queued == 11 - held[1]


def test_results_that_come_after_all_take_the_copies_out_of_the_queue(stuck):
    asked_back(stuck)
    stuck.wait(0.1)
    copy = stuck.spans("b")[0]
    assert stuck.table.queued == 11 - copy[1]
    assert stuck.finish("a", units=5)[-1] == Accept(1, 2, 7)
    assert stuck.table.queued == 4
    assert stuck.finish("b") == []


def test_a_call_that_is_dropped_meanwhile_is_not_queued_again(stuck):
    asked_back(stuck)
    stuck(CallDropped(1))
    assert stuck.wait(0.1) == []
    assert stuck.table.queued == 0


def test_at_most_once_is_never_asked_back(play):
    play.join("a", "b", slots=2)
    play(CallAdded(1, 1, retry=False))
    assert play.wait(60.0) == []
    assert play.table.next_deadline() is None


@pytest.mark.parametrize("kept", [1, 12])
def test_an_answer_that_makes_no_sense_is_refused(stuck, kept):
    (revoke,) = asked_back(stuck)
    with pytest.raises(WireError, match="worker a keeps"):
        stuck(RevokeAnswered("a", revoke.entry, kept))


def test_an_answer_to_no_question_is_refused(stuck):
    with pytest.raises(WireError, match="the revoke is no"):
        stuck(RevokeAnswered("a", stuck.entry("a").entry, 3))


def test_an_answer_that_comes_after_the_end_changes_nothing(stuck):
    (revoke,) = asked_back(stuck)
    out = stuck.finish("a")
    assert out[-1] == CallDone(1)
    assert not any(isinstance(done, Abandon) for done in out)
    assert stuck(RevokeAnswered("a", revoke.entry, 3)) == []


# Workers whose place is taken away.


def test_one_that_has_to_go_is_asked_for_all_that_it_has_not_begun(play):
    play.join("a", slots=2)
    play(CallAdded(1, 1000))
    play.turn("a", seconds=1e-5)
    held = play.table.held("a")
    assert len(held) == 2
    assert play(WorkerDraining("a", hand_back=True)) == [Revoke("a", one.entry) for one in held]


def test_what_it_gives_back_goes_to_others_at_once_and_it_exits_after_its_last_unit(stuck):
    (revoke,) = stuck(WorkerDraining("a", hand_back=True))
    assert revoke == Revoke("a", stuck.entry("a").entry)
    (sent,) = stuck(RevokeAnswered("a", revoke.entry, 3))
    assert (sent.worker, sent.start) == ("b", 3)
    assert stuck.finish("a") == [Accept(1, 2, 3), Retire("a")]


def test_one_that_had_begun_nothing_exits_when_it_has_given_all_back(stuck):
    (revoke,) = stuck(WorkerDraining("a", hand_back=True))
    assert Retire("a") in stuck(RevokeAnswered("a", revoke.entry, 2))


def test_a_worker_with_one_unit_is_not_revoked(play):
    play.join("a", "b")
    play(CallAdded(1, 1))
    assert play(WorkerDraining("b", hand_back=True)) == []
    assert play.finish("b") == [Accept(1, 0, 1), CallDone(1), Retire("b")]


def test_an_entry_is_revoked_once(stuck):
    asked_back(stuck)
    assert stuck(WorkerDraining("a", hand_back=True)) == []


def test_one_that_is_lost_before_it_answered_loses_no_task(stuck):
    stuck(WorkerDraining("a", hand_back=True))
    out = stuck.kill("a", counts=False)
    items = sorted(
        n for done in out if isinstance(done, Requeue) for n in range(done.start, done.stop)
    )
    assert items == list(range(2, 11))


def test_what_it_holds_of_a_call_that_is_over_is_not_run_by_others(stuck):
    stuck(CallDropped(1))
    (revoke,) = stuck(WorkerDraining("a", hand_back=True))
    assert stuck(RevokeAnswered("a", revoke.entry, 3)) == []
    assert stuck.finish("a") == [Retire("a")]
