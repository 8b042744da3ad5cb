"""What stands behind pools and executors: sizes, refusals, crews by need."""

from __future__ import annotations

import pytest

import fiber
from fiber._base.serial_executor import Callbacks
from fiber._tasks.protocol import Mode
from fiber._workers.group import Workforce
from fiber._workers.options import Wish
from fiber.results import AsyncResult
from pool_tasks import same

pytestmark = pytest.mark.usefixtures("shared_runtime")


@fiber.meta(memory=64)
def modest(x):
    return x


def result():
    return AsyncResult(Callbacks("unused"))


@pytest.fixture
def workforce():
    workforce = Workforce(Wish(size=1), "test")
    workforce.begin()
    finalizer = workforce.end_with(workforce)
    yield workforce
    finalizer()


def test_numbers_that_make_no_sense_are_refused():
    for wish in (Wish(size=0), Wish(quota=0), Wish(per_job=0), Wish(max_attempts=0)):
        with pytest.raises(ValueError, match="at least 1|positive"):
            Workforce(wish, "test")
    with pytest.raises(TypeError, match="initializer must be a callable"):
        Workforce(Wish(initializer=3), "test")


def test_what_is_added_is_done(workforce):
    sink = result()
    workforce.add(same, Mode.MAP, sink, [3])
    assert sink.get(30) == 3


def test_functions_with_needs_have_workers_of_their_own(workforce):
    ordinary, special = result(), result()
    workforce.add(same, Mode.MAP, ordinary, [1])
    workforce.add(modest, Mode.MAP, special, [2])
    assert (ordinary.get(30), special.get(30)) == (1, 2)
    assert workforce.size == 2


def test_refusals_are_fresh_and_the_first_one_counts(workforce):
    workforce.refuse(ValueError("over"))
    workforce.refuse(RuntimeError("too late"))
    with pytest.raises(ValueError, match="over") as first:
        workforce.add(same, Mode.MAP, result(), [1])
    with pytest.raises(ValueError, match="over") as second:
        workforce.check()
    assert first.value is not second.value


def test_joining_waits_for_what_there_is(workforce):
    sink = result()
    workforce.add(same, Mode.MAP, sink, [3])
    workforce.refuse(ValueError("over"))
    workforce.join()
    assert sink.get(0) == 3
    assert workforce.processes() == []
