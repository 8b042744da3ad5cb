"""Assignment of units to workers."""

from __future__ import annotations

from fiber._tasks.pending import (
    CallAdded,
    CallDropped,
    Dispatch,
    ItemsAdded,
    SizeObserved,
    WorkerAsked,
    WorkerJoined,
)


def test_work_waits_until_a_worker_asks(play):
    assert play(CallAdded(1, 10)) == []
    assert play(WorkerJoined("a")) == []
    assert play(WorkerAsked("a")) == [Dispatch("a", 1, 1, 0, 1, 1)]


def test_a_worker_waits_until_there_is_work(play):
    assert play.join("a") == []
    assert play.table.idle == 1
    assert play(CallAdded(1, 10)) == [Dispatch("a", 1, 1, 0, 1, 1)]


def test_before_anything_was_measured_each_worker_gets_one_unit(play):
    play.join("a", "b", "c", slots=2)
    play(CallAdded(1, 1000))
    assert [(sent.worker, sent.stop - sent.start) for sent in play.sent] == [
        ("c", 1),
        ("b", 1),
        ("a", 1),
    ]


def test_measured_work_comes_in_batches_with_a_second_one_behind(play):
    play.join("a", slots=2)
    play(CallAdded(1, 10_000))
    play.finish("a", seconds=1e-4)
    play(WorkerAsked("a"))
    assert play.spans("a") == [(1, 16), (16, 31)]


def test_behind_a_slow_unit_nothing_waits(play):
    play.join("a", slots=2)
    play(CallAdded(1, 10_000))
    play.finish("a", seconds=0.2)
    play(WorkerAsked("a"))
    assert play.spans("a") == [(1, 2)]


def test_units_of_middling_length_wait_behind_one_another_until_the_end_is_near(play):
    play.join("a", slots=2)
    play(CallAdded(1, 5))
    held = []
    for _ in range(4):
        play.finish("a", seconds=0.02)
        play(WorkerAsked("a"))
        held.append(play.spans("a"))
    # of the last two each waits for a worker that is free
    assert held == [[(1, 2), (2, 3)], [(2, 3), (3, 4)], [(3, 4)], [(4, 5)]]


def test_a_chunk_stays_together_and_the_last_may_be_short(play):
    play.join("a", slots=2)
    play(CallAdded(1, 10, 4))
    assert play.spans("a") == [(0, 4)]
    play.finish("a", seconds=1.0)
    play(WorkerAsked("a"))
    play.finish("a", seconds=1.0)
    play(WorkerAsked("a"))
    assert play.spans("a") == [(8, 10)]
    assert play.entry("a").chunk == 4


def test_the_last_units_spread_evenly(play):
    play.join("a", "b")
    play(CallAdded(1, 42))
    play.finish("a", seconds=0.0)
    play(WorkerAsked("a"))
    assert play.spans("a") == [(2, 12)]


def test_large_arguments_make_small_batches(play):
    play.join("a")
    play(CallAdded(1, 10_000))
    play(SizeObserved(1, 2.0**19))
    play.finish("a", seconds=1e-6)
    play(WorkerAsked("a"))
    assert play.spans("a") == [(1, 3)]


def test_an_apply_gets_in_during_a_huge_map(play):
    play.join("a", "b", slots=2)
    play(CallAdded(1, 10**6))
    for _ in range(3):
        for worker in ("a", "b"):
            play.finish(worker)
            play(WorkerAsked(worker))
    play(CallAdded(2, 1))
    steps = 0
    while not any(sent.call == 2 for sent in play.sent):
        play.finish("a")
        play(WorkerAsked("a"))
        steps += 1
    assert steps == 3  # the turn of the map, then what the worker held


def test_calls_take_turns(play):
    for call in (1, 2, 3):
        play(CallAdded(call, 100))
    play.join("a")
    for _ in range(5):
        play.finish("a", seconds=0.1)
        play(WorkerAsked("a"))
    assert [sent.call for sent in play.sent] == [1, 2, 3, 1, 2, 3]


def test_calls_of_one_kind_share_what_was_measured(play):
    play.join("a", slots=2)
    play(CallAdded(1, 1, kind="f"))
    play.finish("a", seconds=1e-4)
    play(WorkerAsked("a"))
    play(CallAdded(2, 1000, kind="f"))
    play(CallAdded(3, 1000, kind="g"))
    assert play.spans("a") == [(0, 15), (15, 30)]


def test_a_growing_call_is_served_as_it_grows(play):
    play.join("a")
    play(CallAdded(1, 0, closed=False))
    assert play(ItemsAdded(1, 1))[0] == Dispatch("a", 1, 1, 0, 1, 1)
    play.finish("a")
    play(WorkerAsked("a"))
    assert play(ItemsAdded(1, 2, closed=True))[0] == Dispatch("a", 2, 1, 1, 2, 1)


def test_a_dropped_call_gives_its_turn_away(play):
    play(CallAdded(1, 100))
    play(CallAdded(2, 100))
    play(CallDropped(1))
    assert play.table.queued == 100
    play.join("a")
    assert play.entry("a").call == 2
