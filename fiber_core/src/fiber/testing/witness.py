"""How the kit asks a platform whether a job really runs, by other means than the backend."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

    from fiber.model import Job

__all__ = ["JOB_VARIABLE", "RUN_VARIABLE", "HostWitness", "Witness"]

#: environment variable of each job of the kit: the job's name
JOB_VARIABLE = "KIT_JOB"
#: environment variable of each job of the kit: its run
RUN_VARIABLE = "KIT_RUN"
#: seconds within which a process that was started executes its program, on the busiest of hosts
_PATIENCE = 30.0


class Witness:
    """The platform as its own tools see it: an engine's command, a list of processes.

    A plugin's tests subclass it and return one from the fixture ``witness``. A method that is not
    overridden is a question that cannot be asked here; the tests that ask it are skipped.
    """

    def is_running(self, job: Job) -> bool:
        """Whether a process of the job is alive."""
        raise NotImplementedError

    def left(self, run_id: str) -> Sequence[str]:
        """What there is of a run: a sentence for each process, container or file; ended ones too."""
        raise NotImplementedError

    def kill(self, job: Job) -> None:
        """End the job's processes as a stranger would: ``kill -9``, a container that is killed."""
        raise NotImplementedError

    def suspend(self, job: Job) -> None:
        """Stop the job as the platform's own tool does: a container that is frozen.

        Give it where a program that stops itself is nobody's news. Else the kit has programs do so.
        """
        raise NotImplementedError

    def calls(self) -> int:
        """How many requests backends have made of the engine so far."""
        raise NotImplementedError

    def cut_events(self) -> None:
        """Break the connection by which the backend hears of events; it may make a new one."""
        raise NotImplementedError

    def lost_host(self) -> AbstractContextManager[object]:
        """In the block, jobs are placed on a host that is lost: it starts none, and confirms no end.

        A node without power that its cluster still takes for ready, say. The backend tells the host of
        such a job while it is pending.
        """
        raise NotImplementedError

    def go_away(self) -> None:
        """Have the platform answer nobody: stop an engine, cut the way to its API.

        What runs there may end or go on.
        """
        raise NotImplementedError

    def come_back(self) -> None:
        """Have it answer again."""
        raise NotImplementedError

    def can(self, name: str) -> bool:
        """Whether a method is more than the one of this class."""
        return getattr(type(self), name) is not getattr(Witness, name)


class HostWitness(Witness):
    """Finds jobs among the processes of this host, by the environment that the kit gives them.

    It sees every process that this user may look at, those in containers of this host included.
    """

    def is_running(self, job: Job) -> bool:
        """Whether a process has the job's name in its environment."""
        return bool(_processes(JOB_VARIABLE, job.name))

    def left(self, run_id: str) -> Sequence[str]:
        """The processes of a run."""
        return [f"process {process.pid}" for process in _processes(RUN_VARIABLE, run_id)]

    def kill(self, job: Job) -> None:
        """SIGKILL to all of them.

        Raises:
            LookupError: no process of the job is seen here.
        """
        until = time.monotonic() + _PATIENCE
        # one that was forked has the job's environment once it executes the job's program
        while not (found := _processes(JOB_VARIABLE, job.name)):
            if time.monotonic() > until:
                msg = f"no process of {job} is seen on this host"
                raise LookupError(msg)
            time.sleep(0.02)
        for process in found:
            os.kill(process.pid, signal.SIGKILL)


def _processes(variable: str, value: str) -> list[psutil.Process]:
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(variable) == value
                and process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except (psutil.Error, OSError):
            # it ended while we looked, or belongs to somebody else
            continue
    return found
