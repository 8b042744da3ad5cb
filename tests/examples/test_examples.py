"""Every example runs as it stands, in a folder of its own, as a user would run it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import require

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))

#: arguments of those that are run with some
ARGUMENTS = {"process_gpu": ["--cpu"]}
#: modules of those that cannot do without
NEEDS = {"es_cartpole": ["gymnasium", "numpy", "matplotlib"], "process_gpu": ["torch"]}

pytestmark = [pytest.mark.examples, pytest.mark.timeout(300)]


def run(name, *arguments, folder):
    for module in NEEDS.get(name, []):
        require.need_module(module)
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg"},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{name} {arguments}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_an_example_runs(name, tmp_path):
    run(name, *ARGUMENTS.get(name, []), folder=tmp_path)


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
