"""Witness: asks a platform about jobs by other means than the backend."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

    from fiber.model import Job

#: characters of a command line that are shown
_SHOWN = 120
#: environment variable of each job of the kit: the job's name
JOB_VARIABLE = "KIT_JOB"
#: environment variable of each job of the kit: its run
RUN_VARIABLE = "KIT_RUN"


class Witness:
    """Access to a platform by its own tools: an engine's command, a list of processes.

    A plugin's tests subclass it and return an instance from the fixture ``witness``. Tests that need
    a method that is not overridden are skipped.
    """

    def is_running(self, job: Job) -> bool:
        """Return True where a process of the job is alive."""
        raise NotImplementedError

    def left(self, run_id: str) -> Sequence[str]:
        """List what exists of a run: a sentence for each process, container or file, ended ones too."""
        raise NotImplementedError

    def kill(self, job: Job) -> None:
        """End the job's processes without the backend: ``kill -9``, or kill its container."""
        raise NotImplementedError

    def suspend(self, job: Job) -> None:
        """Stop the job by the platform's own tool, such as a freeze of its container.

        Override it where the platform does not notice a program that stops itself by SIGSTOP.
        """
        raise NotImplementedError

    def calls(self) -> int:
        """Return how many requests backends have sent to the engine so far."""
        raise NotImplementedError

    def cut_events(self) -> None:
        """Break the backend's connection for events; it may make a new one."""
        raise NotImplementedError

    def lost_host(self) -> AbstractContextManager[object]:
        """Place jobs on a lost host in the ``with`` block: it starts none and confirms no end.

        For example a node without power that its cluster still takes for ready. The backend must
        report the host of such a job while it is pending.
        """
        raise NotImplementedError

    def go_away(self) -> None:
        """Make the platform unavailable: stop the engine, or cut the connection to its API.

        Its jobs may end or go on.
        """
        raise NotImplementedError

    def come_back(self) -> None:
        """Make the platform available again."""
        raise NotImplementedError

    def can(self, name: str) -> bool:
        """Return True where a method is overridden."""
        return getattr(type(self), name) is not getattr(Witness, name)


class HostWitness(Witness):
    """Witness that finds jobs among this host's processes by the variables that the kit sets.

    It sees every process that this user may inspect, also inside containers of this host.
    """

    #: timeout in seconds of the wait for a started process to execute its program
    patience: float = 30.0

    def is_running(self, job: Job) -> bool:
        """Return True where a process has the job's name in its environment."""
        return bool(_processes(JOB_VARIABLE, job.name))

    def left(self, run_id: str) -> Sequence[str]:
        """List the processes of a run."""
        return [_described(process) for process in _processes(RUN_VARIABLE, run_id)]

    def kill(self, job: Job) -> None:
        """Send SIGKILL to all processes of the job.

        Raises:
            LookupError: no process of the job is seen here.
        """
        until = time.monotonic() + self.patience
        # a forked process has the job's environment once it executes the job's program
        while not (found := _processes(JOB_VARIABLE, job.name)):
            if time.monotonic() > until:
                msg = (
                    f"the witness found no process of {job.name} to kill on this host within "
                    f"{self.patience:g} s; if the backend reported RUNNING, that is too early: "
                    f"RUNNING means that the program was started"
                )
                raise LookupError(msg)
            time.sleep(0.02)
        for process in found:
            # one that has ended meanwhile needs no signal
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _described(process: psutil.Process) -> str:
    import psutil

    try:
        words = " ".join(process.cmdline())
    except psutil.Error:
        words = "ended meanwhile"
    return f"process {process.pid}: {words[:_SHOWN]}"


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
            # it has ended, or belongs to another user
            continue
    return found
