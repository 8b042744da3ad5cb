"""Programs that users write run on containers as they are, with nothing but settings changed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import require

EXAMPLES = Path(__file__).parents[3] / "examples"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def run_example(engine, tmp_path):
    """Runner of programs on the host as masters; returns their output."""

    def run(name, *words, backend="docker", good=True):
        done = subprocess.run(
            [sys.executable, EXAMPLES / f"{name}.py", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=engine.environ(FIBER_BACKEND=backend, MPLBACKEND="Agg"),
            timeout=380,
            check=False,
        )
        assert done.returncode == 0 or not good, f"{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        assert engine.containers() == []
        return done.stdout

    return run


def test_pi_is_estimated_by_a_pool(run_example):
    output = run_example("pi_estimation")

    assert re.search(r"3\.1[34]", output), output


def test_a_policy_is_the_same_bit_for_bit_though_workers_are_killed(run_example):
    for module in ("gymnasium", "numpy", "matplotlib"):
        require.need_module(module)

    def digest(*words, backend):
        every = ("--seed", "3", "--workers", "3", "--generations", "12", "--go-on")
        # so few generations need not solve the task
        output = run_example("es_cartpole", *every, *words, backend=backend, good=False)
        (found,) = re.findall(r"sha256 of the parameters: (\w+)", output)
        (killed,) = re.findall(r"(\d+) workers killed", output)
        return found, int(killed)

    undisturbed, _ = digest(backend="local")
    disturbed, killed = digest("--chaos", backend="docker")

    assert killed > 0
    assert disturbed == undisturbed


def test_environments_of_a_manager_step_at_once(run_example):
    require.need_module("gymnasium")
    output = run_example("async_manager", "--steps", "20", "--delay", "50")

    assert re.search(r"[\d.]+x$", output, re.MULTILINE), output
