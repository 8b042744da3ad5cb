from __future__ import annotations

from typing import Any

import pytest

from fiber._workers.records import Groups, Member


@pytest.fixture
def groups():
    return Groups()


def member(groups, name, **state):
    child: Any = None
    made = Member(name, name, 0, child, **state)
    groups.joined(made)
    return made


def test_those_who_stay_are_counted_whoever_leaves_first(groups):
    one, two, _ = (member(groups, name) for name in "abc")
    groups.leave(one)
    groups.leave(one)
    assert groups.staying == 2
    groups.gone(one)
    groups.gone(two)
    assert groups.staying == 1


def test_whoever_leaves_is_told_once_it_is_up_or_cannot_be_interrupted(groups):
    starting, up = member(groups, "a", runs=True), member(groups, "b", runs=True, up=True)
    groups.leave(starting)
    assert groups.next_untold() is None
    groups.leave(up)
    assert groups.next_untold() is up
    up.told = True
    groups.changed(up)
    assert groups.next_untold() is None
    starting.up = True
    assert groups.next_untold() is starting


def test_one_that_is_connected_again_is_told_again(groups):
    one = member(groups, "a", up=True, told=True)
    groups.leave(one)
    assert groups.next_untold() is None
    one.told = False
    groups.changed(one)
    assert groups.next_untold() is one
    groups.gone(one)
    assert groups.next_untold() is None


def test_only_those_about_whom_something_is_due_are_looked_at(groups):
    one, *_ = (member(groups, str(number)) for number in range(1000))
    assert groups.timed() == []
    one.stopped_at = 5.0
    groups.changed(one)
    assert groups.timed() == [one]
    one.stopped_at = None
    assert groups.timed() == []
    one.killed_at = 6.0
    groups.changed(one)
    groups.gone(one)
    assert groups.timed() == []
