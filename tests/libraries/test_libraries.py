"""Libraries that use ``multiprocessing``, unmodified, each in a program as their users write it.

A program prints the same with Fiber: its import is changed, and where the library itself makes the
processes, the context or backend that it is given.
"""

from pathlib import Path

import pytest

import require
import swapped

PROGRAMS = Path(__file__).parent / "programs"

#: the modules that a program cannot do without
NEEDS = {
    "deap_onemax": ["deap"],
    "dynesty_nested": ["dynesty"],
    "emcee_gaussian": ["emcee"],
    "gymnasium_async": ["gymnasium"],
    "logging_by_queue": [],
    "nevergrad_executor": ["nevergrad"],
    "pymoo_starmap": ["pymoo"],
    "scikit_learn_grid": ["sklearn"],
    "scipy_evolution": ["scipy"],
    "stable_baselines3_ppo": ["stable_baselines3", "torch"],
    "torch_hogwild": ["torch"],
    "tqdm_unordered": ["tqdm"],
}
_EXECUTOR = {
    "from concurrent.futures import ProcessPoolExecutor": (
        "from fiber import Executor as ProcessPoolExecutor"
    )
}
#: what else is changed than imports
CHANGES = {
    "gymnasium_async": {'CONTEXT = "spawn"': "CONTEXT = multiprocessing.get_context()"},
    "nevergrad_executor": _EXECUTOR,
    "pymoo_starmap": _EXECUTOR,
    "scikit_learn_grid": {
        'BACKEND = "loky"': 'import fiber.joblib\n\nfiber.joblib.register()\nBACKEND = "fiber"'
    },
    "stable_baselines3_ppo": {'METHOD = "spawn"': "METHOD = multiprocessing.get_context()"},
    "torch_hogwild": {'CONTEXT = "spawn"': 'CONTEXT = "fiber"'},
}

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", NEEDS)
def test_a_library_does_the_same_with_fiber(name, tmp_path, monkeypatch):
    # Stable-Baselines3 makes a folder below the temporary one for each model, and leaves it
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))
    for module in NEEDS[name]:
        require.need_module(module)
    script = PROGRAMS / f"{name}.py"

    printed = swapped.prints_with_fiber(script, tmp_path, CHANGES.get(name))

    assert printed == swapped.prints(script)


def test_every_program_is_run():
    assert sorted(path.stem for path in PROGRAMS.glob("*.py")) == sorted(NEEDS)
