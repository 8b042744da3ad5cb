"""``fiber replay``: lists what was kept and runs it again, as its program defines it now."""

import os
import subprocess
import sys
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from fiber._workers import kept_tasks
from fiber.cli.main import cli

PROGRAM = """
import fiber

OFFSET = 3

class Case:
    def __init__(self, mass):
        self.mass = mass
    def __repr__(self):
        return f"Case({self.mass})"

def simulate(case, scale=1):
    if case.mass < 0:
        raise ValueError(f"negative mass {case.mass}")
    return case.mass * scale + OFFSET

if __name__ == "__main__":
    with fiber.Pool(1) as pool:
        try:
            pool.apply(simulate, (Case(-5),), {"scale": 2})
        except ValueError as error:
            print(error.replay.task)
"""


@pytest.fixture
def run(tmp_path):
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "FIBER_KEEP_FAILED": "1"}

    def run(*words, typed=""):
        words = [sys.executable, *map(str, words)]
        return subprocess.run(
            words,
            env=environ,
            cwd=tmp_path,
            input=typed,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def test_a_failed_task_runs_again_with_what_it_got(run, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    task = run(script).stdout.strip()
    command = ("-m", "fiber.cli.main", "replay")

    listed, failed, shown, nothing = (
        run(*command, *words) for words in ([], [task], ["--show", task[:6]], ["abc"])
    )
    debugged = run(*command, "--pdb", task, typed="p case.mass\nq\n")
    script.write_text(PROGRAM.replace("case.mass < 0", "False"))
    mended = run(*command, task)

    header, row = listed.stdout.splitlines()
    assert header.split("\t") == ["TASK", "AGE", "FUNCTION", "ITEM", "ERROR"]
    assert row.split("\t")[::4] == [task, "ValueError: negative mass -5"]
    assert (failed.returncode, failed.stdout) == (1, "simulate(Case(-5), scale=2)\n")
    # the traceback begins with the task itself
    assert failed.stderr.count("File ") == 1
    assert failed.stderr.endswith("ValueError: negative mass -5\n")
    assert (shown.returncode, shown.stdout) == (0, "simulate(Case(-5), scale=2)\n")
    assert "(Pdb) -5" in debugged.stdout
    assert mended.stdout.splitlines()[-1] == "returned -7"
    assert (nothing.returncode, "no task 'abc' is kept" in nothing.stderr) == (1, True)


def test_kept_tasks_are_listed_with_the_newest_first(monkeypatch):
    def kept(name, when):
        said = {"when": when, "function": "f", "item": 1, "error": "E"}
        return Mock(task=name, describe=lambda: said)

    found = [kept("old-1", 1.0), kept("new-1", 2.0)]
    monkeypatch.setattr(kept_tasks, "kept", lambda: iter(found))
    listed = CliRunner().invoke(cli, ["replay"]).stdout

    assert 0 < listed.index("new-1") < listed.index("old-1")

    found.clear()
    assert "FIBER_KEEP_FAILED=1" in CliRunner().invoke(cli, ["replay"]).output
