"""The faults that are put into sources to see whether tests find them."""

import sys

import pytest

import mutations


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into a checkout of its own; returns its path."""
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    monkeypatch.setattr(mutations, "SOURCES", ("core/src/pkg",))

    path = tmp_path / "core/src/pkg/sub/module.py"
    path.parent.mkdir(parents=True)

    def write(text):
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


def test_a_command_that_fails_has_caught_a_fault_which_is_taken_back(module):
    path = module("x = 1 < 2\n")
    (fault,) = mutations.mutations(1)
    script = "import sys; print('ran'); sys.exit('(1) >= (2)' in open(sys.argv[1]).read())"

    came = mutations.attempt(fault, (sys.executable, "-c", script, str(path)))

    assert (came["caught"], came["last"]) == (True, ["ran"])
    assert path.read_text() == "x = 1 < 2\n"
