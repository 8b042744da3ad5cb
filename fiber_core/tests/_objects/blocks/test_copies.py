"""Where a block is on each host, process is to fetch it, and what a process keeps of many."""

import pytest

from fiber._objects.blocks import copies as module
from fiber._objects.blocks.copies import Answer, Copies, UnusedCopies
from fiber._objects.memory.backing import Location


@pytest.fixture
def copies():
    return Copies()


def place(process):
    return Location(process, 1, 100, bytes(16))


def locate(copies, process, *, host="h", alone=False):
    return copies.locate(host, process, 1, alone=alone)


def fetch(process):
    return [Answer(process, 1, None)]


def test_one_of_a_host_fetches_it_and_the_others_get_that(copies):
    assert locate(copies, "a") == fetch("a")
    assert locate(copies, "b") == locate(copies, "c") == []
    assert locate(copies, "a") == fetch("a"), "it asks again"
    assert locate(copies, "far", host="other") == fetch("far")
    assert not copies.has("a")
    assert copies.add("h", "a", place("a")) == [Answer(process, 1, place("a")) for process in "bc"]
    assert copies.has("a")
    assert locate(copies, "a") == fetch("a"), "it is never told of its own copy"
    assert locate(copies, "d") == [Answer("d", 1, place("a"))]
    for process in ("a", "b", "c", "d", "far"):
        copies.remove(process)
    assert not copies.has("a")
    assert copies._hosts == {}


def test_when_the_fetching_process_is_gone_the_next_one_fetches(copies):
    locate(copies, "a"), locate(copies, "b"), locate(copies, "c"), locate(copies, "d")
    assert copies.remove("b") == []
    assert copies.remove("a") == fetch("c")
    assert copies.remove("c") == fetch("d")
    assert copies.remove("d") == []
    assert locate(copies, "e") == fetch("e")


def test_as_long_as_anybody_has_it_others_get_it(copies):
    locate(copies, "a")
    copies.add("h", "a", place("a"))
    copies.add("h", "b", place("b"))
    copies.remove("a")
    assert locate(copies, "c") == [Answer("c", 1, place("b"))]
    copies.remove("b")
    assert locate(copies, "d") == fetch("d")


def test_a_process_without_handles_keeps_its_copy_and_fetches_nothing(copies):
    locate(copies, "a"), locate(copies, "b")
    assert copies.stop_waiting("a") == fetch("b")
    copies.add("h", "b", place("b"))
    assert copies.stop_waiting("b") == []
    assert copies.holders() == {"b"}
    assert locate(copies, "c") == [Answer("c", 1, place("b"))]


@pytest.fixture
def unused(monkeypatch):
    """Has room for 100 bytes, and for an eighth of 1,600 where those are free."""
    monkeypatch.setattr(module, "_SMALL", 100)
    return UnusedCopies(lambda: 1600)


def test_what_was_used_last_stays_as_long_as_there_is_room(unused):
    assert [unused.add(name, 80) for name in "ab"] == [[], []]
    assert unused.add("a", 80) == []
    assert unused.add("c", 80) == ["b"]
    unused.remove("c")
    assert unused.add("d", 120) == []


def test_there_is_room_for_what_is_about_to_come(unused):
    unused.add("a", 80), unused.add("b", 80)
    assert unused.make_room(40) == []
    assert unused.make_room(41) == ["a"]
    assert unused.add("large", 10_000) == ["b"], "what was used last stays whatever it has"
    assert unused.make_room(10_000) == ["large"]
    assert unused.make_room(10_000) == []


def test_at_the_end_all_go(unused):
    unused.add("a", 80), unused.add("b", 80)
    assert unused.clear() == ["a", "b"]
    assert unused.add("c", 180) == []


def test_the_machine_is_not_asked_about_a_little(unused):
    unused._free = lambda: pytest.fail("it is called")
    unused.add("a", 50), unused.add("b", 50)
    unused.remove("a"), unused.remove("a")
    assert unused.make_room(50) == []


def test_there_are_never_too_many(unused, monkeypatch):
    monkeypatch.setattr(module, "_MANY", 3)
    assert [unused.add(n, 0) for n in range(5)] == [[], [], [], [0], [1]]
