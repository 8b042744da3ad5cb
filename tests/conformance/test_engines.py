"""``--fiber-backend`` chooses the backend and the tests that can run on it."""

import os
import sys
from pathlib import Path

import pytest

from commands import ran

SUPPORT = Path(__file__).parents[1] / "support"

TESTS = """
import os
import fiber
import pytest


def where():
    return os.environ.get("HOME"), fiber.get_backend().name


@pytest.mark.any_backend
def test_that_runs_anywhere():
    queue = fiber.SimpleQueue()
    child = fiber.Process(target=lambda: queue.put(where()))
    child.start()
    home, name = queue.get()
    child.join()
    print(f"\\nran on {name}; as at home: {home == os.environ.get('HOME')}")


@pytest.mark.any_backend
@pytest.mark.one_host("it has a reason")
def test_of_one_host():
    pass


def test_of_nobody():
    raise AssertionError
"""


def run(folder, name):
    (folder / "test_it.py").write_text(TESTS)
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\npytest_plugins = ['engines']\n"
    )
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers =\n    any_backend\n    one_host\n"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "FIBER_"))}
    words = ("-m", "pytest", "-rs", "-s", "-p", "no:cacheprovider", "--fiber-backend", name)
    return ran([sys.executable, *words], cwd=folder, env=environ)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "name, told",
    [
        ("local", ["ran on local; as at home: True", "2 passed, 1 deselected"]),
        (
            "far",
            [
                "ran on far; as at home: False",
                "1 passed, 1 skipped, 1 deselected",
                "one host only: it has a reason",
            ],
        ),
    ],
)
def test_what_is_marked_runs_on_the_chosen_backend(tmp_path, name, told):
    done = run(tmp_path, name)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [words for words in told if words not in done.stdout] == []


def test_an_unknown_backend_is_refused(tmp_path):
    done = run(tmp_path, "moon")

    assert done.returncode != 0
    assert "'moon'" in done.stderr
