"""The faults that are put into sources to see whether tests find them."""

import subprocess
import sys
from pathlib import Path

import pytest

import mutations

SCRIPT = Path(mutations.__file__)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into a checkout of its own; returns its path."""
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    monkeypatch.setattr(mutations, "SOURCES", ("core/src/pkg",))

    def write(text, name="sub/module.py"):
        path = tmp_path / "core/src/pkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return write


def faults():
    return {one.changed() for one in mutations.mutations(seed=1)}


@pytest.mark.parametrize(
    "source, faulty",
    [
        ("x = a < b\n", {"x = (a) >= (b)\n"}),
        ("x = 'é' in b\n", {"x = ('é') not in (b)\n"}),
        ("def f():\n    go(1)\n", {"def f():\n    pass\n"}),
        ("x = f(a, b=1)\ny = f(a, b)\n", {"x = f(a, b=1)\ny = f(b, a)\n"}),
        (
            "log.info('said')\nx = a < b < c\nf(*a, b)\n",
            {"log.info('said')\nx = a < b < c\npass\n"},
        ),
    ],
)
def test_faults_are_comparisons_calls_and_arguments(module, source, faulty):
    module(source)
    assert faults() == faulty


def test_a_seed_gives_an_order(module):
    module("\n".join(f"x = a{number} < b" for number in range(20)))

    first, again, other = ([one.start for one in mutations.mutations(seed)] for seed in (1, 1, 2))

    assert first == again != other
    assert sorted(first) == sorted(other)


def test_the_tests_of_a_fault_are_those_of_the_nearest_folder(module, tmp_path):
    path = module("x = a < b\n")
    (fault,) = mutations.mutations(1)
    for folder in ("core/tests", "core/tests/sub"):
        (tmp_path / folder).mkdir()
        assert fault.tests() == folder
    assert f"-{path.read_text()}" in fault.diff()


@pytest.mark.parametrize("caught", [True, False])
def test_a_command_that_fails_has_caught_a_fault_which_is_taken_back(module, tmp_path, caught):
    path = module("x = 1 < 2\n")
    (fault,) = mutations.mutations(1)
    wanted = "x = (1) >= (2)" if caught else "nothing"
    script = "import sys; print(sys.argv[2]); sys.exit(sys.argv[1] in open(sys.argv[3]).read())"

    came = mutations.attempt(fault, (sys.executable, "-c", script, wanted, "{tests}", str(path)))

    assert came["caught"] is caught
    assert came["last"] == ["core/tests"]
    assert path.read_text() == "x = 1 < 2\n"


def test_the_script_shows_as_many_as_are_asked_for():
    command = [sys.executable, SCRIPT, "show", "--seed", "3", "--count", "5"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert shown.count("\n+++ ") == 5
