"""The worker groups of pools and executors: sizes, refusals, one group for each spec."""

from __future__ import annotations

import pytest

import fiber
from fiber._base.serial_executor import CallbackThread
from fiber._tasks.protocol import Mode
from fiber._workers.group import WorkerGroups
from fiber._workers.options import PoolOptions
from fiber.results import AsyncResult
from pool_tasks import same

pytestmark = pytest.mark.usefixtures("shared_runtime")


@fiber.meta(memory=64)
def modest(x):
    return x


def result():
    return AsyncResult(CallbackThread("unused"))


@pytest.fixture
def groups():
    groups = WorkerGroups(PoolOptions(size=1), "test")
    groups.begin()
    finalizer = groups.end_with(groups)
    yield groups
    finalizer()


def test_numbers_that_make_no_sense_are_refused():
    for options in (
        PoolOptions(size=0),
        PoolOptions(maxtasksperchild=0),
        PoolOptions(per_job=0),
        PoolOptions(max_attempts=0),
    ):
        with pytest.raises(ValueError, match="at least 1|positive"):
            WorkerGroups(options, "test")
    with pytest.raises(TypeError, match="initializer must be a callable"):
        WorkerGroups(PoolOptions(initializer=3), "test")


def test_what_is_added_is_done(groups):
    sink = result()
    groups.add(same, Mode.MAP, sink, [3])
    assert sink.get(30) == 3


def test_functions_that_ask_for_resources_have_workers_of_their_own(groups):
    ordinary, special = result(), result()
    groups.add(same, Mode.MAP, ordinary, [1])
    groups.add(modest, Mode.MAP, special, [2])
    assert (ordinary.get(30), special.get(30)) == (1, 2)
    assert groups.size == 2


def test_refusals_are_fresh_and_the_first_one_counts(groups):
    groups.refuse(ValueError("over"))
    groups.refuse(RuntimeError("too late"))
    with pytest.raises(ValueError, match="over") as first:
        groups.add(same, Mode.MAP, result(), [1])
    with pytest.raises(ValueError, match="over") as second:
        groups.check()
    assert first.value is not second.value


def test_joining_waits_for_what_there_is(groups):
    sink = result()
    groups.add(same, Mode.MAP, sink, [3])
    groups.refuse(ValueError("over"))
    groups.join()
    assert sink.get(0) == 3
    assert groups.processes() == []
