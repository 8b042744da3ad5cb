"""Every public name of the running Python's ``multiprocessing`` is Fiber's too, or listed with why not."""

from __future__ import annotations

import importlib
import multiprocessing
import queue

import pytest

import compat_page
import compat_table
import compat_walk
import fiber
import fiber.queues

NAMES = list(compat_walk.names())
KEYS = {name.key for name in NAMES}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.key)
def test_a_name_is_the_same_or_its_deviation_is_listed(name):
    found = compat_walk.compare(name)
    listed = compat_table.deviation(name.key)

    if name.key in compat_table.MISSING:
        assert found.what == "missing", f"{found} is there now: take it out of MISSING"
    elif found.what == "more":
        assert listed is not None, str(found)
    elif found.what != "same":
        assert listed is not None and listed.verdict == "different", str(found)


def test_the_walk_has_seen_all_of_the_package():
    assert set(multiprocessing.__all__) <= KEYS
    assert {"pool.Pool.map", "managers.SyncManager.dict", "dummy.Pool"} <= KEYS
    assert len(NAMES) > 700


def test_every_name_of_the_package_is_in_fibers_all():
    constants = {"SUBDEBUG", "SUBWARNING"}
    assert set(multiprocessing.__all__) - constants <= set(fiber.__all__)


def test_nothing_is_listed_that_no_python_has():
    # of one Python only; what another one lacks may be listed all the same
    if not compat_page.is_for_this_python():
        pytest.skip("the tables are kept for one Python")
    newer = {"Process.interrupt"}
    assert sorted(set(compat_table.keys()) - KEYS - newer) == []
    assert sorted(compat_table.MISSING - KEYS) == []


# what crosses processes is Fiber's own, what is raised is the stdlib's


@pytest.mark.parametrize(
    "name", ["AuthenticationError", "BufferTooShort", "ProcessError", "TimeoutError"]
)
def test_exceptions_are_the_stdlibs(name):
    assert getattr(fiber, name) is getattr(multiprocessing, name)
    assert getattr(fiber.get_context("spawn"), name) is getattr(multiprocessing, name)


def test_full_and_empty_are_the_stdlibs():
    assert (fiber.queues.Full, fiber.queues.Empty) == (queue.Full, queue.Empty)


SHARED = (
    "Barrier",
    "BoundedSemaphore",
    "Condition",
    "Event",
    "JoinableQueue",
    "Lock",
    "Pipe",
    "Pool",
    "Process",
    "Queue",
    "RLock",
    "Semaphore",
    "SimpleQueue",
)


@pytest.mark.parametrize("name", SHARED)
def test_what_crosses_processes_is_ours(name):
    home = getattr(fiber, name).__module__

    assert home.startswith("fiber")


@pytest.mark.parametrize("module", compat_walk.MODULES)
def test_every_module_is_found_under_the_package(module):
    found = importlib.import_module(f"fiber.{module}" if module else "fiber")
    attribute = fiber
    for part in filter(None, module.split(".")):
        attribute = getattr(attribute, part)

    assert attribute is found


def test_the_package_has_no_name_that_it_does_not_list():
    with pytest.raises(AttributeError, match="has no attribute 'teleport'"):
        fiber.teleport  # noqa: B018 - that it is looked up is the point
