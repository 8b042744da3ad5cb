"""Queues of tasks: what is unfinished, who finishes it, what comes back from readers that end."""

from __future__ import annotations

import functools

import pytest

import queue_states
from fiber._objects import protocol
from fiber._objects.protocol import Op
from fiber._objects.queue.messages import ItemWithReferences
from fiber._objects.queue.requests import Drop, Request
from fiber._objects.queue.tasks import TaskChannel, TaskQueueState
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError
from objects_world import in_thread, put, take
from queue_states import given, offer, only

filled = functools.partial(queue_states.filled, kind=TaskQueueState)


def give(state, reader, count):
    return given(state.request(Request(reader, max_items=count)))


def lose(state, reader):
    """A reader is killed."""
    state.mark_dead(reader)
    return state.remove_reader(reader)


def rest(state):
    return list(iter(state.take_now, None))


def with_references(text):
    return ItemWithReferences.of([("owner", ("url",), 1, 2)], text)


# -- the count


def test_what_comes_in_by_any_way_is_unfinished():
    state = filled(b"1")
    state.offer(offer(b"2", b"3"))

    assert state.unfinished == 3


def test_what_waits_for_room_is_not_in_yet():
    state = filled(b"1", maxsize=1)
    state.offer(offer(b"2"))

    assert state.unfinished == 1


def test_no_more_can_be_finished_than_came_in():
    state = filled(b"1")

    assert state.task_done(None) == []
    assert state.task_done(None) is None


def test_handing_out_finishes_nothing():
    state = filled(b"1", b"2")
    state.take_now()
    give(state, "a", 1)
    state.settle("a", 1)

    assert (state.unfinished, state.size) == (2, 0)


# -- readers that are lost


def test_the_tasks_of_the_dead_come_back_in_front_and_in_order():
    state = filled(b"1", b"2", b"3", b"4")
    assert give(state, "a", 3) == [b"1", b"2", b"3"]
    state.settle("a", 2)

    lose(state, "a")

    assert state.unfinished == 4
    assert rest(state) == [b"1", b"2", b"3", b"4"]


def test_what_the_dead_had_finished_stays_finished():
    state = filled(b"1", b"2", b"3")
    give(state, "a", 3)
    state.tasks_done("a", 2, 1)

    lose(state, "a")

    assert state.unfinished == 2
    assert rest(state) == [b"2", b"3"]


def test_their_own_account_counts_where_it_can_be_seen():
    state = TaskQueueState()
    state.add_reader("a", lambda: (3, 0, 0))
    state.watch_progress("a", lambda: 2)
    for item in (b"1", b"2", b"3", b"4"):
        state.put_now(item)
    give(state, "a", 4)
    state.tasks_done("a", 1, 1)

    lose(state, "a")

    assert state.unfinished == 2
    assert rest(state) == [b"3", b"4"]


def test_an_account_that_makes_no_sense_finishes_no_more_than_was_given():
    state = TaskQueueState()
    state.add_reader("a", lambda: (9, 0, 0))
    state.watch_progress("a", lambda: 2**64 - 1)
    state.put_now(b"1")
    state.put_now(b"2")
    give(state, "a", 1)

    lose(state, "a")

    assert state.unfinished == 1
    assert rest(state) == [b"2"]


def test_tasks_of_a_reader_that_ends_stay_unfinished_and_are_not_given_again():
    state = filled(b"1", b"2")
    give(state, "a", 1)
    state.settle("a", 1)
    state.mark_ending("a")

    lose(state, "a")

    assert state.unfinished == 2
    assert rest(state) == [b"2"]
    assert state.task_done("b") == []


def test_a_reader_that_was_never_there_is_lost_without_effect():
    state = filled(b"1")

    assert lose(state, "a") == []
    assert state.unfinished == 1


# -- whose task is finished


def test_a_reader_finishes_its_own_tasks_first():
    state = filled(b"1", b"2", b"3")
    give(state, "a", 1)
    state.settle("a", 1)
    give(state, "b", 1)
    state.settle("b", 1)

    state.task_done("b")
    lose(state, "b")

    assert rest(state) == [b"3"]


def test_one_without_tasks_finishes_the_oldest_of_others():
    state = filled(b"1", b"2")
    for reader in ("a", "b"):
        give(state, reader, 1)
        state.settle(reader, 1)

    state.task_done("c")
    for reader in ("a", "b"):
        lose(state, reader)

    assert rest(state) == [b"2"]


