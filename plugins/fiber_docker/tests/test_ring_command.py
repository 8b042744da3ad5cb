"""``fiber ring run --detach`` in containers: it goes on alone, and ends with its owner."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(300)

PATIENCE = 90.0
LEASE = 6.0


@pytest.fixture
def ring(engine, tmp_path):
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fd-") as runs:
        environ = {
            **os.environ,
            "FIBER_BACKEND": "docker",
            "FIBER_IMAGE": engine.image,
            "FIBER_LEASE": str(LEASE),
            "DOCKER_HOST": engine.url,
            "XDG_RUNTIME_DIR": runs,
            "XDG_STATE_HOME": str(tmp_path / "state"),
        }

        def run(*words):
            done = subprocess.run(
                [sys.executable, "-m", "fiber.cli.main", "ring", *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield run


def until(ring, phase):
    deadline = time.monotonic() + PATIENCE
    while (found := json.loads(ring("status", "r", "--json")))["phase"] != phase:
        assert time.monotonic() < deadline, found
        # another process's ring has no event here
        time.sleep(0.2)
    return found


def test_it_is_suspended_resumed_and_deleted_from_other_shells(engine, ring):
    ring("run", "-d", "-n", "2", "--name", "r", "sh", "-c", 'echo "up $RANK"; sleep 1000')
    assert until(ring, "running")["backend"] == "docker"
    assert len(engine.containers()) == 2

    ring("suspend", "r")
    until(ring, "suspended")
    assert engine.left(20) == []
    ring("resume", "r")
    until(ring, "running")
    deadline = time.monotonic() + PATIENCE
    while ring("logs", "r", "--rank", "1").count("] up 1") < 2:
        assert time.monotonic() < deadline
    assert 'fiber_ring_up{name="r"} 2' in ring("status", "--metrics")

    ring("delete", "r")
    assert engine.left(20) == []


def test_it_ends_within_the_lease_when_its_owner_is_killed(engine, ring, tmp_path):
    ring("run", "-d", "-n", "2", "--name", "r", "sleep", "1000")
    until(ring, "running")
    path = Path(tmp_path, "state", "fiber", "rings", "r", "ring.json")
    owner = psutil.Process(json.loads(path.read_text())["pid"])

    owner.send_signal(signal.SIGKILL)
    psutil.wait_procs([owner], 10)

    assert until(ring, "failed")["failure"]["reason"] == "OwnerLost"
    assert engine.left(LEASE + 20) == []
    ring("delete", "r")
