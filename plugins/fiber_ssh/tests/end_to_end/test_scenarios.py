"""The examples run on ssh hosts as they stand, with only the environment changed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import require

EXAMPLES = Path(__file__).parents[4] / "examples"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def run(world, tmp_path):
    def start(name, *arguments, backend="ssh"):
        environ = {**os.environ, **world.environ(slots=2), "FIBER_BACKEND": backend}
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**environ, "MPLBACKEND": "Agg"},
            timeout=380,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return start


def test_pi_is_found(run):
    done = run("pi_estimation")

    assert done.returncode == 0, done.stderr
    (found,) = re.findall(r"pi is about ([\d.]+)", done.stdout)
    assert abs(float(found) - 3.14159) < 0.01


def test_a_policy_is_the_same_bit_for_bit_though_workers_are_killed(run):
    for module in ("gymnasium", "numpy", "matplotlib"):
        require.need_module(module)

    def digest(*arguments, backend="ssh"):
        words = ("--seed", "3", "--workers", "4", "--generations", "12", "--go-on")
        done = run("es_cartpole", *words, *arguments, backend=backend)
        (found,) = re.findall(r"sha256 of the parameters: (\w+)", done.stdout)
        (killed,) = re.findall(r"(\d+) workers killed", done.stdout)
        return found, int(killed)

    undisturbed, _ = digest(backend="local")
    disturbed, killed = digest("--chaos", "1")

    assert killed > 0
    assert disturbed == undisturbed


def test_environments_on_other_hosts_step_at_once(run):
    require.need_module("gymnasium")

    done = run("async_manager", "--steps", "20", "--delay", "50")

    assert done.returncode == 0, done.stderr
    assert re.search(r"^the same \d+ episodes each time$", done.stdout, re.MULTILINE)
