"""When processes hear of SIGTERM, decided without a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.job.server import Leaving


def test_processes_that_nobody_has_exit_are_told_at_once():
    leaving = Leaving(None)
    assert leaving.asked(5.0, parent_hears=True)
    assert not leaving.is_on
    assert leaving.due is None


@pytest.mark.parametrize("grace, due", [(30.0, 128.0), (10.0, 108.0), (4.0, 103.0), (1.0, 100.75)])
def test_others_are_told_shortly_before_the_platforms_patience_ends(grace, due):
    leaving = Leaving(grace)
    assert not leaving.asked(100.0, parent_hears=True)
    assert leaving.is_on
    assert leaving.due == due
    assert not leaving.is_due(due - 0.01)
    assert leaving.is_due(due)
    assert not leaving.is_due(due + 1)
    assert not leaving.is_on


def test_who_asks_twice_does_not_want_to_wait():
    leaving = Leaving(30.0)
    assert not leaving.asked(100.0, parent_hears=True)
    assert leaving.asked(100.5, parent_hears=True)
    assert leaving.due is None
    assert leaving.asked(200.0, parent_hears=True)


def test_a_parent_out_of_reach_is_waited_for_a_second():
    leaving = Leaving(30.0)
    assert not leaving.asked(100.0, parent_hears=False)
    assert leaving.due == 101.0
    assert leaving.is_due(101.0)


def test_a_parent_that_comes_back_in_time_has_the_whole_grace():
    leaving = Leaving(30.0)
    leaving.asked(100.0, parent_hears=False)
    leaving.parent_heard()
    assert leaving.due == 128.0
    assert not leaving.is_due(101.0)


def test_who_was_never_asked_is_never_due():
    leaving = Leaving(30.0)
    leaving.parent_heard()
    assert leaving.due is None
    assert not leaving.is_due(1e9)


@given(grace=st.floats(0.0, 1e6), hears=st.booleans())
def test_whatever_the_grace_processes_are_told_within_it(grace, hears):
    leaving = Leaving(grace)
    leaving.asked(0.0, parent_hears=hears)
    assert 0.0 <= leaving.due <= grace
