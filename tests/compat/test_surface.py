"""Every public name of the running Python's ``multiprocessing`` is Fiber's too, or listed with why not."""

import importlib
import multiprocessing
import operator
import queue
from pathlib import Path

import pytest

import compat_page
import compat_table
import compat_walk
import fiber
import fiber.queues

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
NAMES = list(compat_walk.names())
KEYS = {name.key for name in NAMES}


def unlisted(name):
    """What the tables do not say of a name; None where they are right."""
    found = compat_walk.compare(name)
    listed = compat_table.deviation(name.key)
    if found.what == "more":
        right, advice = listed is not None, "is not listed"
    else:
        is_listed = listed is not None and listed.verdict == "different"
        right, advice = found.what == "same" or is_listed, "is not listed as different"
    return None if right else f"{found} {advice}"


def test_names_are_the_same_or_their_deviation_is_listed():
    found = list(filter(None, map(unlisted, NAMES)))

    assert not found, "\n".join(found)


def test_the_walk_has_seen_all_of_the_package():
    assert set(multiprocessing.__all__) <= KEYS
    assert {"pool.Pool.map", "managers.SyncManager.dict", "dummy.Pool"} <= KEYS
    assert len(NAMES) > 700


def test_every_name_of_the_package_is_in_fibers_all():
    constants = {"SUBDEBUG", "SUBWARNING"}
    assert set(multiprocessing.__all__) - constants <= set(fiber.__all__)


# of one Python only; what another one lacks may be listed all the same
@pytest.mark.skipif(not compat_page.is_for_this_python(), reason="the tables are for one Python")
def test_nothing_is_listed_that_no_python_has():
    newer = {"Process.interrupt"}
    assert sorted(set(compat_table.TABLE) - KEYS - newer) == []


@pytest.mark.skipif(not compat_page.is_for_this_python(), reason="the page is for one Python")
def test_the_page_is_what_the_tables_say():
    assert PAGE.read_text(encoding="utf-8") == compat_page.page(), (
        "write it anew with `python docs/generators/compat_page.py > docs/reference/compatibility.md`"
    )


# what crosses processes is Fiber's own, what is raised is the stdlib's


def test_exceptions_are_the_stdlibs():
    for name in ("AuthenticationError", "BufferTooShort", "ProcessError", "TimeoutError"):
        assert getattr(fiber, name) is getattr(multiprocessing, name)
        assert getattr(fiber.get_context("spawn"), name) is getattr(multiprocessing, name)
    assert (fiber.queues.Full, fiber.queues.Empty) == (queue.Full, queue.Empty)


SHARED = """
    Barrier BoundedSemaphore Condition Event JoinableQueue Lock Pipe Pool Process Queue RLock
    Semaphore SimpleQueue
"""


def test_what_crosses_processes_is_ours():
    homes = {name: getattr(fiber, name).__module__ for name in SHARED.split()}

    assert {name: home for name, home in homes.items() if not home.startswith("fiber")} == {}


def test_every_module_is_found_under_the_package():
    for module in filter(None, compat_walk.MODULES):
        found = importlib.import_module(f"fiber.{module}")

        assert operator.attrgetter(module)(fiber) is found


def test_the_package_has_no_name_that_it_does_not_list():
    with pytest.raises(AttributeError, match="has no attribute 'teleport'"):
        fiber.teleport  # noqa: B018 - that it is looked up is the point


@pytest.mark.parametrize("name", fiber._ELSEWHERE)
def test_the_error_says_where_a_name_is_that_stands_elsewhere(name):
    with pytest.raises(AttributeError) as caught:
        getattr(fiber, name)
    module, _, found = str(caught.value).rpartition(" ")[2].rpartition(".")
    assert getattr(importlib.import_module(module), found).__name__ == name
