"""Counts of references to an object."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._objects.references import LASTING, References


@pytest.fixture
def references():
    return References(2)


def test_an_end_is_held_while_a_handle_here_lives(references):
    references.hold(0)
    references.hold(0)
    references.drop(0)
    assert references.is_held(0)

    references.drop(0)
    assert not references.is_held(0)


def test_a_process_counts_once_however_often_it_attaches(references):
    references.attach("peer", 1, 0)
    references.attach("peer", 1, 0)
    assert references.peers(1) == {"peer"}

    references.detach("peer", 1)
    assert not references.is_held(1)


def test_a_lost_process_holds_nothing(references):
    references.attach("peer", 0, 0)
    references.attach("peer", 1, 0)
    references.lose("peer")

    assert not references.is_held(0)
    assert not references.is_held(1)


def test_a_reference_holds_until_it_is_used_up(references):
    references.issue(5, 1, 2)
    references.attach("a", 1, 5)
    references.lose("a")
    assert references.is_held(1)

    references.attach("b", 1, 5)
    references.lose("b")
    assert not references.is_held(1)


def test_a_reference_without_a_number_of_uses_holds_until_it_is_voided(references):
    references.issue(5, 1, 0)
    references.attach("a", 1, 5)
    references.lose("a")
    assert references.is_held(1)

    references.void(5)
    assert not references.is_held(1)


def test_a_lasting_reference_holds_and_is_not_waited_for(references):
    references.issue(5, 1, LASTING)
    references.attach("a", 1, 5)
    references.attach("b", 1, 5)
    assert references.is_expected(1)
    references.lose("a")
    references.lose("b")

    assert references.is_held(1)
    assert not references.is_expected(1)


def test_voiding_one_reference_leaves_the_others(references):
    references.issue(5, 0, 1)
    references.issue(6, 0, 1)
    references.void(5)

    assert references.is_held(0)


@given(st.permutations(["issue", "attach", "attach"]))
def test_messages_about_a_reference_may_come_in_any_order(order):
    references = References(1)
    names = itertools.count()
    for event in order:
        if event == "issue":
            references.issue(5, 0, 2)
        else:
            references.attach(next(names), 0, 5)
    for name in range(2):
        references.lose(name)

    assert not references.is_held(0)


def test_a_reference_that_was_voided_before_it_was_reported_holds_nothing(references):
    references.void(5)
    references.issue(5, 0, 1)

    assert not references.is_held(0)


def test_an_end_that_does_not_exist_has_no_references(references):
    references.attach("peer", 7, 0)
    references.issue(5, 9, 1)

    assert not references.is_held(0)
    assert not references.is_held(1)
