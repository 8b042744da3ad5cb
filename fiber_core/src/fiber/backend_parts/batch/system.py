"""Interface of a batch system: :class:`BatchSystem`, and its values."""

from __future__ import annotations

import abc
import enum
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fiber._base import values
from fiber.exceptions import BackendUnavailableError, CapabilityError
from fiber.model import Capacity, Check, JobSpec, Reason

__all__ = ["READY", "Batch", "BatchSystem", "Done", "Phase", "Row", "call", "script"]

#: first bytes of a stream into a job, from the command that opens it
READY = b"\x06fiber\n"
_PATH = "/usr/local/bin:/usr/bin:/bin"


class Phase(enum.Enum):
    """Phase of a job, as its batch system sees it."""

    #: in the queue
    WAITING = "waiting"
    #: it has a node; its program may not have been started yet
    PLACED = "placed"
    #: stopped by the system's own tool
    SUSPENDED = "suspended"
    #: told to end, by whomever; some of it may still run
    ENDING = "ending"
    #: over
    ENDED = "ended"


@values.frozen(kw_only=True)
class Row:
    """Row of a batch system's list of jobs."""

    #: the job's id
    id: str
    #: where it is
    phase: Phase
    #: the run that it belongs to, by the name it was submitted with
    run_id: str
    #: its node, once it has one
    host: str | None = None
    #: the system's own words: why it waits, or why it ended
    message: str = ""
    #: exit code of its script, or minus the number of a signal, once it has ended
    exit_code: int | None = None
    #: why it ended, where that was not its program's doing: ``TIME_LIMIT``, ``PREEMPTED`` …
    reason: Reason | None = None
    #: seconds until the system ends it, where there is a limit
    seconds_left: float | None = None


@values.frozen(kw_only=True)
class Batch:
    """Jobs that are alike for a batch system, submitted together."""

    #: name to submit them with; the same for all jobs of a run that end with its program
    name: str
    #: text of the job script
    script: str
    #: their specifications; of each but its resources only the script has to be known
    specs: tuple[JobSpec, ...]
    #: file for what the system itself has to say of them
    output: Path

    @property
    def spec(self) -> JobSpec:
        """Spec of one of the jobs, for what they have in common."""
        return self.specs[0]


class BatchSystem(abc.ABC):
    """Batch system, used by its commands; thread-safe.

    A job is known by the id that :meth:`submit` returns. Where the system cannot be asked, all
    methods raise :class:`~fiber.exceptions.BackendUnavailableError`.
    """

    #: the system's name for people
    title: str
    #: variable that has a job's number from 0 in the environment of jobs submitted together
    index_variable: str = ""
    #: variable that has the node's name, as the system has it, in the environment of jobs: that which a
    #: job may be kept away from, and not always its host's
    host_variable: str = ""
    #: most jobs that :meth:`submit` takes at once; more than one needs ``index_variable``
    most: int = 1

    @abc.abstractmethod
    def submit(self, batch: Batch) -> Sequence[str]:
        """Submit jobs, all or none; return their ids in order.

        They must not be run a second time by the system itself.

        Raises:
            SubmitError: they were refused; the text has the system's own words.
        """

    @abc.abstractmethod
    def rows(self) -> Sequence[Row]:
        """List all jobs of this user that Fiber submitted, with one query."""

    @abc.abstractmethod
    def signal(self, ids: Sequence[str], signum: int) -> None:
        """Send a signal to the scripts of jobs that run; jobs that wait leave the queue.

        Jobs that have ended are no error. SIGKILL ends all that belongs to a job at once.
        """

    def end(self, ids: Sequence[str]) -> None:
        """End jobs that SIGKILL has not ended, by whatever else there is."""
        self.signal(ids, signal.SIGKILL)

    @abc.abstractmethod
    def guard(self, name: str) -> Sequence[Sequence[str]]:
        """Commands that end all jobs submitted with a name: what waits first, SIGKILL by the last one."""

    @abc.abstractmethod
    def capacity(self) -> Capacity:
        """The capacity for jobs."""

    def cluster(self) -> str:
        """Name of the cluster, which tells apart those that share a home folder; a folder's name."""
        return "default"

    def grace(self) -> float | None:
        """Seconds from SIGTERM to SIGKILL of jobs whose place is taken away; None: unknown."""
        return None

    def beside(self, job_id: str, argv: Sequence[str], *, tty: bool = False) -> Sequence[str]:
        """Command that runs a program on a job's node, within its share, with our streams."""
        raise CapabilityError(self.title, "exec", "exec")

    def stream(self, job_id: str, argv: Sequence[str]) -> Sequence[str]:
        """Like :meth:`beside`, but bytes of the streams arrive unchanged and at once.

        It writes ``READY`` before anything else once they do.
        """
        raise CapabilityError(self.title, "streams", "open_stream")

    def checks(self) -> Iterable[Check]:
        """Checks of the system for ``fiber doctor``."""
        return ()


@values.frozen
class Done:
    """A command that ended."""

    #: its exit code
    code: int
    #: what it wrote to standard output
    output: str
    #: what it wrote to standard error, without the last newline
    errors: str


def call(
    argv: Sequence[str],
    *,
    title: str,
    timeout: float,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run a command of a batch system.

    Args:
        argv: program and arguments.
        title: the system's name, for errors.
        timeout: seconds for its answer.
        stdin: its standard input.
        env: its environment; this process's where it is None.

    Raises:
        BackendUnavailableError: it is not installed here, or did not answer in time.
    """
    program = shutil.which(argv[0])
    if program is None:
        msg = (
            f"there is no {argv[0]} on PATH: run this program on a machine where {title}'s commands "
            "are, such as the cluster's login node"
        )
        raise BackendUnavailableError(msg)
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout,
            env=None if env is None else dict(env),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        msg = f"{title} did not answer {argv[0]} within {timeout:g} s"
        raise BackendUnavailableError(msg) from error
    except OSError as error:
        msg = f"{argv[0]} cannot be run: {error}"
        raise BackendUnavailableError(msg) from error
    output, errors = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    return Done(done.returncode, output, errors.strip())


def script(folder: Path, keys: str, index: str, *, python: str, prologue: str = "") -> str:
    """Text of a job script.

    Args:
        folder: the run's folder, as the nodes see it.
        keys: beginning of the jobs' keys, which end with their numbers.
        index: name of the variable with a job's number; empty for number 0.
        python: the node's Python.
        prologue: lines of shell that run before the job, in a login shell.
    """
    number = f"${{{index}:-0}}" if index else "0"
    own = shlex.quote(str(Path(python).parent)) + ":" if "/" in python else ""
    shell = "#!/bin/bash -l" if prologue else "#!/bin/sh"
    return (
        f"{shell}\n"
        f"folder={shlex.quote(str(folder))}\n"
        f'key="{keys}{number}"\n'
        'exec >>"$folder/logs/$key" 2>&1 </dev/null\n'
        f'PATH={own}"${{PATH:-{_PATH}}}"\n'
        "export PATH\n"
        f"{prologue}\n"
        f'exec {shlex.quote(python)} -I -S "$folder/node.py" "$folder" "$key"\n'
    )
