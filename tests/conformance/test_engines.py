"""``--fiber-backend`` chooses the backend and the tests that can run on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def run(folder, name, *words):
    (folder / "test_it.py").write_text(TESTS)
    (folder / "conftest.py").write_text(
        f"import sys\nsys.path.insert(0, {str(SUPPORT)!r})\npytest_plugins = ['engines']\n"
    )
    (folder / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib\nmarkers =\n    any_backend\n    one_host\n"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "FIBER_"))}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-rs", "-s", "-p", "no:cacheprovider"),
            *("--fiber-backend", name, *words),
        ],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.timeout(120)
def test_on_this_machine_all_that_is_marked_runs(tmp_path):
    done = run(tmp_path, "local")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran on local; as at home: True" in done.stdout
    assert "2 passed, 1 deselected" in done.stdout


@pytest.mark.timeout(120)
def test_elsewhere_what_is_about_one_host_is_skipped_with_its_reason(tmp_path):
    done = run(tmp_path, "far")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran on far; as at home: False" in done.stdout
    assert "1 passed, 1 skipped, 1 deselected" in done.stdout
    assert "one host only: it has a reason" in done.stdout


def test_an_unknown_backend_is_refused(tmp_path):
    done = run(tmp_path, "moon")

    assert done.returncode != 0
    assert "'moon'" in done.stderr
