"""Tasks that are given one by one: which share a call, and who is told what came of them."""

import functools
import math

import pytest

import pool_tasks
from fiber._tasks.protocol import Mode
from fiber._workers import open_calls
from fiber._workers.open_calls import OpenCalls, TaskCall, task_of
from fiber.exceptions import TerminatedError
from tasks_world import PlayedGroups

STARMAP = Mode.STARMAP


class Receiver:
    outcome = None

    def settle(self, value, error):
        assert self.outcome is None
        self.outcome = value, error


@pytest.fixture
def groups():
    return PlayedGroups()


@pytest.fixture
def calls(groups):
    return OpenCalls(functools.partial(TaskCall, groups))


def give(call, *numbers):
    return [call.add((number,), lambda _: Receiver()) for number in numbers]


def test_tasks_of_one_function_travel_together_and_each_has_its_own_outcome(groups, calls):
    receivers = [give(calls.get(pool_tasks.same, STARMAP), number)[0] for number in range(20)]
    groups.work()
    assert [one.outcome for one in receivers] == [(number, None) for number in range(20)]
    assert len(groups.peer.tasks()) < 20

    (bad,) = give(calls.get(pool_tasks.same, STARMAP), 1)
    groups.master.ask(groups.peer)
    head, _ = groups.peer.tasks()[-1]
    error = ValueError("of this one")
    groups.master.finish(groups.peer, head, [error])
    assert bad.outcome[1].args == error.args


@pytest.mark.parametrize(
    "func",
    [
        lambda x: x,
        functools.partial(pool_tasks.same, 1),
        [].append,
        "a text".upper,
        Receiver().settle,
    ],
    ids=["lambda", "partial", "builtin method", "method of a type", "bound method"],
)
def test_what_is_pickled_by_value_shares_none(calls, func):
    assert calls.get(func, STARMAP) is None


@pytest.mark.parametrize("func", [pool_tasks.same, math.sqrt, str, Receiver])
def test_what_is_imported_has_one_call_for_each_kind_of_arguments(calls, func):
    (plain, _), (named, _) = task_of((1,), {}), task_of((), {"x": 1})
    assert calls.get(func, plain) is calls.get(func, plain) is not None
    assert calls.get(func, plain) is not calls.get(func, named)


def test_one_that_is_closed_takes_no_more_and_is_done_with_the_last(groups, calls):
    call = calls.get(pool_tasks.same, STARMAP)
    (last,) = give(call, 7)
    calls.close()
    call.close()
    assert give(call, 8) == [None]
    groups.work()
    assert last.outcome == (7, None)
    groups.master.dispatcher.wait_drained(ValueError("closed"))


def test_with_the_last_worker_all_fail_and_the_next_one_is_a_new_call(groups, calls):
    call = calls.get(pool_tasks.same, STARMAP)
    receivers = give(call, 1, 2)
    error = TerminatedError("over")
    call.broken(error)
    assert [one.outcome for one in receivers] == [(None, error)] * 2
    assert give(call, 3) == [None]
    assert calls.get(pool_tasks.same, STARMAP) is not call


def test_of_too_many_functions_the_first_is_closed(groups, calls, monkeypatch):
    monkeypatch.setattr(open_calls, "_MAX_OPEN_CALLS", 2)
    first = calls.get(pool_tasks.same, STARMAP)
    for func in (pool_tasks.square, pool_tasks.pid):
        calls.get(func, STARMAP)
    assert give(first, 1) == [None]
    assert calls.get(pool_tasks.same, STARMAP) is not first
