"""Queues of tasks: what is unfinished, who finishes it, what comes back from readers that end."""

import functools

import pytest

import queue_states
from fiber._objects.queue.messages import ItemWithReferences
from fiber._objects.queue.requests import Drop, Request
from fiber._objects.queue.tasks import TaskChannel, TaskQueueState
from fiber.exceptions import PeerLostError
from objects_world import put, take
from queue_states import given, offer, only
from wire_world import in_thread, until

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


def test_what_has_come_in_is_unfinished_and_no_more_can_be_finished():
    state = filled(b"1", maxsize=2)
    state.offer(offer(b"2"))
    state.offer(offer(b"for which there is no room"))

    assert state.unfinished == 2
    assert [state.task_done(None) for _ in range(3)] == [[], [], None]


@pytest.mark.parametrize("done", [0, 1])
def test_what_the_dead_had_not_finished_comes_back_in_front_and_in_order(done):
    tasks = [b"1", b"2", b"3", b"4"]
    state = filled(*tasks)
    assert give(state, "a", 3) == tasks[:3]
    state.tasks_done("a", 2, done)

    lose(state, "a")

    assert state.unfinished == 4 - done
    assert rest(state) == tasks[done:]
    assert lose(state, "one that was never there") == []


@pytest.mark.parametrize(
    "handed_out, done, left",
    [(3, 2, [b"3", b"4", b"5"]), (9, 2**64 - 1, [b"5"])],
    ids=["its account", "an account that makes no sense"],
)
def test_their_own_account_counts_where_it_can_be_seen(handed_out, done, left):
    state = TaskQueueState()
    state.add_reader("a", lambda: (handed_out, 0, 0))
    state.watch_progress("a", lambda: done)
    for item in (b"1", b"2", b"3", b"4", b"5"):
        state.put_now(item)
    give(state, "a", 4)
    state.tasks_done("a", 1, 1)

    lose(state, "a")

    assert state.unfinished == len(left)
    assert rest(state) == left


def test_tasks_of_a_reader_that_ends_stay_unfinished_and_are_not_given_again():
    state = filled(b"1", b"2")
    give(state, "a", 1)
    state.settle("a", 1)
    state.mark_ending("a")

    lose(state, "a")

    assert state.unfinished == 2
    assert rest(state) == [b"2"]
    assert state.task_done("b") == []


@pytest.mark.parametrize(
    "finisher, left",
    [("b", [b"1", b"3"]), ("c", [b"2", b"3"])],
    ids=["its own", "the oldest of others where it has none"],
)
def test_a_reader_finishes(finisher, left):
    state = filled(b"1", b"2", b"3")
    for reader in ("a", "b"):
        give(state, reader, 1)
        state.settle(reader, 1)

    state.task_done(finisher)
    for reader in ("a", "b"):
        lose(state, reader)

    assert rest(state) == left


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


@pytest.fixture
def tasks(owner):
    return owner.make(TaskChannel)


@pytest.fixture
def remote(other, tasks):
    return other.remote(tasks)


def done(side, count=1):
    return [side.finish(side.reader(0)) for _ in range(count)]


def test_every_side_counts_the_same_tasks(tasks, remote):
    put(tasks, b"1")
    put(remote, b"2")
    assert {take(remote), take(remote)} == {b"1", b"2"}

    assert done(remote, 2) == [True, True]
    assert done(remote) == [False]
    tasks.join()
    remote.join()


def test_a_join_waits_for_all_and_for_every_waiter(tasks, remote):
    put(tasks, b"1")
    waits = [in_thread(tasks.join), in_thread(remote.join)]

    assert take(remote) == b"1"
    assert done(remote) == [True]

    assert [wait() for wait in waits] == [None, None]


@pytest.mark.parametrize("waits_at_owner", [True, False])
def test_a_task_that_somebody_waits_for_is_unfinished_as_any_other(tasks, remote, waits_at_owner):
    here, there = (tasks, remote) if waits_at_owner else (remote, tasks)
    for number in (1, 2):
        waits = in_thread(take, here)
        until(lambda: tasks._tasks._waiting)
        put(there, b"1")
        assert waits() == b"1"
        assert tasks._tasks.unfinished == number


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


def test_a_join_whose_owner_dies_is_an_error(owner, tasks, remote):
    put(tasks, b"1")
    joined = in_thread(remote.join)
    owner.die()

    for use in (joined, lambda: done(remote)):
        with pytest.raises(PeerLostError, match="lives in is gone"):
            use()


def test_tasks_of_a_process_that_lets_go_of_them_do_not_come_back(tasks, remote):
    put(tasks, b"1")
    assert take(remote) == b"1"
    remote.drop(0)
    remote.sync()

    assert tasks.size(0) == 0
    assert done(tasks) == [True]
    tasks.join()
