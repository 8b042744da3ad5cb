"""Programs that users write, unchanged: in plain pods with nothing set, and one outside the cluster."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import require
import soak
import swapped
from k8s_masters import libraries

ROOT = Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"
PROGRAMS = ROOT / "tests" / "libraries" / "programs"
#: seconds between two deaths of workers
PERIOD = 3.0

pytestmark = pytest.mark.timeout(1800 if soak.is_full() else 400)

# Pool() makes a worker for each free CPU
CAPACITY = {"cpu": "6"}


@pytest.fixture
def run(tmp_path):
    """Run an example on this host; return its output and errors."""

    def start(name, *words, good=True, **variables):
        done = subprocess.run(
            [sys.executable, EXAMPLES / f"{name}.py", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "MPLBACKEND": "Agg", **variables},
            timeout=380,
            check=False,
        )
        assert done.returncode == 0 or not good, f"{done.stdout}\n{done.stderr}"
        return done

    return start


def test_pi_is_estimated_by_a_pool(masters):
    code, lines = masters.wait(masters.start(str(EXAMPLES / "pi_estimation.py")))

    assert code == 0, lines
    assert re.search(r"3\.1[34]", "\n".join(lines)), lines
    masters.wait_until_gone()


def test_pi_is_estimated_by_a_program_outside_the_cluster(run, kube, engine):
    done = run(
        "pi_estimation",
        FIBER_BACKEND="k8s",
        FIBER_IMAGE=engine.image,
        KUBECONFIG=str(kube.kubeconfig),
    )

    assert re.search(r"3\.1[34]", done.stdout), done.stdout
    # how fast that is, once, and what is better
    assert done.stderr.count("MB/s") == 1
    assert "fiber run -a" in done.stderr
    assert kube.objects("pods") == []


def test_a_policy_is_the_same_bit_for_bit_though_workers_die(run, masters, record_property):
    for module in ("gymnasium", "numpy", "matplotlib"):
        require.need_module(module)
    generations = soak.count(200, least=12)
    words = ("--seed", "3", "--population", "16", "--generations", str(generations), "--go-on")

    def digest(lines):
        (found,) = re.findall(r"sha256 of the parameters: (\w+)", "\n".join(lines))
        return found

    # so few episodes a generation need not solve the task
    undisturbed = run("es_cartpole", *words, good=False, FIBER_BACKEND="local").stdout
    chance, deaths = random.Random(3), 0
    name = masters.start(str(EXAMPLES / "es_cartpole.py"), *words, "--workers", "3", **libraries())
    masters.wait_for_workers(3)
    # the first at once: a quick machine is done with so few generations within a period
    has_ended = False
    while not has_ended:
        if alive := sorted(masters.workers()):
            masters.kill(chance.choice(alive))
            deaths += 1
        has_ended = masters.has_ended(name, within=PERIOD)
    code, lines = masters.wait(name)

    record_property("workers killed", deaths)
    assert code in {0, 1}, lines
    assert deaths > 0
    assert digest(lines) == digest(undisturbed.splitlines())


def test_ppo_learns_the_same_though_its_environments_are_pods(masters):
    for module in ("stable_baselines3", "torch"):
        require.need_module(module)
    program = PROGRAMS / "stable_baselines3_ppo.py"
    source = swapped.imports_changed(program.read_text(encoding="utf-8"))
    changed = source.replace('METHOD = "spawn"', "METHOD = multiprocessing.get_context()")
    assert changed != source

    name = masters.start(changed, memory="2Gi", **libraries())
    code, lines = masters.wait(name)

    wanted = swapped.prints(program).splitlines()
    assert code == 0, lines
    # plugins that the mounted folder only points to are told of before
    assert lines[-len(wanted) :] == wanted


def test_environments_of_a_manager_step_at_once(masters):
    require.need_module("gymnasium")
    words = ("--steps", "20", "--delay", "50")
    code, lines = masters.wait(masters.start(str(EXAMPLES / "async_manager.py"), *words))

    assert code == 0, lines
    assert re.search(r"[\d.]+x$", "\n".join(lines), re.MULTILINE), lines
