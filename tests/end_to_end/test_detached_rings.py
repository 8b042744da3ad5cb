"""``fiber ring run --detach``: a ring goes on without the command that began it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil
import pytest

pytestmark = pytest.mark.timeout(180)

PATIENCE = 60.0
COMMAND = [sys.executable, "-m", "fiber.cli.main", "ring"]
LASTING = 'echo "up $RANK, restarted $FIBER_RING_RESTARTS"; sleep 1000'


@pytest.fixture
def environ(tmp_path):
    # pytest's own folders have names too long for a socket
    folder = tempfile.mkdtemp(prefix="fd-")
    mark = {"TEST_RING_MARK": str(tmp_path)}
    yield {
        **os.environ,
        **mark,
        "XDG_RUNTIME_DIR": folder,
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    # a ring has failed before the last of its processes is gone
    psutil.wait_procs(marked(tmp_path), PATIENCE)
    assert marked(tmp_path) == []
    shutil.rmtree(folder)


@pytest.fixture
def ring(environ):
    def run(*words, check=True):
        # what is captured is complete when all have let go of it: nobody who stays may hold it
        done = subprocess.run(
            [*COMMAND, *words],
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture
def lasting(ring, tmp_path):
    """A ring of two, called 'r', left alone; its owner's process."""
    assert ring("run", "-d", "-n", "2", "--name", "r", "sh", "-c", LASTING).stdout == "r\n"
    owner = psutil.Process(record(tmp_path)["pid"])
    yield owner
    if owner.is_running():
        ring("delete", "r", check=False)
    psutil.wait_procs([owner], PATIENCE)


def record(tmp_path):
    return json.loads((tmp_path / "state/fiber/rings/r/ring.json").read_text())


def marked(mark):
    """Processes that belong to this test."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("TEST_RING_MARK") == str(mark):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def status(ring):
    return json.loads(ring("status", "r", "--json").stdout)


def until(ring, phase):
    deadline = time.monotonic() + PATIENCE
    while (found := status(ring))["phase"] != phase:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_it_is_looked_after_from_other_shells_until_it_is_deleted(ring, lasting, tmp_path):
    found = until(ring, "running")
    assert (found["up"], found["backend"]) == (2, "local")

    ring("suspend", "r")
    until(ring, "suspended")
    assert "is Suspended: RingSuspended" in ring("describe", "r").stdout
    ring("resume", "r")
    until(ring, "running")
    deadline = time.monotonic() + PATIENCE
    while len(ring("logs", "r").stdout.splitlines()) < 4:
        assert time.monotonic() < deadline
    assert ring("logs", "r", "--rank", "1").stdout.count("up 1, restarted 0") == 2

    ring("delete", "r")

    assert psutil.wait_procs([lasting], PATIENCE)[1] == []
    assert "no ring is called" in ring("status", "r", check=False).stderr


#: rank 1 fails once rank 0 has ended, which it would be made to do otherwise
ONE_FAILS = """
echo "bye $RANK"
if [ $RANK = 0 ]; then echo $$ > "$1.new"; mv "$1.new" "$1"; exit 0; fi
until [ -e "$1" ]; do sleep 0.05; done
while kill -0 $(cat "$1") 2>/dev/null; do sleep 0.05; done
exit 3
"""


def test_its_end_is_told_afterwards(ring, environ, tmp_path):
    pid = str(tmp_path / "rank-0")
    ring("run", "-d", "-n", "2", "--name", "r", "sh", "-c", ONE_FAILS, "sh", pid)

    # until it is over
    lines = ring("logs", "-f", "r").stdout.splitlines()

    assert sorted(line.split("] ")[1] for line in lines) == ["bye 0", "bye 1"]
    found = until(ring, "failed")
    assert found["codes"] == {"0": 0, "1": 3}
    described = ring("describe", "r").stdout
    assert "phase: failed" in described
    assert "is Failed: EXIT(3)" in described
    assert "ended with 3" in described
    metrics = ring("status", "--metrics").stdout
    assert "fiber_rings_created_total 1" in metrics
    assert 'fiber_ring_info{name="r",backend="local",phase="failed"} 1' in metrics
    ring("delete", "r")
    assert "fiber_rings_failed_total 1" in ring("status", "--metrics").stdout


def test_a_rank_that_dies_is_started_again_and_that_is_seen(ring, environ, tmp_path):
    words = ["run", "-d", "-n", "2", "--max-restarts", "1", "--name", "r", "sh", "-c"]
    once = 'echo "restarted $FIBER_RING_RESTARTS"; [ $FIBER_RING_RESTARTS = 1 ] || exit 4'

    ring(*words, once)

    assert until(ring, "succeeded")["restarts"] == 1
    assert ring("logs", "r").stdout.count("restarted 1") == 2
    assert "restart 1 of 1" in ring("describe", "r").stdout


def test_an_elastic_one_is_resized_and_those_that_are_there_go_on(ring, environ):
    words = ["-n", "2", "--min", "1", "--max", "3", "--elastic", "live", "--name", "r"]
    ring("run", "-d", *words, "sh", "-c", 'echo "began $RANK of $WORLD_SIZE"; sleep 1000')
    until(ring, "running")

    assert "cannot have 4 members" in ring("resize", "r", "4", check=False).stderr
    ring("resize", "r", "3")
    deadline = time.monotonic() + PATIENCE
    while "began 2 of 3" not in (said := ring("logs", "r").stdout):
        assert time.monotonic() < deadline, said

    assert len(said.splitlines()) == 3
    assert "MemberJoined" in ring("describe", "r").stdout
    assert status(ring)["changes"] == 1
    ring("delete", "r")


def test_when_its_owner_is_killed_its_members_end_and_it_has_failed(ring, lasting, tmp_path):
    until(ring, "running")

    lasting.send_signal(signal.SIGKILL)

    psutil.wait_procs([lasting], PATIENCE)
    assert until(ring, "failed")["failure"]["reason"] == "OwnerLost"
    deadline = time.monotonic() + PATIENCE
    while marked(tmp_path):
        assert time.monotonic() < deadline, marked(tmp_path)
        time.sleep(0.1)
    assert "r has ended" in ring("suspend", "r", check=False).stderr
    ring("delete", "r")


def test_what_cannot_be_started_is_an_error_here_and_leaves_nothing(ring):
    done = ring("run", "-d", "-n", "2", "--name", "r", "--framework", "caffe", "true", check=False)

    assert done.returncode != 0
    assert "r was not started: no framework 'caffe'" in done.stderr
    assert ring("status", "--json").stdout.strip() == "[]"
    # and its name is free
    ring("run", "-n", "1", "--name", "r", "true")
