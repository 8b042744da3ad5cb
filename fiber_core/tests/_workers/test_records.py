from __future__ import annotations

from typing import Any

import pytest

from fiber._workers.records import WorkerIndex, WorkerRecord


@pytest.fixture
def index():
    return WorkerIndex()


def worker(index, name, **state):
    child: Any = None
    made = WorkerRecord(name, name, 0, child, **state)
    index.add(made)
    return made


def test_staying_workers_are_counted_in_any_order(index):
    one, two, _ = (worker(index, name) for name in "abc")
    index.leave(one)
    index.leave(one)
    assert index.staying == 2
    index.remove(one)
    index.remove(two)
    assert index.staying == 1


def test_a_leaving_worker_is_retired_once_it_is_ready_or_does_not_run(index):
    starting, up = worker(index, "a", runs=True), worker(index, "b", runs=True, ready=True)
    index.leave(starting)
    assert index.next_to_retire() is None
    index.leave(up)
    assert index.next_to_retire() is up
    up.exit_sent = True
    index.update(up)
    assert index.next_to_retire() is None
    starting.ready = True
    assert index.next_to_retire() is starting


def test_one_that_is_connected_again_is_retired_again(index):
    one = worker(index, "a", ready=True, exit_sent=True)
    index.leave(one)
    assert index.next_to_retire() is None
    one.exit_sent = False
    index.update(one)
    assert index.next_to_retire() is one
    index.remove(one)
    assert index.next_to_retire() is None


def test_only_records_with_a_deadline_are_listed(index):
    one, *_ = (worker(index, str(number)) for number in range(1000))
    assert index.timed() == []
    one.stopped_at = 5.0
    index.update(one)
    assert index.timed() == [one]
    one.stopped_at = None
    assert index.timed() == []
    one.killed_at = 6.0
    index.update(one)
    index.remove(one)
    assert index.timed() == []
