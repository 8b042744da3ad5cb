"""When processes of a remote job start, and when they get SIGTERM."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.job.server import Drain, StartBarrier
from fiber.model import Timing


class TestStartBarrier:
    def test_waiting_processes_go_on_when_it_is_opened(self):
        barrier = StartBarrier()
        mine = os.dup(barrier.reader)
        barrier.open()
        assert os.read(mine, 1) == b"\0"
        os.close(mine)

    def test_one_that_is_never_opened_returns_false(self):
        assert not StartBarrier().wait()

    def test_it_may_be_opened_when_all_waiting_processes_were_killed(self):
        barrier = StartBarrier()
        writer = barrier.writer
        barrier.open()
        with pytest.raises(OSError):
            os.fstat(writer)


class TestDrain:
    def test_processes_without_drain_get_sigterm_at_once(self):
        drain = Drain(None)
        assert drain.request(5.0, parent_connected=True)
        assert not drain.is_on
        assert drain.due is None

    @pytest.mark.parametrize(
        "grace, due", [(30.0, 128.0), (10.0, 108.0), (4.0, 103.0), (1.0, 100.75)]
    )
    def test_others_get_sigterm_once_shortly_before_the_platforms_grace_ends(self, grace, due):
        drain = Drain(grace)
        assert drain.due is None
        assert not drain.is_due(1e9)
        assert not drain.request(100.0, parent_connected=True)
        assert drain.is_on
        assert drain.due == due
        assert not drain.is_due(due - 0.01)
        assert drain.is_due(due)
        assert not drain.is_due(due + 1)
        assert not drain.is_on

    def test_a_second_sigterm_is_not_delayed(self):
        drain = Drain(30.0)
        assert not drain.request(100.0, parent_connected=True)
        assert drain.request(100.5, parent_connected=True)
        assert drain.due is None
        assert drain.request(200.0, parent_connected=True)

    def test_a_parent_out_of_reach_is_waited_for_a_moment_and_has_the_whole_grace_in_time(self):
        drain = Drain(30.0, Timing(parent_answer=2.0))
        drain.request(100.0, parent_connected=False)
        assert drain.due == 102.0
        drain.on_parent_connected()
        assert drain.due == 128.0
        assert not drain.is_due(102.0)

    @given(grace=st.floats(0.0, 1e6), hears=st.booleans())
    def test_with_any_grace_processes_get_sigterm_within_it(self, grace, hears):
        drain = Drain(grace)
        drain.request(0.0, parent_connected=hears)
        assert 0.0 <= drain.due <= grace
