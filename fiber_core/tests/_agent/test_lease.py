"""Leases run out by silence alone, and never because the process that checks them was asleep."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fiber._agent.lease import LeaseTable
from fiber.model import Timing

TIMING = Timing()
LATEST = TIMING.heartbeat + TIMING.lateness


def looked(table, start, stop):
    """Look every second, as keepers do; all that expired."""
    found = []
    for second in range(start, stop + 1):
        found += [(one.key, second, one.disconnected) for one in table.expire(float(second))]
    return found


@pytest.mark.parametrize(
    "silence, renewed, expired",
    [
        (5, None, [("a", 6, False)]),
        (5, 4.5, [("a", 10, False)]),
        # where silence proves nothing it lasts
        (None, None, []),
    ],
)
def test_a_lease_ends_after_its_time_of_silence_and_once(silence, renewed, expired):
    table = LeaseTable(lease=5, silence=silence)
    table.connected("a", 0.0)
    assert looked(table, 0, 4) == []
    if renewed:
        table.renew("a", renewed)
    assert looked(table, 5, 100) == expired
    assert ("a" in table) == (not expired)
    assert len(table) == (not expired)


def test_a_strict_lease_counts_from_what_was_acknowledged_through_sleep_and_without_a_connection():
    table = LeaseTable(lease=10, silence=30, strict=True)
    table.connected("own", 0.0, silence=4)
    table.connected("usual", 0.0)
    assert table.next_expiry() == 4.0
    # the acknowledgements of two heartbeats, the later one first
    table.renew("own", 3.0)
    table.renew("own", 2.0)
    table.disconnected("own", 3.5)
    assert table.next_expiry() == 7.0
    assert table.expire(6.9) == []
    # a check that comes very late renews nothing
    assert [one.key for one in table.expire(29.0)] == ["own"]
    table.disconnected("usual", 29.0)
    (expired,) = table.expire(31.0)
    assert (expired.key, expired.silent, expired.disconnected) == ("usual", 31.0, False)
    assert table.next_expiry() is None


@pytest.mark.parametrize(
    "cuts, made_again, expired",
    [
        ([2.0], None, [("a", 6, True)]),
        # the first cut counts
        ([1.0, 2.0], None, [("a", 5, True)]),
        ([1.0], 2.0, []),
    ],
)
def test_a_connection_that_is_not_made_again_ends_it(cuts, made_again, expired):
    table = LeaseTable(lease=3, silence=30)
    table.connected("a", 0.0)
    for cut in cuts:
        table.disconnected("a", cut)
    if made_again:
        table.connected("a", made_again)
    assert looked(table, 2, 20) == expired


class TestOwnSleep:
    def test_a_late_check_renews_all_and_expires_none(self):
        table = LeaseTable(lease=5, silence=5)
        table.connected("a", 0.0)
        table.connected("b", 0.0)
        table.disconnected("b", 0.0)
        assert table.expire(0.0) == []
        assert table.expire(100.0) == []
        assert looked(table, 101, 120) == [("a", 106, False), ("b", 106, True)]

    def test_a_table_that_was_empty_was_not_asleep(self):
        table = LeaseTable(lease=1, silence=1)
        table.connected("a", 0.0)
        assert looked(table, 0, 3) == [("a", 2, False)]
        table.connected("b", 50.0)
        assert looked(table, 50, 55) == [("b", 52, False)]


def test_what_is_paused_is_not_judged():
    table = LeaseTable(lease=3, silence=3)
    table.connected("a", 0.0)
    table.pause("a", True, 1.0)
    assert looked(table, 1, 20) == []
    table.pause("a", False, 20.0)
    assert looked(table, 21, 40) == [("a", 24, False)]


def test_unknown_keys_are_ignored():
    table = LeaseTable(lease=3, silence=3)
    table.renew("nobody", 1.0)
    table.disconnected("nobody", 1.0)
    table.pause("nobody", True, 1.0)
    table.drop("nobody")
    assert looked(table, 1, 20) == []


class Keeping(RuleBasedStateMachine):
    """In any order of events, a key with a sign of life within the lease stays, others expire."""

    LEASE = 4.0

    def __init__(self):
        super().__init__()
        self.table = LeaseTable(lease=self.LEASE, silence=self.LEASE)
        self.now = 0.0
        self.last = {}
        self.table.expire(self.now)

    @rule(key=st.sampled_from("abc"))
    def join(self, key):
        self.table.connected(key, self.now)
        self.last[key] = self.now

    @precondition(lambda self: self.last)
    @rule(data=st.data())
    def hear(self, data):
        key = data.draw(st.sampled_from(sorted(self.last)))
        self.table.renew(key, self.now)
        self.last[key] = self.now

    @rule(wait=st.floats(min_value=0.01, max_value=LATEST))
    def look(self, wait):
        self.now += wait
        for one in self.table.expire(self.now):
            assert self.now - self.last.pop(one.key) > self.LEASE

    @rule(sleep=st.floats(min_value=LATEST + 0.01, max_value=1000))
    def sleep(self, sleep):
        had_lines = len(self.table) > 0
        self.now += sleep
        gone = {one.key for one in self.table.expire(self.now)}
        if had_lines:
            # a table that nobody is in has nobody to be late for
            for key in self.last:
                self.last[key] = self.now
        assert not gone

    @invariant()
    def all_that_are_due_are_gone_after_a_look(self):
        assert set(self.last) == {key for key in "abc" if key in self.table}


TestKeeping = Keeping.TestCase
TestKeeping.settings = settings(max_examples=50, deadline=None)
