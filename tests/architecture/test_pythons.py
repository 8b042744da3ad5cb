"""What runs on other Pythons, and of all tests on a user's machine; where a newer Python comes from."""

import os
import sys
from pathlib import Path

import pytest

import forky
import pythons
from commands import ran

ROOT = Path(__file__).parents[2]

PLAIN = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_with_cases(case): pass

def test_of_the_file(): pass

class TestOfAClass:
    def test_one(self): pass
    def test_other(self): pass
"""
FOLLOWER = """
import pytest

@pytest.mark.parametrize("case", range(3))
def test_with_cases(case):
    from concurrent import futures
"""


@pytest.mark.parametrize("name", pythons.LEFT_OUT)
def test_what_is_left_out_exists(name):
    path, _, test = name.partition("::")

    assert (ROOT / path).exists()
    assert f"class {test}(" in (ROOT / path).read_text() if test else True


def run(folder, *words):
    """Run pytest on a file that follows the standard library and one that does not."""
    (folder / "test_plain.py").write_text(PLAIN)
    (folder / "test_follower.py").write_text(FOLLOWER)
    plugins = ("-p", "pythons", "-p", "progress_of_tests", "-p", "no:cacheprovider")
    return ran(
        [sys.executable, "-m", "pytest", "-q", "-o", f"testpaths={folder}", *plugins, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), "PYTEST_ADDOPTS": ""},
    )


@pytest.mark.parametrize(
    "part, options, ran, told",
    [
        ("python", [], 3 + 4, "all but one case of each test"),
        ("between", [], 3 + 2, "all but one test of each class and file"),
        ("followers", [], 3, "pickle: all"),
        # workers run the part that their session chose
        ("quick", ["-n", "1"], 1 + 2, "bootstrap.py test --all runs all"),
        ("rest", [], 9 - 3, "6 passed"),
        ("quick", ["test_plain.py"], 6, "6 passed"),
        ("quick", ["-k", "test_with_cases"], 3 + 3, "6 passed"),
    ],
)
def test_of_some_files_all_tests_run_and_of_the_rest_a_part(tmp_path, part, options, ran, told):
    done = run(tmp_path, "--part", part, *options)

    assert f"{ran} passed" in done.stdout, done.stdout + done.stderr
    assert told in done.stdout


def test_what_readme_promises_is_run_whole():
    promised = pythons.promised()

    assert "tests/end_to_end/test_killed_workers.py" in promised
    assert [
        name for name in (*promised, *pythons.OF_CHECKOUT) if not list(ROOT.glob(f"{name}*"))
    ] == []


def test_progress_is_told_and_failures_as_they_come(tmp_path):
    (tmp_path / "test_wrong.py").write_text("def test_wrong(): assert 0")
    done = run(tmp_path, "-n", "1", "--progress", "-o", "console_output_style=classic")
    lines = done.stdout.splitlines()

    assert "FAILED test_wrong.py::test_wrong (call)" in lines, done.stdout + done.stderr
    assert any(line.startswith("100%") and "10 of 10 tests, 1 failed" in line for line in lines)
    assert not any(line.startswith("...") for line in lines)
    assert done.returncode == 1


@pytest.mark.parametrize(
    "user, found, told",
    [
        (1000, "/usr/bin/true", "only root may make a root folder"),
        (0, None, "there is no debootstrap; run apt-get install debootstrap"),
    ],
)
def test_what_a_forky_lacks_is_told(monkeypatch, capsys, tmp_path, user, found, told):
    monkeypatch.setattr(forky.os, "geteuid", lambda: user)
    monkeypatch.setattr(forky.shutil, "which", lambda name, path: found)

    assert forky.main(["--cache", str(tmp_path), "--", "-q"]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_forky_has_this_machines_settings_of_pip_and_what_they_name(tmp_path, monkeypatch):
    file = tmp_path / ".config" / "pip" / "pip.conf"
    file.parent.mkdir(parents=True)
    index = "file:///srv/index/simple"
    file.write_text(f"[global]\nindex-url = {index}\n[install]\nfind-links =\n  /srv/a\n  /srv/b\n")
    monkeypatch.setenv("HOME", str(tmp_path))

    options = forky.pip_options()

    assert options["PIP_INDEX_URL"] == index
    assert options["PIP_FIND_LINKS"] == "/srv/a /srv/b"
    assert {"/srv/index", "/srv/a", "/srv/b"} <= set(forky.named_paths(options))
