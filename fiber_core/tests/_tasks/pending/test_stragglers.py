from __future__ import annotations

import pytest

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.call_state import CallState, SharedCount
from fiber._tasks.pending.policy import RevokePolicy
from fiber._tasks.pending.stragglers import StragglerWatch
from fiber._tasks.pending.worker_state import Entry, RevokeState, WorkerState


@pytest.fixture
def stragglers():
    return StragglerWatch(RevokePolicy())


def holder(name="w", since=0.0, mean=1e-4):
    worker = WorkerState(name, None, since)
    call = CallState(1, chunk=1, retry=True, pace=Pace(0.01), total=SharedCount())
    call.pace.add(1, mean)
    worker.held.append(Entry(1, call, worker, 0, 10, is_suspect=False))
    return worker


def test_a_worker_is_due_when_its_unit_has_run_too_long(stragglers):
    worker = holder()
    stragglers.note(worker, 1)
    assert stragglers.next_deadline(1) == pytest.approx(0.05)
    assert list(stragglers.stuck_workers(0.049, 1)) == []
    assert list(stragglers.stuck_workers(0.05, 1)) == [worker]


def test_a_slow_call_gets_five_times_its_mean(stragglers):
    stragglers.note(holder(mean=0.1), 1)
    assert stragglers.next_deadline(1) == pytest.approx(0.5)


def test_among_many_workers_the_last_one_to_be_given_something_has_time_to_begin(stragglers):
    stragglers.note(holder(), 1000)
    assert stragglers.next_deadline(1) == pytest.approx(0.1)


def test_progress_puts_the_moment_off(stragglers):
    worker = holder()
    stragglers.note(worker, 1)
    worker.since = 0.04
    assert list(stragglers.stuck_workers(0.06, 1)) == []
    assert stragglers.next_deadline(1) == pytest.approx(0.09)


def test_nothing_is_revoked_while_no_worker_is_idle(stragglers):
    stragglers.note(holder(), 1)
    assert stragglers.next_deadline(0) is None
    assert list(stragglers.stuck_workers(9.0, 0)) == []


def test_an_answer_in_time_is_not_overdue(stragglers):
    first, second = holder("a").held[0], holder("b").held[0]
    stragglers.revoked(first, 1.0)
    stragglers.revoked(second, 1.0)
    stragglers.settle(first, RevokeState.ANSWERED)
    assert stragglers.unanswered == 1
    assert list(stragglers.overdue(1.05)) == []
    assert stragglers.next_deadline(0) == pytest.approx(1.1)
    assert list(stragglers.overdue(1.1)) == [second]
    assert second.revoke is RevokeState.OVERDUE
    assert stragglers.unanswered == 0
    assert stragglers.next_deadline(0) is None


def test_lost_workers_do_not_pile_up(stragglers):
    for number in range(1000):
        worker = holder(str(number))
        stragglers.note(worker, 1)
        worker.is_gone = True
    assert len(stragglers.heap) <= 70
