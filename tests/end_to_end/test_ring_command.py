"""``fiber ring``: a ring of a command is run, looked at, suspended, resumed and deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ring_command import RingCommand, check_failed_rank

pytestmark = pytest.mark.timeout(120)

PATIENCE = 60.0
COMMAND = [sys.executable, "-m", "fiber.cli.main", "ring"]
LASTING = 'echo "up $RANK of $WORLD_SIZE"; sleep 1000'


@pytest.fixture
def environ(tmp_path):
    # pytest's own folders have names too long for a socket
    folder = tempfile.mkdtemp(prefix="fc-")
    yield {**os.environ, "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": str(tmp_path / "state")}
    left = [path for path in Path(folder).rglob("*") if path.name != "fiber"]
    shutil.rmtree(folder)
    assert left == []


@pytest.fixture
def ring(environ):
    def run(*words):
        return subprocess.run(
            [*COMMAND, *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    return run


@pytest.fixture
def lasting(environ):
    """A ring of two that runs, called 'r', and the lines that it writes."""
    process = subprocess.Popen(
        [*COMMAND, "run", "-n", "2", "--name", "r", "sh", "-c", LASTING],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert {process.stdout.readline().split("] ")[1] for _ in range(2)} == {
        "up 0 of 2\n",
        "up 1 of 2\n",
    }
    yield process
    process.kill()
    process.communicate()


def phase(ring):
    return json.loads(ring("status", "r", "--json").stdout)["phase"]


def until(ring, wanted):
    deadline = time.monotonic() + PATIENCE
    while phase(ring) != wanted:
        assert time.monotonic() < deadline, phase(ring)
        time.sleep(0.1)


def test_a_command_runs_in_every_rank_and_its_code_is_the_rings(environ):
    check_failed_rank(RingCommand(environ))


def test_it_is_suspended_resumed_and_deleted_while_it_runs(ring, lasting):
    assert phase(ring) == "running"

    assert ring("suspend", "r").returncode == 0
    until(ring, "suspended")
    assert ring("resume", "r").returncode == 0
    until(ring, "running")
    assert {lasting.stdout.readline().split("] ")[1] for _ in range(2)} == {
        "up 0 of 2\n",
        "up 1 of 2\n",
    }

    assert ring("delete", "r").returncode == 0
    assert lasting.wait(PATIENCE) == 1


def test_a_signal_ends_all_ranks(ring, lasting):
    lasting.send_signal(signal.SIGTERM)

    assert lasting.wait(PATIENCE) == 143
    assert phase(ring) == "failed"


def test_a_ring_whose_program_was_killed_is_told_and_can_be_deleted(ring, lasting):
    lasting.kill()
    lasting.wait(PATIENCE)

    assert phase(ring) == "failed"
    assert "r has ended" in ring("suspend", "r").stderr
    assert ring("delete", "r").returncode == 0


def test_a_name_is_given_once(ring, lasting):
    assert "a ring 'r' is there already" in ring("run", "-n", "1", "--name", "r", "true").stderr
