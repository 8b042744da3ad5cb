"""The command ``fiber ring`` in subprocesses, on the backend that the environment names."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from commands import ran
from waiting import PATIENCE, until


class RingCommand:
    """Runs ``fiber ring`` with an environment.

    Args:
        environ: of the command.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command; returns the process, whatever its exit code."""
        return ran(
            [sys.executable, "-m", "fiber.cli.main", "ring", *words],
            env=self._environ,
            stdin=subprocess.DEVNULL,
        )

    def __call__(self, *words: str) -> str:
        """Run the command, which must succeed; returns its standard output."""
        done = self.ask(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Return the status of the ring called r."""
        return dict(json.loads(self("status", "r", "--json")))

    def until(self, phase: str) -> dict[str, Any]:
        """Wait until that ring has a phase; returns its status."""
        deadline = time.monotonic() + 2 * PATIENCE
        while (found := self.status())["phase"] != phase:
            # another process's ring has no event here, and what it is instead tells why
            assert time.monotonic() < deadline, found
        return found


@contextlib.contextmanager
def ring_command(state: Path, **settings: str) -> Iterator[RingCommand]:
    """Provide the command with a state folder of its own, so that no other rings exist.

    Args:
        state: folder of the state.
        settings: variables on top of this process's environment.
    """
    # pytest's own folders have names too long for a socket
    with tempfile.TemporaryDirectory(prefix="fc-") as runs:
        own = {"XDG_RUNTIME_DIR": runs, "XDG_STATE_HOME": str(state / "state")}
        yield RingCommand({**os.environ, **settings, **own})


def check_lifecycle(
    ring: RingCommand, backend: str, are_there: Callable[[], bool], are_gone: Callable[[], bool]
) -> None:
    """Start a detached ring of two, suspend, resume, inspect and delete it.

    Args:
        ring: the command.
        backend: the backend's name.
        are_there: True if the platform has both jobs.
        are_gone: True once it has neither; waits a while.
    """
    ring("run", "-d", "-n", "2", "--name", "r", "sh", "-c", 'echo "up $RANK"; sleep 1000')
    assert ring.until("running")["backend"] == backend
    assert are_there()
    ring("suspend", "r")
    ring.until("suspended")
    assert are_gone()
    ring("resume", "r")
    ring.until("running")
    until(lambda: ring("logs", "r", "--rank", "1").count("] up 1") == 2)
    assert 'fiber_ring_up{name="r"} 2' in ring("status", "--metrics")
    described = ring("describe", "r")
    assert "Suspended" in described
    # ranks that run again have no end
    assert "ended with" not in described
    ring("delete", "r")
    assert are_gone()


def check_failed_rank(ring: RingCommand) -> None:
    """Run a ring with a failing rank: exit code, rank and output must be reported."""
    # the other rank is ended with it, whether or not it has said anything by then
    script = 'echo "I am $RANK"; [ "$RANK" = 1 ] && exit 3; sleep 1000'
    done = ring.ask("run", "-n", "2", "--name", "r", "sh", "-c", script)

    assert done.returncode == 3, done.stderr
    assert "I am 1" in {line.split("] ")[1] for line in done.stdout.splitlines()}
    assert "rank 1 on" in done.stderr
    status = ring.status()
    assert (status["phase"], status["codes"]["1"]) == ("failed", 3)
    assert status["failure"]["rank"] == 1
    assert ring("logs", "r", "--rank", "1").endswith("] I am 1\n")
    assert "is Failed: EXIT(3)" in ring("describe", "r")
    ring("delete", "r")
    assert "no ring is called 'r'" in ring.ask("status", "r").stderr


def kill_owner(ring: RingCommand, state: Path) -> None:
    """Kill the owner of a running ring, which has failed then.

    Args:
        ring: the command.
        state: the user's state folder.
    """
    ring.until("running")
    record = json.loads((state / "fiber/rings/r/ring.json").read_text())
    owner = psutil.Process(record["pid"])
    owner.kill()
    psutil.wait_procs([owner], PATIENCE)
    assert ring.until("failed")["failure"]["reason"] == "OwnerLost"