def test_more_than_was_given_is_nonsense():
    state = filled(b"1")
    give(state, "a", 1)

    with pytest.raises(WireError, match="has done 2 tasks of 1"):
        state.tasks_done("a", 1, 2)


# -- references that tasks hold


def test_what_a_task_refers_to_is_let_go_of_when_it_is_done():
    item = with_references(b"1")
    state = filled(item, b"2")
    give(state, "a", 2)

    out = state.tasks_done("a", 2, 2)

    assert [one.items for one in only(out, Drop)] == [[item], [b"2"]]


def test_a_task_of_the_owner_itself_keeps_its_references_until_it_is_done():
    item = with_references(b"1")
    state = filled(b"0", item)
    rest(state)

    assert state.task_done(None) == []
    assert state.task_done(None) == [Drop([item])]


def test_one_that_came_back_from_an_interrupted_thread_is_in_nobodys_hands():
    item = with_references(b"1")
    state = filled(item)
    taken = state.take_now()

    state.undo_take(taken)

    assert state.task_done(None) == []
    assert rest(state) == [item]


# -- between processes


@pytest.fixture
def tasks(owner):
    made = TaskChannel(owner.store)
    made.hold(0)
    return made


def done(side, count=1):
    return [side.finish(side.reader(0)) for _ in range(count)]


def test_every_side_counts_the_same_tasks(world, tasks):
    remote = world.node("other").remote(tasks)
    put(tasks, b"1")
    put(remote, b"2")
    assert {take(remote), take(remote)} == {b"1", b"2"}

    assert done(remote, 2) == [True, True]
    assert done(remote) == [False]
    tasks.join()
    remote.join()


def test_a_join_waits_for_all_and_for_every_waiter(world, tasks):
    remote = world.node("other").remote(tasks)
    put(tasks, b"1")
    waits = [in_thread(tasks.join), in_thread(remote.join)]

    assert take(remote) == b"1"
    assert done(remote) == [True]

    assert [wait() for wait in waits] == [None, None]


def test_what_is_on_its_way_counts_for_whoever_joins(world, tasks):
    writer, waiter = world.node("writer").remote(tasks), world.node("waiter").remote(tasks)
    # as if its puts were held back for a moment
    held = writer.writer(0)
    with held._wire:
        put(writer, b"late")
        joined = in_thread(waiter.join)
    assert take(tasks) == b"late"
    assert tasks.finish(None)

    joined()


def test_a_dead_holder_keeps_nobody_waiting(world, tasks):
    other, waiter = world.node("other"), world.node("waiter").remote(tasks)
    other.remote(tasks)
    other.die()

    waiter.join()


@pytest.mark.parametrize("code", [0, 1])
def test_tasks_of_a_process_that_fails_come_back_and_of_one_that_ends_do_not(world, tasks, code):
    other = world.node("other")
    other.exit_code = code
    remote = other.remote(tasks)
    put(tasks, b"1")
    assert take(remote) == b"1"
    other.close()

    if code:
        assert take(tasks) == b"1"
    assert tasks.size(0) == 0
    assert done(tasks) == [True]
    tasks.join()


def test_closing_a_handle_is_no_death(world, tasks):
    remote = world.node("other").remote(tasks)
    put(tasks, b"1")
    assert take(remote) == b"1"
    remote.drop(0)
    remote.sync()

    # what was closed has let go, and its task is nobody's
    assert done(tasks) == [True]
    tasks.join()


@pytest.mark.parametrize(
    "body",
    [
        protocol.TASKS_DONE.pack(Op.TASKS_DONE, 1, 0, 0),
        protocol.TASKS_DONE.pack(Op.TASKS_DONE, 0, 5, 0),
        protocol.TASKS_DONE.pack(Op.TASKS_DONE, 0, 0, 2**63),
        bytes([Op.TASKS_DONE]),
        bytes([Op.PUTS_CONFIRMED]),
    ],
)
def test_nonsense_is_refused(world, owner, tasks, body):
    remote = world.node("other").remote(tasks)
    put(tasks, b"1")
    assert take(remote) == b"1"
    (peer,) = tasks._references.peers(0)

    with pytest.raises(WireError):
        tasks.on_message(peer, Message(Frame.CAST, tasks.target, 1, memoryview(body)))
