"""The guard of a run outlives its program, and acts only where that was killed."""

import os
import signal
import subprocess
import sys

import pytest

from fiber.backend_parts.liveness import start_time
from waiting import until

PROGRAM = """
import os, sys
from pathlib import Path
from fiber.backend_parts.batch.guard import Guard
folder, how = Path(sys.argv[1]), sys.argv[2]
touch = [sys.executable, "-c", "import os, sys; open(sys.argv[1], 'a').write('x')", str(folder) + ".done"]
fail = [sys.executable, "-c", "import os, sys; sys.exit(not os.path.exists(sys.argv[1]))", str(folder) + ".up"]
guard = Guard([touch, fail], folder, pause=0.0, retry=0.05, patience=60.0)
guard.start()
if how == "keep":
    guard.keep()
if how == "dismiss":
    guard.dismiss()
    guard.dismiss()
    sys.exit()
print(guard._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "run"
    made.mkdir()
    return made


def killed(folder, how):
    """A program that was killed by SIGKILL; the process id of its guard."""
    words = [sys.executable, "-c", PROGRAM, str(folder), how]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as program:
        guard = int(program.stdout.readline())
        os.kill(program.pid, signal.SIGKILL)
    return guard


@pytest.mark.parametrize("how, kept", [("none", False), ("keep", True)])
def test_a_program_that_is_killed_has_its_commands_run_until_all_end_well(folder, how, kept):
    guard = killed(folder, how)

    done = folder.with_name("run.done")
    until(lambda: done.exists() and len(done.read_text()) > 1)
    assert folder.exists()
    folder.with_name("run.up").touch()

    until(lambda: start_time(guard) is None)
    assert folder.exists() is kept


def test_a_program_that_ends_well_sends_it_away(folder):
    words = [sys.executable, "-c", PROGRAM, str(folder), "dismiss"]
    subprocess.run(words, check=True)

    assert not folder.with_name("run.done").exists()
    assert folder.exists()
