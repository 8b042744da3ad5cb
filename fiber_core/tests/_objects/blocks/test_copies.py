"""Where a block is on each host, who is to fetch it, and what a process keeps of many."""

import pytest

from fiber._objects.blocks import copies as module
from fiber._objects.blocks.copies import Answer, Copies, Unused
from fiber._objects.memory.backing import Place


@pytest.fixture
def copies():
    return Copies()


def place(who):
    return Place(who, 1, 100, bytes(16))


def ask(copies, who, *, host="h", alone=False):
    return copies.ask(host, who, 1, alone=alone)


def fetch(who):
    return [Answer(who, 1, None)]


def test_one_of_a_host_fetches_it_and_the_others_get_that(copies):
    assert ask(copies, "a") == fetch("a")
    assert ask(copies, "b") == ask(copies, "c") == []
    assert copies.came("h", "a", place("a")) == [Answer(who, 1, place("a")) for who in "bc"]
    assert ask(copies, "d") == [Answer("d", 1, place("a"))]


def test_hosts_have_nothing_to_do_with_each_other(copies):
    assert ask(copies, "a") == fetch("a")
    assert ask(copies, "b", host="other") == fetch("b")
    copies.came("h", "a", place("a"))
    assert ask(copies, "c", host="other") == []


def test_when_who_fetches_is_gone_the_next_one_does(copies):
    ask(copies, "a"), ask(copies, "b"), ask(copies, "c"), ask(copies, "d")
    assert copies.gone("b") == []
    assert copies.gone("a") == fetch("c")
    assert copies.gone("c") == fetch("d")
    assert copies.gone("d") == []
    assert ask(copies, "e") == fetch("e")


def test_as_long_as_anybody_has_it_others_get_it(copies):
    ask(copies, "a")
    copies.came("h", "a", place("a"))
    copies.came("h", "b", place("b"))
    copies.gone("a")
    assert ask(copies, "c") == [Answer("c", 1, place("b"))]
    copies.gone("b")
    assert ask(copies, "d") == fetch("d")


def test_who_cannot_map_what_others_have_fetches_it_too(copies):
    ask(copies, "a")
    copies.came("h", "a", place("a"))
    assert ask(copies, "b", alone=True) == fetch("b")
    # and is nobody whom others wait for
    assert ask(copies, "c") == [Answer("c", 1, place("a"))]


def test_who_asks_again_is_told_again_and_never_of_itself(copies):
    assert ask(copies, "a") == ask(copies, "a") == fetch("a")
    copies.came("h", "a", place("a"))
    assert ask(copies, "a") == fetch("a")


def test_it_is_known_who_has_it(copies):
    ask(copies, "a")
    assert not copies.has("a")
    copies.came("h", "a", place("a"))
    assert copies.has("a")
    copies.gone("a")
    assert not copies.has("a")


def test_nothing_is_kept_of_who_is_gone(copies):
    for who in "abc":
        ask(copies, who)
    copies.came("h", "a", place("a"))
    for who in "abc":
        copies.gone(who)
    assert copies._hosts == {}


def test_who_holds_it_no_more_keeps_it_for_others_and_fetches_nothing(copies):
    ask(copies, "a"), ask(copies, "b")
    assert copies.unused("a") == fetch("b")
    copies.came("h", "b", place("b"))
    assert copies.unused("b") == []
    assert copies.holders() == {"b"}
    assert ask(copies, "c") == [Answer("c", 1, place("b"))]


@pytest.fixture
def unused(monkeypatch):
    """Has room for 100 bytes, and for an eighth of 1,600 where those are free."""
    monkeypatch.setattr(module, "_SMALL", 100)
    return Unused(lambda: 1600)


def test_what_was_used_last_stays_as_long_as_there_is_room(unused):
    assert [unused.add(name, 80) for name in "ab"] == [[], []]
    assert unused.add("a", 80) == []
    assert unused.add("c", 80) == ["b"]
    unused.remove("c")
    assert unused.add("d", 120) == []


def test_what_was_used_last_stays_whatever_it_has(unused):
    unused.add("a", 10)
    assert unused.add("b", 10_000) == ["a"]
    assert unused.add("c", 10) == ["b"]
    assert unused.make_room(10_000) == ["c"]
    assert unused.add("d", 200) == []


def test_there_is_room_for_what_is_about_to_come(unused):
    unused.add("a", 80), unused.add("b", 80)
    assert unused.make_room(40) == []
    assert unused.make_room(41) == ["a"]
    assert unused.make_room(200) == ["b"]
    assert unused.make_room(10_000) == []


def test_the_machine_is_not_asked_about_a_little(unused):
    unused._free = lambda: pytest.fail("it is asked")
    unused.add("a", 50), unused.add("b", 50)
    unused.remove("a"), unused.remove("a")
    assert unused.make_room(50) == []


def test_at_the_end_all_go(unused):
    unused.add("a", 80), unused.add("b", 80)
    assert unused.clear() == ["a", "b"]
    assert unused.clear() == []
    assert unused.add("c", 180) == []


def test_there_are_never_too_many(unused, monkeypatch):
    monkeypatch.setattr(module, "_MANY", 3)
    assert [unused.add(n, 0) for n in range(5)] == [[], [], [], [0], [1]]
