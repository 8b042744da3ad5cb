"""A lane of tasks at its owner: what is unfinished, and what comes back from whom."""

from collections import deque

import pytest

from fiber._objects.queue.messages import Laden
from fiber._objects.queue.requests import Drop, Give, Offer, Request
from fiber._objects.queue.tasks import TaskLane
from fiber.exceptions import WireError


def filled(*items, maxsize=0):
    lane = TaskLane(maxsize=maxsize)
    for item in items:
        assert lane.put_now(item)
    return lane


def give(lane, reader, count, settled=0):
    return [
        item
        for one in lane.ask(Request(reader, want=count), settled)
        if isinstance(one, Give)
        for item in one.items
    ]


def rest(lane):
    return list(iter(lane.take_now, None))


def laden(text):
    return Laden.of([("owner", ("url",), 1, 2)], text)


# -- the count


def test_what_comes_in_by_any_way_is_unfinished():
    lane = filled(b"1")
    lane.offer(Offer("writer", deque([b"2", b"3"])))

    assert lane.unfinished == 3


def test_what_waits_for_room_is_not_in_yet():
    lane = filled(b"1", maxsize=1)
    lane.offer(Offer("writer", deque([b"2"])))

    assert lane.unfinished == 1


def test_no_more_can_be_finished_than_came_in():
    lane = filled(b"1")

    assert lane.finish(None) == []
    assert lane.finish(None) is None


def test_handing_out_finishes_nothing():
    lane = filled(b"1", b"2")
    lane.take_now()
    give(lane, "a", 1)
    lane.settle("a", 1)

    assert (lane.unfinished, lane.size) == (2, 0)


# -- readers that are lost


def test_the_tasks_of_the_dead_come_back_in_front_and_in_order():
    lane = filled(b"1", b"2", b"3", b"4")
    assert give(lane, "a", 3) == [b"1", b"2", b"3"]
    lane.settle("a", 2)

    lane.die("a")
    lane.lose("a")

    assert lane.unfinished == 4
    assert rest(lane) == [b"1", b"2", b"3", b"4"]


def test_what_the_dead_had_finished_stays_finished():
    lane = filled(b"1", b"2", b"3")
    give(lane, "a", 3)
    lane.finish_all("a", 2, 1)

    lane.die("a")
    lane.lose("a")

    assert lane.unfinished == 2
    assert rest(lane) == [b"2", b"3"]


def test_their_own_account_counts_where_it_can_be_seen():
    lane = TaskLane()
    lane.open("a", lambda: (3, 0, 0))
    lane.watch("a", lambda: 2)
    for item in (b"1", b"2", b"3", b"4"):
        lane.put_now(item)
    give(lane, "a", 4)
    lane.finish_all("a", 1, 1)

    lane.die("a")
    lane.lose("a")

    assert lane.unfinished == 2
    assert rest(lane) == [b"3", b"4"]


def test_an_account_that_makes_no_sense_finishes_no_more_than_was_given():
    lane = TaskLane()
    lane.open("a", lambda: (9, 0, 0))
    lane.watch("a", lambda: 2**64 - 1)
    lane.put_now(b"1")
    lane.put_now(b"2")
    give(lane, "a", 1)

    lane.die("a")
    lane.lose("a")

    assert lane.unfinished == 1
    assert rest(lane) == [b"2"]


def test_tasks_of_a_reader_that_ends_stay_unfinished_and_are_not_given_again():
    lane = filled(b"1", b"2")
    give(lane, "a", 1)
    lane.settle("a", 1)
    lane.end("a")

    lane.die("a")
    lane.lose("a")

    assert lane.unfinished == 2
    assert rest(lane) == [b"2"]
    assert lane.finish("b") == []


def test_a_reader_that_was_never_there_is_lost_without_effect():
    lane = filled(b"1")
    lane.die("a")

    assert lane.lose("a") == []
    assert lane.unfinished == 1


# -- whose task is finished


def test_a_reader_finishes_its_own_tasks_first():
    lane = filled(b"1", b"2", b"3")
    give(lane, "a", 1)
    lane.settle("a", 1)
    give(lane, "b", 1)
    lane.settle("b", 1)

    lane.finish("b")
    lane.die("b")
    lane.lose("b")

    assert rest(lane) == [b"3"]


def test_one_without_tasks_finishes_the_oldest_of_others():
    lane = filled(b"1", b"2")
    for reader in ("a", "b"):
        give(lane, reader, 1)
        lane.settle(reader, 1)

    lane.finish("c")
    for reader in ("a", "b"):
        lane.die(reader)
        lane.lose(reader)

    assert rest(lane) == [b"2"]


def test_more_than_was_given_is_nonsense():
    lane = filled(b"1")
    give(lane, "a", 1)

    with pytest.raises(WireError, match="has done 2 tasks of 1"):
        lane.finish_all("a", 1, 2)


# -- references that tasks hold


def test_what_a_task_refers_to_is_let_go_of_when_it_is_done():
    item = laden(b"1")
    lane = filled(item, b"2")
    give(lane, "a", 2)

    out = lane.finish_all("a", 2, 2)

    assert [one.items for one in out if isinstance(one, Drop)] == [[item], [b"2"]]


def test_a_task_of_the_owner_itself_keeps_its_references_until_it_is_done():
    item = laden(b"1")
    lane = filled(b"0", item)
    rest(lane)

    assert lane.finish(None) == []
    assert lane.finish(None) == [Drop([item])]


def test_one_that_came_back_from_an_interrupted_thread_is_in_nobodys_hands():
    item = laden(b"1")
    lane = filled(item)
    taken = lane.take_now()

    lane.untake(taken)

    assert lane.finish(None) == []
    assert rest(lane) == [item]
