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
    "es_cartpole": ["gymnasium", "numpy", "matplotlib"],
    "jax_ring": ["jax"],
    "process_gpu": ["torch"],
    "ring": ["torch"],
}

pytestmark = [pytest.mark.examples, pytest.mark.timeout(300)]


def run(name, *arguments, folder):
    for module in NEEDS.get(name, []):
        require.need_module(module)
    done = ran(
        [sys.executable, FOLDER / f"{name}.py", *arguments],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg"},
    )
    assert done.returncode == 0, f"{name} {arguments}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


# these have tests of their own
@pytest.mark.parametrize(
    "name", sorted({path.stem for path in EXAMPLES} - {"async_manager", "es_cartpole", "mpi_pi"})
)
def test_an_example_runs(name, tmp_path):
    run(name, *ARGUMENTS.get(name, []), folder=tmp_path)


def test_environments_step_at_once(tmp_path):
    output = run("async_manager", "--steps", "50", "--delay", "20", folder=tmp_path)

    ratios = [float(found) for found in re.findall(r"([\d.]+)x$", output, re.MULTILINE)]
    assert len(ratios) == 2
    # four sleeps at once or one after another: a busy machine does not make one the other
    assert ratios[1] > 1.5
    assert re.search(r"^the same \d+ episodes each time$", output, re.MULTILINE)


def test_the_main_job_saves_what_it_learned(tmp_path):
    output = run("es_cartpole", "--out", "found", folder=tmp_path)

    assert re.search(r"mean return over 100 fresh episodes: (4[789]|5)\d+", output)
    numpy = pytest.importorskip("numpy")
    with numpy.load(tmp_path / "found" / "policy.npz") as policy:
        digest = hashlib.sha256(policy["parameters"].tobytes()).hexdigest()
        assert policy["first"].shape == (4, 16)
    assert f"sha256 of the parameters: {digest}" in output
    assert (tmp_path / "found" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_policy_that_has_not_learned_enough_is_a_failure(tmp_path):
    for module in NEEDS["es_cartpole"]:
        require.need_module(module)
    done = ran(
        [sys.executable, FOLDER / "es_cartpole.py", "--generations", "1", "--population", "4"],
        cwd=tmp_path,
    )

    assert done.returncode == 1, done.stderr
    assert "not solved" in done.stdout


def test_killed_workers_change_no_bit_of_the_trained_policy(tmp_path):
    def digest(*arguments):
        output = run("es_cartpole", "--seed", "3", *arguments, folder=tmp_path)
        (found,) = re.findall(r"sha256 of the parameters: (\w+)", output)
        (killed,) = re.findall(r"(\d+) workers killed", output)
        return found, int(killed)

    undisturbed, nobody = digest()
    disturbed, killed = digest("--chaos")

    assert (nobody, killed > 0) == (0, True)
    assert disturbed == undisturbed
