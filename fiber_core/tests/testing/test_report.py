"""The kits' results as JSON, and the choice of levels."""

import json
import os
import sys
import textwrap

import pytest

from commands import ran
from fiber.testing.report import levels

# they start pytest, and others beside it, on a machine that may be busy
pytestmark = pytest.mark.timeout(300)

SUBJECT = """
import pytest
from fiber.testing import FakeProvider, ResourceProviderConformance


class TestMine(ResourceProviderConformance):
    samples = {'["F-0"]': 1, "[]": 0}

    @pytest.fixture
    def provider(self):
        return FakeProvider()

    @pytest.mark.xfail(reason="nothing is perfect")
    def test_its_kind_can_be_a_keyword_of_meta(self, provider):
        raise AssertionError

    def test_of_its_own(self, measure):
        measure("steps", 3)

    def test_that_fails(self):
        assert 1 == 2

    def test_that_is_skipped(self):
        pytest.skip("no reason")


class TestOfSomeLevels(ResourceProviderConformance):
    levels = (2,)
    samples = TestMine.samples

    @pytest.fixture
    def provider(self):
        return FakeProvider()


def test_of_nobody():
    pass
"""


def run(tmp_path, *words):
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SUBJECT))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    file = tmp_path / "out" / "results.json"
    done = ran(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-p", "fiber.testing.report", "--fiber-kit-json", str(file), *words),
        ],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")},
    )
    return done, json.loads(file.read_text())


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["alone", "by several processes"])
def test_outcomes_reasons_and_measurements_are_written(tmp_path, words):
    if words:
        pytest.importorskip("xdist")
    _, results = run(tmp_path, *words)

    subjects = {subject["class"]: subject for subject in results["subjects"]}
    subject = subjects["TestMine"]
    tests = {test["name"]: test for test in subject["tests"]}
    assert (subject["kit"], subject["name"], subject["class"]) == ("resource", "fake", "TestMine")
    assert tests["test_its_probe_is_an_argv"]["outcome"] == "passed"
    assert tests["test_its_probe_is_an_argv"]["level"] == 1
    assert tests["test_its_kind_can_be_a_keyword_of_meta"]["outcome"] == "xfailed"
    assert tests["test_its_kind_can_be_a_keyword_of_meta"]["reason"] == "nothing is perfect"
    assert tests["test_that_fails"]["outcome"] == "failed"
    assert "assert 1 == 2" in tests["test_that_fails"]["reason"]
    assert tests["test_that_is_skipped"]["outcome"] == "skipped"
    assert tests["test_that_is_skipped"]["reason"] == "no reason"
    assert tests["test_of_its_own"]["measured"] == {"steps": 3}
    assert tests["test_of_its_own"]["level"] is None
    assert "test_of_nobody" not in tests
    skipped = [test for test in subjects["TestOfSomeLevels"]["tests"] if test["level"] == 1]
    assert {test["outcome"] for test in skipped} == {"skipped"}
    assert {test["reason"] for test in skipped} == {"TestOfSomeLevels runs levels [2] only"}


def test_tests_of_other_levels_are_left_out(tmp_path):
    done, results = run(tmp_path, "--fiber-kit-levels", "2-6")

    (subject,) = results["subjects"]
    assert {test["level"] for test in subject["tests"]} == {None}
    assert "deselected" in done.stdout


@pytest.mark.parametrize(
    "words, found", [("1", {1}), ("1-3", {1, 2, 3}), ("2,6", {2, 6}), ("1-2,4", {1, 2, 4})]
)
def test_levels_are_numbers_and_ranges(words, found):
    assert levels(words) == found


@pytest.mark.parametrize("words", ["", "x", "1-", "-3", "1;2"])
def test_other_words_are_no_levels(words):
    with pytest.raises(pytest.UsageError, match="write levels as 1-3 or 2,6"):
        levels(words)
