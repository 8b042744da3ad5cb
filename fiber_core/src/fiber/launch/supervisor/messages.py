"""What a supervisor and the holders of its channels say to each other."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from fiber.model import Device, JobSpec, JobStatus

__all__ = [
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


@attrs.frozen(kw_only=True)
class SupervisorOptions:
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


@attrs.frozen(kw_only=True)
class Request:
    """Something asked of a supervisor; each gets one :class:`Reply` with its number."""

    #: unique among the requests on its channel
    number: int


@attrs.frozen(kw_only=True)
class Submit(Request):
    """Start a job."""

    #: the job
    spec: JobSpec
    #: the submitter's environment, before the spec's changes
    environ: Mapping[str, str] = attrs.field(repr=False)
    #: the submitter's working directory, for a spec that names none
    cwd: str


@attrs.frozen(kw_only=True)
class Signal(Request):
    """Send a signal; processes that have ended are no error."""

    #: whose
    job_id: str
    #: one of its processes; None for all
    index: int | None
    #: the signal
    signum: int
    #: True for the whole process group, False for the process alone
    group: bool = False


@attrs.frozen(kw_only=True)
class Terminate(Request):
    """SIGTERM to a job's processes, SIGKILL to their groups after ``grace`` seconds."""

    #: whose
    job_id: str
    #: seconds between the two
    grace: float


@attrs.frozen(kw_only=True)
class Kill(Request):
    """SIGKILL to a job's process groups."""

    #: whose
    job_id: str


@attrs.frozen(kw_only=True)
class Query(Request):
    """Ask for the statuses of jobs; :attr:`Done.statuses` has those that are known."""

    #: which; None for all of this channel
    job_ids: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class Preload(Request):
    """Import more modules before the next fork; :attr:`Done.words` has the failures."""

    #: their names
    modules: tuple[str, ...]


@attrs.frozen(kw_only=True)
class Devices(Request):
    """The devices of this host of some kinds, with the providers that know their environment."""

    #: all devices of these kinds
    devices: tuple[Device, ...]
    #: pickled providers by kind, unpickled in the children that get devices and nowhere else
    providers: Mapping[str, bytes] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class EndAll(Request):
    """Kill all jobs of this channel; the reply comes once they have ended."""


@attrs.frozen(kw_only=True)
class Shutdown(Request):
    """Kill all jobs, reply, and end."""


@attrs.frozen
class Ping:
    """Asks for a sign of life."""


@attrs.frozen(kw_only=True)
class Reply:
    """Answers the request of the same number."""

    #: the request's
    number: int


@attrs.frozen(kw_only=True)
class Accepted(Reply):
    """A job was taken on."""

    #: its id
    job_id: str
    #: its processes; none yet while it waits for a device
    pids: tuple[int, ...] = ()
    #: sentences that the submitter's user should see
    warnings: tuple[str, ...] = ()


class Why(enum.Enum):
    """What kind of refusal it is."""

    #: the job cannot be started
    SUBMIT = "submit"
    #: devices of these kinds were never offered, see :class:`Devices`; ``words`` has the kinds
    DEVICES = "devices"
    #: the request makes no sense
    REQUEST = "request"


@attrs.frozen(kw_only=True)
class Refused(Reply):
    """A request was not carried out."""

    #: the kind
    why: Why
    #: the system's own words
    words: str


@attrs.frozen(kw_only=True)
class Done(Reply):
    """A request was carried out."""

    #: for :class:`Query`
    statuses: Mapping[str, JobStatus] = attrs.field(factory=dict)
    #: for :class:`Preload`: failures by module
    words: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class Hello:
    """A supervisor is up."""

    #: its process id; another one than was started where it is detached
    pid: int
    #: modules that could not be imported, and why
    failures: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Pong:
    """A sign of life."""


@attrs.frozen(kw_only=True)
class StatusChanged:
    """A job of this channel changed."""

    #: which
    job_id: str
    #: its present status
    status: JobStatus


@attrs.frozen(kw_only=True)
class Notice:
    """Something that people should know."""

    #: one sentence
    words: str


@attrs.frozen
class Leaving:
    """The last message: it ends by itself, requests without a reply were not carried out."""
