"""Every example runs as it stands, in a folder of its own, as a user would run it."""

import hashlib
import os
import re
import sys
from pathlib import Path

import pytest

import require
from commands import ran

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))

#: arguments of those that are run with some
ARGUMENTS = {"process_gpu": ["--cpu"]}
#: modules of those that cannot do without
NEEDS = {
    "async_manager": ["gymnasium"],
    "es_cartpole": ["gymnasium", "numpy"],
    "jax_ring": ["jax"],
    "process_gpu": ["torch"],
    "ring": ["torch"],
}

pytestmark = [pytest.mark.examples, pytest.mark.timeout(300)]


@pytest.fixture
def run(tmp_path):
    """Runs an example to its end; what it printed."""

    def run_example(name, *arguments, code=0):
        for module in NEEDS.get(name, []):
            require.need_module(module)
        done = ran(
            [sys.executable, FOLDER / f"{name}.py", *arguments],
            cwd=tmp_path,
            env={**os.environ, "MPLBACKEND": "Agg"},
        )
        assert done.returncode == code, f"{name} {arguments}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    return run_example


# these have tests of their own
@pytest.mark.parametrize(
    "name",
    sorted({path.stem for path in EXAMPLES} - {"async_manager", "es_cartpole", "mpi_pi", "ring"}),
)
def test_an_example_runs(name, run):
    run(name, *ARGUMENTS.get(name, []))


@pytest.mark.parametrize("name", NEEDS)
def test_an_example_without_its_library_says_what_to_install(name):
    path = FOLDER / f"{name}.py"
    missing = dict.fromkeys(NEEDS[name])
    code = f"import runpy, sys; sys.modules.update({missing}); runpy.run_path({str(path)!r})"
    done = ran([sys.executable, "-c", code])
    assert done.returncode == 1
    assert re.fullmatch(r"this example needs .*: python3 -m pip install .*\n", done.stderr)


def test_environments_step_at_once(run):
    output = run("async_manager", "--steps", "50", "--delay", "20")

    ratios = [float(found) for found in re.findall(r"([\d.]+)x$", output, re.MULTILINE)]
    assert len(ratios) == 2
    # four sleeps at once or one after another: a busy machine does not make one the other
    assert ratios[1] > 1.5
    assert re.search(r"^the same \d+ episodes each time$", output, re.MULTILINE)


def test_the_main_job_saves_what_it_learned(run, tmp_path):
    require.need_module("matplotlib")
    output = run("es_cartpole", "--out", "found")

    assert re.search(r"mean return over 100 fresh episodes: (4[789]|5)\d+", output)
    numpy = pytest.importorskip("numpy")
    with numpy.load(tmp_path / "found" / "policy.npz") as policy:
        digest = hashlib.sha256(policy["parameters"].tobytes()).hexdigest()
        assert policy["first"].shape == (4, 16)
    assert f"sha256 of the parameters: {digest}" in output
    assert (tmp_path / "found" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_policy_that_has_not_learned_enough_is_a_failure_without_matplotlib_too(
    run, tmp_path, monkeypatch
):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    output = run("es_cartpole", "--generations", "1", "--population", "4", code=1)
    assert "not solved" in output
    assert "no learning_curve.png: it takes matplotlib" in output


@pytest.mark.parametrize(
    "name, words, chaos, result, losses",
    [
        (
            "es_cartpole",
            ["--seed", "3"],
            "--chaos",
            r"sha256 of the parameters: (\w+)",
            r"(\d+) workers killed",
        ),
        ("ring", [], "--crash", r"rank \d: accuracy [\d.]+, network (\w+)", r"restarts: (\d)"),
    ],
)
def test_what_is_killed_changes_no_bit_of_what_is_learned(run, name, words, chaos, result, losses):
    undisturbed, disturbed = run(name, *words), run(name, *words, chaos)

    lost = [int(*re.findall(losses, output)) for output in (undisturbed, disturbed)]
    assert lost[0] == 0 < lost[1]
    assert re.findall(result, disturbed) == re.findall(result, undisturbed) != []
    assert len(set(re.findall(result, undisturbed))) == 1


def test_four_members_train_one_network(run):
    assert len(set(re.findall(r"network (\w+)", run("ring", "--members", "4")))) == 1


@pytest.mark.parametrize("members", [1, 2, 5])
def test_a_member_of_the_allreduce_sends_twice_as_many_messages_as_it_has_fellows(members, run):
    output = run("ring_allreduce", "--members", str(members), "--numbers", "103")

    sent = re.findall(r"rank \d+: the sums are right, after (\d+) messages", output)
    assert sent == [str(2 * (members - 1))] * members
