"""The worker groups of pools and executors: sizes, refusals, one group for each spec."""

import os
import sys
from types import SimpleNamespace

import pytest

import fiber
from fiber._base.threads import CallbackThread
from fiber._tasks.protocol import Mode
from fiber._workers import group
from fiber._workers.group import PoolOptions, WorkerGroups, checked_chunksize
from fiber.results import AsyncResult
from pool_tasks import same

pytestmark = pytest.mark.usefixtures("shared_runtime")

MACHINE = SimpleNamespace(cpu_count=lambda: 4)


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


@pytest.mark.parametrize(
    "given, sizes",
    [
        ({}, (4, 4, 4)),
        ({"size": 2}, (2, 2, 2)),
        ({"size": 2, "min_size": 1, "max_size": 8}, (2, 1, 8)),
        ({"min_size": 2, "max_size": 8}, (2, 2, 8)),
        ({"max_size": 2}, (2, 2, 2)),
        ({"max_size": 8}, (4, 4, 8)),
        ({"size": 6, "min_size": 1}, (6, 1, 6)),
    ],
)
def test_sizes_are_those_given_or_the_machines(given, sizes):
    assert PoolOptions(**given).validate(MACHINE) == sizes


@pytest.mark.parametrize(
    "given, error, told",
    [
        *(({"size": size}, ValueError, "at least 1") for size in (0, -1)),
        *(({"size": size}, TypeError, "integer") for size in (2.5, "2")),
        ({"size": 2, "min_size": 3}, ValueError, "is not between"),
        ({"size": 2, "max_size": 1}, ValueError, "is not between"),
        ({"min_size": 3, "max_size": 2}, ValueError, "is not between"),
        ({"size": 4, "min_size": 1, "max_size": 3}, ValueError, "is not between"),
        *(
            ({name: wrong}, ValueError, "must be a positive int or None")
            for name in ("min_size", "max_size", "maxtasksperchild", "per_job", "max_attempts")
            for wrong in (0, 1.5, "3")
        ),
        ({"initializer": 3}, TypeError, "initializer must be a callable"),
    ],
)
def test_options_that_make_no_sense_are_refused(given, error, told):
    with pytest.raises(error, match=told):
        PoolOptions(**given).validate(MACHINE)


def test_groups_are_made_with_options_that_make_sense_alone():
    with pytest.raises(ValueError, match="positive int"):
        WorkerGroups(PoolOptions(per_job=0), "test")


def test_chunks_are_of_one_item_at_least():
    assert checked_chunksize(None) is None
    assert checked_chunksize(1) == 1
    assert checked_chunksize(7) == 7
    for wrong in (0, -3):
        with pytest.raises(ValueError, match=r"Chunksize must be 1\+"):
            checked_chunksize(wrong)


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


def scheduling_policy():
    return os.sched_getscheduler(0)


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
@pytest.mark.parametrize("crowd, policy", [(64, "SCHED_OTHER"), (0, "SCHED_BATCH")])
def test_workers_of_a_crowd_do_not_interrupt_who_wakes_them(monkeypatch, crowd, policy):
    monkeypatch.setattr(group, "CROWD", crowd)
    with fiber.Pool(1) as pool:
        assert pool.apply(scheduling_policy) == getattr(os, policy)
