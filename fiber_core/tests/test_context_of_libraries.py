"""Contexts for libraries that hand what they are given to ``multiprocessing.get_context()``."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys

import pytest

import fiber

METHODS = [*multiprocessing.get_all_start_methods(), "fiber"]


@pytest.mark.parametrize("method", METHODS)
def test_the_stdlib_takes_a_context_of_ours_where_it_takes_a_name(method):
    context = fiber.get_context(method)

    assert multiprocessing.get_context(context) is context
    assert fiber.get_context(context) is context
    assert context.get_start_method() == method
    assert context.Process._start_method == method


def test_the_stdlib_knows_ours_by_a_name_of_its_own():
    assert multiprocessing.get_context("fiber") is fiber.get_context("fiber")
    assert type(multiprocessing.get_context("spawn")) is multiprocessing.context.SpawnContext


def test_no_other_name_is_known():
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        multiprocessing.get_context("thread")
    with pytest.raises(ValueError, match="cannot find context for 'thread'"):
        fiber.get_context("thread")


def test_the_names_of_the_platform_stay_what_they_are():
    program = (
        "import multiprocessing as mp\n"
        "before = mp.get_all_start_methods()\n"
        "import fiber\n"
        "fiber.get_context()\n"
        "assert mp.get_all_start_methods() == before\n"
        "assert sorted(fiber.get_all_start_methods()) == sorted(before)\n"
        "assert mp.get_start_method(allow_none=True) is None\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=30)


def double(number, answers):
    answers.put(number * 2)


def test_a_process_of_such_a_context_is_one_of_fibers():
    context = multiprocessing.get_context(fiber.get_context())
    answers = context.Queue()
    process = context.Process(target=double, args=(21, answers))
    process.start()
    assert isinstance(process, fiber.Process)
    assert answers.get(timeout=30) == 42
    process.join()
    answers.close()
