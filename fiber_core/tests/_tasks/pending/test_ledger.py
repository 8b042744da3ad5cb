from __future__ import annotations

import pytest

from fiber._tasks.pending.ledger import KINDS, Ledger
from fiber._tasks.pending.policy import RevokePolicy
from fiber._tasks.pending.stragglers import StragglerWatch


@pytest.fixture
def ledger():
    return Ledger(StragglerWatch(RevokePolicy()), 0.01)


def test_a_kind_has_one_pace_and_no_kind_its_own(ledger):
    assert ledger.pace("f") is ledger.pace("f")
    assert ledger.pace("f") is not ledger.pace("g")
    assert ledger.pace(None) is not ledger.pace(None)


def test_the_kinds_that_were_not_used_for_long_are_forgotten(ledger):
    kept, old = ledger.pace("kept"), ledger.pace("old")
    for number in range(KINDS - 1):
        ledger.pace(str(number))
        assert ledger.pace("kept") is kept
    assert ledger.pace("old") is not old
