"""A queue of tasks between processes: who is asked before a join, who finishes what, nonsense."""

from __future__ import annotations

import pytest

from fiber._objects import protocol
from fiber._objects.protocol import Op
from fiber._objects.queue.tasks import TaskChannel
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import WireError
from objects_world import in_thread, put, take


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


def test_tasks_of_a_process_that_ends_by_itself_are_anybodys_to_finish(world, tasks):
    other = world.node("other")
    remote = other.remote(tasks)
    put(tasks, b"1")
    assert take(remote) == b"1"
    other.close()
    joined = in_thread(tasks.join)

    assert tasks.size(0) == 0
    assert done(tasks) == [True]
    joined()


def test_tasks_of_a_process_that_fails_come_back(world, tasks):
    other = world.node("other")
    other.exit_code = 1
    remote = other.remote(tasks)
    put(tasks, b"1")
    assert take(remote) == b"1"
    other.close()

    assert take(tasks) == b"1"


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
