"""Processes of :mod:`ssh_masters` for tests, and what is left of them on hosts."""

import json
from pathlib import Path
from typing import Any

import ssh_masters
import waiting
from running import Program
from ssh_hosts import SshWorld

#: FIBER_LEASE of these programs, in seconds
LEASE = 6.0


class Master(Program):
    """A master on this machine that uses the hosts.

    Args:
        world: the hosts.
        words: its arguments.
        cwd: where it runs.
        environ: further settings.
    """

    def __init__(self, world: SshWorld, *words: str, cwd: Path, **environ: str) -> None:
        given = {**world.environ(slots=2), "FIBER_BACKEND": "ssh", "FIBER_LEASE": str(LEASE)}
        super().__init__(cwd, ssh_masters.__file__, *words, environ={**given, **environ})

    def up(self) -> list[tuple[str, int]]:
        """Hosts and pids of the workers."""
        word, _, rest = self.line().partition(" ")
        assert word == "up"
        return [(host, pid) for host, pid in json.loads(rest)]

    def end(self) -> Any:
        """Its result, once it has ended."""
        found = json.loads(self.line())
        assert self.process.wait(60) == 0
        return found


def left_on(world: SshWorld, seconds: float) -> list[str]:
    """Processes left on hosts: waits until there is none, for so many seconds at most."""
    return waiting.left(world.jobs, seconds, pause=0.05)
