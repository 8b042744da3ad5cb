"""Work that waits behind a slow unit, and the idle workers it is asked back for."""

from __future__ import annotations

import pytest

from fiber._tasks.pending import (
    Abandon,
    Accept,
    CallAdded,
    CallDone,
    Dispatch,
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


@pytest.mark.parametrize("kept, is_asked", [(1, True), (12, True), (3, False)])
def test_an_answer_that_makes_no_sense_is_refused(stuck, kept, is_asked):
    if is_asked:
        asked_back(stuck)
    with pytest.raises(WireError, match="worker a keeps"):
        stuck(RevokeAnswered("a", stuck.entry("a").entry, kept))


def test_an_answer_that_comes_after_the_end_changes_nothing(stuck):
    (revoke,) = asked_back(stuck)
    out = stuck.finish("a")
    assert out[-1] == CallDone(1)
    assert not any(isinstance(done, Abandon) for done in out)
    assert stuck(RevokeAnswered("a", revoke.entry, 3)) == []


# Workers whose place is taken away.


def test_what_it_gives_back_goes_to_others_at_once_and_it_exits_after_its_last_unit(stuck):
    (revoke,) = stuck(WorkerDraining("a", hand_back=True))
    assert revoke == Revoke("a", stuck.entry("a").entry)
    (sent,) = stuck(RevokeAnswered("a", revoke.entry, 3))
    assert (sent.worker, sent.start) == ("b", 3)
    assert stuck.finish("a") == [Accept(1, 2, 3), Retire("a")]


def test_one_that_had_begun_nothing_exits_when_it_has_given_all_back(stuck):
    (revoke,) = stuck(WorkerDraining("a", hand_back=True))
    assert Retire("a") in stuck(RevokeAnswered("a", revoke.entry, 2))
