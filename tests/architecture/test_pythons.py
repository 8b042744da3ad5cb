"""What runs on other Pythons, and of all tests on a user's machine."""

import os
import sys
from pathlib import Path

import pytest

import pythons
from commands import ran

ROOT = Path(__file__).parents[2]

PLAIN = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_with_cases(case): pass

def test_of_the_file(): pass

class TestOfAClass:
    def test_one(self): pass
    def test_other(self): pass
"""
FOLLOWER = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_with_cases(case):
    from concurrent import futures
"""


@pytest.mark.parametrize("name", pythons.LEFT_OUT)
def test_what_is_left_out_exists(name):
    path, _, test = name.partition("::")

    assert (ROOT / path).exists()
    named = (f"class {test}(", f"def {test.partition('[')[0]}(")
    assert any(one in (ROOT / path).read_text() for one in named) if test else True


def run(folder, *words):
    """Run pytest on a file that follows the standard library and one that does not."""
    (folder / "test_plain.py").write_text(PLAIN)
    (folder / "test_follower.py").write_text(FOLLOWER)
    plugins = ("-p", "pythons", "-p", "progress_of_tests")
    return ran(
        [sys.executable, "-m", "pytest", "-q", "-o", f"testpaths={folder}", *plugins, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), "PYTEST_ADDOPTS": ""},
    )


@pytest.mark.parametrize(
    "part, options, ran, told",
    [
        ("python", [], 3 + 4, "all but one case of each test"),
        ("between", [], 3 + 2, "all but one test of each class and file"),
        ("followers", [], 1, "pickle: all, and in the others all but one case of each test"),
        # workers run the part that their session chose
        ("quick", ["-n", "1"], 1 + 2, "bootstrap.py test --all runs all"),
        ("rest", [], 9 - 3, "6 passed"),
        ("quick", ["test_plain.py"], 6, "6 passed"),
        ("quick", ["-k", "test_with_cases"], 3 + 3, "6 passed"),
    ],
)
def test_of_some_files_all_tests_run_and_of_the_rest_a_part(tmp_path, part, options, ran, told):
    done = run(tmp_path, "--part", part, *options)

    assert f"{ran} passed" in done.stdout, done.stdout + done.stderr
    assert told in done.stdout


@pytest.mark.timeout(300)
def test_half_the_tests_run_another_half_by_another_seed_and_what_failed_runs_again(tmp_path):
    (tmp_path / "test_wrong.py").write_text(PLAIN.replace("pass", "assert 0"))

    def failed(seed, *words):
        words = ("--half", seed, "-o", f"cache_dir={seed}", *words)
        done = run(tmp_path, *words, "test_plain.py", "test_wrong.py")
        assert f"by --half {seed}" in done.stdout
        return {line for line in done.stdout.splitlines() if line.startswith("FAILED")}

    first = failed("1", "-n", "1")
    assert first
    assert failed("1", "--last-failed") == first
    assert failed("3") != first
    assert "3 passed" in run(tmp_path, "--half", "1", "test_plain.py").stdout
    # what is about the checkout is whole
    (tmp_path / "tests" / "ci").mkdir(parents=True)
    (tmp_path / "tests" / "ci" / "test_ours.py").write_text(PLAIN)
    ours = run(tmp_path, "--half", "1", "--rootdir", ".", "test_plain.py", "tests/ci/test_ours.py")
    assert "9 passed" in ours.stdout
    # of one test that is chosen by its name, that one
    one = ("-k", "test_other", "test_plain.py")
    assert ["1 passed" in run(tmp_path, "--half", seed, *one).stdout for seed in "12"] == [True] * 2


def test_where_nothing_follows_there_is_nothing_to_run(tmp_path):
    assert run(tmp_path, "--part", "followers", "-n", "1", "test_plain.py").returncode == 0


def test_what_failed_in_a_part_is_what_is_run_once_more(tmp_path):
    (tmp_path / "test_wrong.py").write_text(PLAIN.replace("(case): pass", "(case): assert 0"))
    first, again = [
        {
            line
            for line in run(tmp_path, "--part", "rest", *more).stdout.splitlines()
            if "FAIL" in line
        }
        for more in ([], ["--last-failed"])
    ]
    assert again == first and len(first) >= 2


def test_what_readme_promises_is_run_whole():
    promised = pythons.promised()

    assert "tests/end_to_end/test_killed_workers.py" in promised
    assert [
        name for name in (*promised, *pythons.OF_CHECKOUT) if not list(ROOT.glob(f"{name}*"))
    ] == []


def test_progress_is_told_and_failures_as_they_come(tmp_path):
    (tmp_path / "test_wrong.py").write_text("def test_wrong(): assert 0")
    done = run(tmp_path, "-n", "1", "--progress", "-o", "console_output_style=classic")
    lines = done.stdout.splitlines()

    assert "FAILED test_wrong.py::test_wrong (call)" in lines, done.stdout + done.stderr
    assert any(line.startswith("100%") and "10 of 10 tests, 1 failed" in line for line in lines)
    assert not any(line.startswith("...") for line in lines)
    assert done.returncode == 1
