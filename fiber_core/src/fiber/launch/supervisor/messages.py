"""What a supervisor and the holders of its channels say to each other.

Messages are named tuples and no attrs classes: every program that starts a job defines them first,
and two dozen attrs classes take ten milliseconds of that.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from fiber.model import Device, JobSpec, JobStatus

__all__ = [
    "REPLIES",
    "Accepted",
    "Devices",
    "Done",
    "EndAll",
    "Hello",
    "Kill",
    "Leaving",
    "Notice",
    "Ping",
    "Pong",
    "Preload",
    "Query",
    "Refused",
    "Reply",
    "Request",
    "Shutdown",
    "Signal",
    "StatusChanged",
    "Submit",
    "SupervisorOptions",
    "Terminate",
    "Why",
]

_NOTHING: Mapping[str, str] = {}
_NO_STATUSES: Mapping[str, JobStatus] = {}


class SupervisorOptions(NamedTuple):
    """The first frame on a supervisor's first channel: what it shall be."""

    #: the run it serves
    run_id: str
    #: folder for logs and the journal
    run_directory: str
    #: the process whose death ends everything; None for detached jobs
    master: int | None
    #: host name that statuses carry
    host: str
    #: modules to import before the first fork
    preload: tuple[str, ...] = ()
    #: seconds after the end of the last job until it ends by itself; None: never
    idle_exit: float | None = None
    #: True: outlives its starter and ends after its jobs, output goes to log files only
    detached: bool = False
    #: True to remove the run directory when the master has died
    remove_directory: bool = False
    #: last lines of output that a process's status carries
    tail: int = 20
    #: True to keep what jobs write in the run directory
    keeps_logs: bool = True
    #: True to give forked processes a channel for jobs of their own
    offers_channels: bool = True


# -- requests: each has a number, unique on its channel, and gets one reply with that number -------


class Submit(NamedTuple):
    """Start a job."""

    #: of this request
    number: int
    #: the job
    spec: JobSpec
    #: the submitter's environment, before the spec's changes
    environ: Mapping[str, str]
    #: the submitter's working directory, for a spec that names none
    cwd: str

    def __repr__(self) -> str:
        # an environment is full of secrets
        return f"Submit(number={self.number}, spec={self.spec})"


class Signal(NamedTuple):
    """Send a signal; processes that have ended are no error."""

    #: of this request
    number: int
    #: whose
    job_id: str
    #: position of one of its processes; None for all
    process: int | None
    #: the signal
    signum: int
    #: True for the whole process group, False for the process alone
    group: bool = False


class Terminate(NamedTuple):
    """SIGTERM to a job's processes, SIGKILL to their groups after ``grace`` seconds."""

    #: of this request
    number: int
    #: whose
    job_id: str
    #: seconds between the two
    grace: float


class Kill(NamedTuple):
    """SIGKILL to a job's process groups."""

    #: of this request
    number: int
    #: whose
    job_id: str


class Query(NamedTuple):
    """Ask for the statuses of jobs; :attr:`Done.statuses` has those that are known."""

    #: of this request
    number: int
    #: which; None for all of this channel
    job_ids: tuple[str, ...] | None = None


class Preload(NamedTuple):
    """Import more modules before the next fork; :attr:`Done.words` has the failures."""

    #: of this request
    number: int
    #: their names
    modules: tuple[str, ...]


class Devices(NamedTuple):
    """The devices of this host of some kinds, with the providers that know their environment."""

    #: of this request
    number: int
    #: all devices of these kinds
    devices: tuple[Device, ...]
    #: pickled providers by kind, unpickled in the children that get devices and nowhere else
    providers: Mapping[str, bytes]


class EndAll(NamedTuple):
    """Kill all jobs of this channel; the reply comes once they have ended."""

    #: of this request
    number: int


class Shutdown(NamedTuple):
    """Kill all jobs, reply, and end."""

    #: of this request
    number: int


Request = Submit | Signal | Terminate | Kill | Query | Preload | Devices | EndAll | Shutdown


# -- replies ----------------------------------------------------------------------------------------


class Accepted(NamedTuple):
    """A job was taken on."""

    #: the request's
    number: int
    #: its id
    job_id: str
    #: its processes; none yet while it waits for a device
    pids: tuple[int, ...] = ()
    #: sentences that the submitter's user should see
    warnings: tuple[str, ...] = ()


class Why(enum.Enum):
    """What kind of refusal it is."""

    #: it cannot be done
    SUBMIT = "submit"
    #: devices of these kinds were never offered, see :class:`Devices`; ``words`` has the kinds
    DEVICES = "devices"


class Refused(NamedTuple):
    """A request was not carried out."""

    #: the request's
    number: int
    #: the kind
    why: Why
    #: the system's own words
    words: str


class Done(NamedTuple):
    """A request was carried out."""

    #: the request's
    number: int
    #: for :class:`Query`
    statuses: Mapping[str, JobStatus] = _NO_STATUSES
    #: for :class:`Preload`: failures by module
    words: Mapping[str, str] = _NOTHING


Reply = Accepted | Refused | Done
#: the classes of replies
REPLIES = (Accepted, Refused, Done)


# -- what is said unasked ---------------------------------------------------------------------------


class Ping(NamedTuple):
    """Asks for a sign of life."""


class Hello(NamedTuple):
    """A supervisor is up."""

    #: its process id; another one than was started where it is detached
    pid: int
    #: modules that could not be imported, and why
    failures: Mapping[str, str] = _NOTHING


class Pong(NamedTuple):
    """A sign of life."""


class StatusChanged(NamedTuple):
    """A job of this channel changed."""

    #: which
    job_id: str
    #: its present status
    status: JobStatus


class Notice(NamedTuple):
    """Something that people should know."""

    #: one sentence
    words: str


class Leaving(NamedTuple):
    """The last message: it ends by itself, requests without a reply were not carried out."""
