"""Shared ctypes objects between processes, on one host and on two."""

import ctypes
import os
import signal
import warnings

import pytest

import fiber
import process_signals
from children import PATIENCE, be_elsewhere, finish, start
from fiber._runtime import runtime
from fiber.exceptions import HolderDiedWarning, PeerLostError
from wire_world import until

pytestmark = [pytest.mark.any_backend, pytest.mark.usefixtures("shared_runtime")]


class Point(ctypes.Structure):
    _fields_ = [("x", ctypes.c_double), ("y", ctypes.c_int)]

    def sum(self):
        return self.x + self.y


# what children do


def add(value, times):
    for _ in range(times):
        with value.get_lock():
            value.value += 1


def change(number, numbers, text, point, points, raw):
    number.value += 1
    numbers[1:3] = [n * 2 for n in numbers[1:3]]
    text.value = text.value.upper()
    point.x, point.y = point.y, 7
    points[1].x = points[0].x + 1
    points[0] = (9, 9)
    raw[0] += 1


def kinds(*things):
    return [(type(thing).__name__, type(getattr(thing, "_obj", None)).__name__) for thing in things]


def make(outbox, go):
    numbers = fiber.RawArray("i", [1, 2, 3])
    outbox.put(numbers)
    outbox.put(fiber.Value("i", 5))
    go.get()


def hold_and_wait(value, outbox):
    value.acquire()
    value.value = 1
    outbox.put(os.getpid())
    signal.pause()


def use_from_elsewhere(inbox, outbox):
    be_elsewhere()
    things = inbox.get()
    outbox.put(kinds(*things))
    try:
        change(*things)
        point, array = things[3], things[1]
        outbox.put((point.get_obj().sum(), list(array), array.get_obj()[:], len(array)))
        outbox.put(things[5])
    except BaseException as error:
        outbox.put(repr(error))
        raise


def add_from_elsewhere(inbox, times):
    be_elsewhere()
    add(inbox.get(), times)


def use_lost(inbox, outbox):
    be_elsewhere()
    raw = inbox.get()
    outbox.put(raw.value)
    inbox.get()
    try:
        raw.value = 1
    except PeerLostError as error:
        outbox.put(str(error))


def everything():
    return (
        fiber.Value("i", 1),
        fiber.Array("d", [1, 2, 3, 4]),
        fiber.Array("c", b"text"),
        fiber.Value(Point, 1, 2),
        fiber.RawArray(Point, [(1, 2), (3, 4)]),
        fiber.RawArray("q", 3),
    )


def check_changed(number, numbers, text, point, points, raw):
    assert number.value == 2
    assert numbers[:] == [1, 4, 6, 4]
    assert text.value == b"TEXT"
    assert (point.x, point.y) == (2, 7)
    assert (points[0].x, points[1].x, points[1].y) == (9, 2, 4)
    assert raw[:] == [1, 0, 0]


def test_what_a_child_changes_is_seen_in_the_parent():
    things = everything()
    finish(start(change, *things))
    check_changed(*things)


@pytest.mark.one_host("elsewhere they are reached by messages")
def test_on_this_host_they_are_instances_of_their_classes():
    things = everything()
    outbox = fiber.SimpleQueue()
    child = start(lambda: outbox.put(kinds(*things)))
    assert outbox.get() == kinds(*things)
    assert kinds(*things)[0] == ("Synchronized", "c_int")
    finish(child)


def test_they_travel_in_closures_and_to_a_pools_workers():
    total, seen = fiber.Value("i", 0), fiber.RawArray("i", 10)

    def note(number):
        seen[number] = number
        with total.get_lock():
            total.value += number

    with fiber.Pool(2) as pool:
        pool.map(note, range(10))
    assert (total.value, seen[:]) == (45, list(range(10)))


@pytest.mark.one_host("elsewhere it is a copy")
def test_where_memory_has_a_name_it_is_in_the_runs_folder_while_anybody_holds_it(monkeypatch):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    folder = runtime.current().directory
    before = set(folder.iterdir())
    numbers, outbox = fiber.RawArray("q", 10_000), fiber.SimpleQueue()
    assert len(set(folder.iterdir()) - before) == 1
    child = start(lambda sent: outbox.put(kinds(sent)), numbers)
    assert outbox.get() == kinds(numbers)
    finish(child)
    del numbers
    until(lambda: not set(folder.iterdir()) - before)


def test_additions_of_many_processes_under_the_lock_lose_nothing():
    value = fiber.Value("i", 0)
    children = [start(add, value, 200) for _ in range(4)]
    add(value, 200)
    finish(*children)
    assert value.value == 1000


@pytest.mark.one_host("its memory outlives it on its own host alone")
def test_what_a_child_made_is_used_here_and_its_memory_outlives_it():
    outbox, go = fiber.SimpleQueue(), fiber.SimpleQueue()
    child = start(make, outbox, go)
    numbers, value = outbox.get(), outbox.get()
    with value:
        value.value += 1
    assert value.value == 6
    go.put(None)
    finish(child)
    numbers[0] = 9
    assert numbers[:] == [9, 2, 3]
    # not so its lock
    with pytest.raises(PeerLostError):
        value.value  # noqa: B018
    assert value.get_obj().value == 6


def test_the_death_of_the_locks_holder_is_an_error_and_no_deadlock():
    value, outbox = fiber.Value("i", 0), fiber.SimpleQueue()
    child = start(hold_and_wait, value, outbox)
    outbox.get()
    process_signals.kill(child)
    with pytest.warns(HolderDiedWarning, match="died"):
        assert value.acquire(timeout=PATIENCE)
    assert value.get_obj().value == 1
    value.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert value.value == 1
    child.join(PATIENCE)
    assert child.exitcode == -signal.SIGKILL


def test_on_another_host_they_have_the_same_api():
    things, inbox, outbox = everything(), fiber.SimpleQueue(), fiber.SimpleQueue()
    inbox.put(things)
    child = start(use_from_elsewhere, inbox, outbox)
    assert outbox.get() == [
        ("Synchronized", "ValueOnAnotherHost"),
        ("SynchronizedArray", "ArrayOnAnotherHost"),
        ("SynchronizedString", "TextOnAnotherHost"),
        ("SynchronizedPoint", "StructureOnAnotherHost"),
        ("ArrayOnAnotherHost", "NoneType"),
        ("ArrayOnAnotherHost", "NoneType"),
    ]
    assert outbox.get() == (9.0, [1, 4, 6, 4], [1, 4, 6, 4], 4)
    back = outbox.get()
    finish(child)
    check_changed(*things)
    # here again it is what it was
    back[1] = 5
    assert things[5][:] == [1, 5, 0]
    assert type(back) is type(things[5])


def test_additions_from_two_hosts_lose_nothing():
    value, inbox = fiber.Value("i", 0), fiber.SimpleQueue()
    children = [start(add_from_elsewhere, inbox, 50) for _ in range(2)]
    children.append(start(add, value, 50))
    for _ in children[:2]:
        inbox.put(value)
    finish(*children)
    assert value.value == 150


def test_the_makers_death_is_an_error_on_other_hosts():
    inbox, outbox, go = fiber.SimpleQueue(), fiber.SimpleQueue(), fiber.SimpleQueue()
    maker = start(make, outbox, go)
    reader = start(use_lost, inbox, outbox)
    _, value = outbox.get(), outbox.get()
    inbox.put(value.get_obj())
    assert outbox.get() == 5
    maker.kill()
    maker.join(PATIENCE)
    inbox.put(None)
    assert "the process that this memory lives in is gone" in outbox.get()
    finish(reader)
