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
    "joblib_context": ["joblib"],
    "logging_by_queue": [],
    "mpire_workers": ["mpire"],
    "nevergrad_executor": ["nevergrad"],
    "p_tqdm_maps": ["p_tqdm"],
    "pebble_pool": ["pebble"],
    "pymoo_starmap": ["pymoo"],
    "schwimmbad_pool": ["schwimmbad"],
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
#: of libraries that import a package like multiprocessing by its name, see docs/guides/libraries.md
_IN_PLACE = """import sys

import fiber.dummy
import fiber.pool

sys.modules["multiprocess"] = fiber
sys.modules["multiprocess.dummy"] = fiber.dummy
sys.modules["multiprocess.pool"] = fiber.pool
"""
#: what else is changed than imports
CHANGES = {
    "gymnasium_async": {'CONTEXT = "spawn"': "CONTEXT = multiprocessing.get_context()"},
    "joblib_context": {
        'CONTEXT = "multiprocessing"': "import fiber\n\nCONTEXT = fiber.get_context()"
    },
    "p_tqdm_maps": {"from p_tqdm": f"{_IN_PLACE}\nfrom p_tqdm"},
    "schwimmbad_pool": {"from schwimmbad": f"{_IN_PLACE}\nfrom schwimmbad"},
    "nevergrad_executor": _EXECUTOR,
    "pymoo_starmap": _EXECUTOR,
    "scikit_learn_grid": {
        'BACKEND = "loky"': 'import fiber.joblib\n\nfiber.joblib.register()\nBACKEND = "fiber"'
    },
    "stable_baselines3_ppo": {'METHOD = "spawn"': "METHOD = multiprocessing.get_context()"},
    "torch_hogwild": {'CONTEXT = "spawn"': 'CONTEXT = "fiber"'},
}
#: beginnings of warnings that may be given: pebble ends the workers of a pool that closes, of which
#: one may be given a lock that it waited for while it ends
WARNED = {"pebble_pool": "process "}
#: whose own imports are changed: they make their processes by the module they import
REWRITTEN = {"mpire_workers": "mpire"}

pytestmark = [pytest.mark.libraries, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", NEEDS)
def test_a_library_does_the_same_with_fiber(name, tmp_path, monkeypatch):
    # Stable-Baselines3 makes a folder below the temporary one for each model, and leaves it
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path))
    for module in NEEDS[name]:
        require.need_module(module)
    script = PROGRAMS / f"{name}.py"

    library = REWRITTEN.get(name)
    folder = swapped.change_library(library, tmp_path / "changed") if library else None

    environ = {} if folder is None else {"PYTHONPATH": str(folder)}
    if name in WARNED:
        environ["PYTHONWARNINGS"] = f"ignore:{WARNED[name]}"
    printed = swapped.prints_with_fiber(script, tmp_path, CHANGES.get(name), **environ)

    assert printed == swapped.prints(script)


def test_every_program_is_run():
    assert sorted(path.stem for path in PROGRAMS.glob("*.py")) == sorted(NEEDS)
