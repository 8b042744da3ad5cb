"""What is left to other Pythons is there, and told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pythons

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
    assert f"class {test}(" in (ROOT / path).read_text() if test else True


@pytest.mark.parametrize(
    "option, ran, told",
    [
        ("--other-python", 3 + 4, "all but one case of each test"),
        ("--between", 3 + 2, "all but one test of each class and file"),
    ],
)
def test_what_follows_the_stdlib_runs_whole_and_of_the_rest_a_part(tmp_path, option, ran, told):
    (tmp_path / "test_plain.py").write_text(PLAIN)
    (tmp_path / "test_follower.py").write_text(FOLLOWER)
    words = ("-p", "pythons", "-p", "no:cacheprovider", option)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert f"{ran} passed" in done.stdout, done.stdout + done.stderr
    assert told in done.stdout
