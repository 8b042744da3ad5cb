from __future__ import annotations

import pytest

from fiber._tasks.pending.batching import Pace
from fiber._tasks.pending.calls import Call, Tally
from fiber._tasks.pending.policy import RevokePolicy
from fiber._tasks.pending.stragglers import Watch
from fiber._tasks.pending.workers import Asked, Entry, Worker


@pytest.fixture
def watch():
    return Watch(RevokePolicy())


def holder(name="w", since=0.0, mean=1e-4):
    worker = Worker(name, None, since)
    call = Call(1, chunk=1, retry=True, pace=Pace(0.01), total=Tally())
    call.pace.add(1, mean)
    worker.held.append(Entry(1, call, worker, 0, 10, is_suspect=False))
    return worker


def test_a_worker_is_due_when_its_unit_has_run_too_long(watch):
    worker = holder()
    watch.note(worker, 1)
    assert watch.next_deadline(1) == pytest.approx(0.05)
    assert list(watch.victims(0.049, 1)) == []
    assert list(watch.victims(0.05, 1)) == [worker]


def test_a_slow_call_gets_five_times_its_mean(watch):
    watch.note(holder(mean=0.1), 1)
    assert watch.next_deadline(1) == pytest.approx(0.5)


def test_among_many_workers_the_last_one_to_be_given_something_has_time_to_begin(watch):
    watch.note(holder(), 1000)
    assert watch.next_deadline(1) == pytest.approx(0.1)


def test_progress_puts_the_moment_off(watch):
    worker = holder()
    watch.note(worker, 1)
    worker.since = 0.04
    assert list(watch.victims(0.06, 1)) == []
    assert watch.next_deadline(1) == pytest.approx(0.09)


def test_nobody_is_asked_while_nobody_is_idle(watch):
    watch.note(holder(), 1)
    assert watch.next_deadline(0) is None
    assert list(watch.victims(9.0, 0)) == []


def test_an_answer_in_time_is_not_overdue(watch):
    first, second = holder("a").held[0], holder("b").held[0]
    watch.ask(first, 1.0)
    watch.ask(second, 1.0)
    watch.settle(first, Asked.ANSWERED)
    assert watch.waiting == 1
    assert list(watch.overdue(1.05)) == []
    assert watch.next_deadline(0) == pytest.approx(1.1)
    assert list(watch.overdue(1.1)) == [second]
    assert second.asked is Asked.OVERDUE
    assert watch.waiting == 0
    assert watch.next_deadline(0) is None


def test_lost_workers_do_not_pile_up(watch):
    for number in range(1000):
        worker = holder(str(number))
        watch.note(worker, 1)
        worker.is_gone = True
    assert len(watch.heap) <= 70
