"""Jobs: memory and devices, specification, status and reasons, capabilities of backends."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from fiber._base import values
from fiber._base.light_values import DocumentedEnum

_FACTORS = {
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY = r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[a-zA-Z]{0,2}|[eE][+-]?\d{1,2})"
_MEBI = 2**20


def megabytes(value: int | str) -> int:
    """Read an amount of memory in MB (2**20 bytes), rounded up.

    Args:
        value: a positive whole number of MB, or a Kubernetes quantity with its unit: ``"4Gi"``,
            ``"512Mi"``, ``"2G"``, ``"1.5e9"``.

    Raises:
        TypeError: neither a whole number nor a text.
        ValueError: not positive, or no quantity; the text says what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        msg = f"memory must be MB as a whole number or a quantity such as '4Gi', got {value!r}"
        raise TypeError(msg)
    if isinstance(value, int):
        if value <= 0:
            msg = f"memory must be positive, got {value!r}"
            raise ValueError(msg)
        return value
    match = re.fullmatch(_QUANTITY, value.strip())
    if match is None:
        raise ValueError(_wrong(value))
    suffix = match["suffix"]
    if suffix == "":
        msg = (
            f"memory {value!r} has no unit: write the number {value.strip()} itself for MB, "
            f"or a unit as in '{value.strip()}Mi'"
        )
        raise ValueError(msg)
    if suffix == "m":
        # Docker reads it as mega, Kubernetes as a thousandth
        number = match["number"]
        msg = f"memory {value!r} counts thousandths of a byte: write '{number}Mi'"
        raise ValueError(msg)
    from decimal import Decimal

    if suffix[0] in "eE" and len(suffix) > 1 and suffix != "Ei":
        size = Decimal(match["number"] + suffix) if suffix[1] in "+-0123456789" else None
    else:
        factor = _FACTORS.get(suffix)
        size = None if factor is None else Decimal(match["number"]) * factor
    if size is None:
        raise ValueError(_wrong(value))
    if size <= 0:
        msg = f"memory must be positive, got {value!r}"
        raise ValueError(msg)
    return math.ceil(size / _MEBI)


def _wrong(value: str) -> str:
    return (
        f"memory {value!r} is no quantity: allowed are a whole number of MB, or a text of a number "
        f"and one of {', '.join(_FACTORS)}"
    )


_EMPTY: Mapping[str, int] = MappingProxyType({})


def _freeze(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(counts)


def _positive_or_none(_: Any, attribute: values.Field, value: float | None) -> None:
    if value is not None and not value > 0:
        msg = f"{attribute.name} must be positive, got {value!r}"
        raise ValueError(msg)


def _counts(_: Any, attribute: values.Field, value: Mapping[str, int]) -> None:
    for kind, count in value.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            msg = f"{attribute.name}[{kind!r}] must be a whole number of devices, got {count!r}"
            raise ValueError(msg)


@values.frozen(kw_only=True)
class ResourceRequest:
    """Resources requested for one job; None or an absent kind: the platform's default."""

    #: CPUs, fractions allowed
    cpu: float | None = values.field(default=None, validator=_positive_or_none)
    #: memory in MB (2**20 bytes)
    memory: int | None = values.field(default=None, validator=_positive_or_none)
    #: devices by kind, for example ``{"gpu": 2}``; kinds are those of the resource providers
    devices: Mapping[str, int] = values.field(factory=dict, converter=_freeze, validator=_counts)

    @property
    def is_empty(self) -> bool:
        """True where no resource is requested."""
        return self.cpu is None and self.memory is None and not any(self.devices.values())


@values.frozen(kw_only=True)
class Device:
    """Device that a provider's probe found on a host."""

    #: the provider's kind, for example "gpu"
    kind: str
    #: identifier in the device's own software (an NVIDIA UUID or index)
    id: str
    #: number on its host, from 0; parts of one partitioned device share it
    index: int
    #: model name for people
    name: str = ""
    #: memory in MB, where it has any
    memory: int | None = None


@values.frozen(kw_only=True)
class Allocation:
    """Devices granted to one job until it ends."""

    #: the job they are granted to
    job_id: str
    #: granted devices, ordered by kind and index
    devices: tuple[Device, ...] = ()

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """The granted devices of one kind."""
        return tuple(device for device in self.devices if device.kind == kind)


class JobState(enum.Enum, metaclass=DocumentedEnum):
    """State of a job or one of its processes; states only move forward, save SUSPENDED."""

    #: accepted by the platform, not running yet; see ``is_starting`` of a job's status
    PENDING = "pending"
    #: its program was started, which is more than that a host was found for it
    RUNNING = "running"
    #: alive and stopped; may run again. By a signal where the reason is ``SIGNAL``: a pool replaces
    #: such a worker after its lease. Else by the platform on request, as by ``docker pause``: a
    #: pool waits until it goes on
    SUSPENDED = "suspended"
    #: the platform was asked and does not know; proves no death
    UNKNOWN = "unknown"
    #: ended with exit code 0
    SUCCEEDED = "succeeded"
    #: ended in any other way
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """True for states that are never left."""
        return self in (JobState.SUCCEEDED, JobState.FAILED)


class ReasonKind(enum.Enum, metaclass=DocumentedEnum):
    """Kind of reason for a job's or process's state."""

    #: it called exit, ``number`` is the code
    EXIT = "exit"
    #: a signal ended it, ``number`` is the signal
    SIGNAL = "signal"
    #: proven out of memory: an engine's word or a cgroup of ours
    OOM = "oom"
    #: the platform removed it from its node
    EVICTED = "evicted"
    #: replaced by a job of higher priority
    PREEMPTED = "preempted"
    #: it took longer than its platform lets a job run
    TIME_LIMIT = "time_limit"
    #: ended by somebody with the platform's own tool, or by its administrator
    CANCELLED = "cancelled"
    #: the image cannot be pulled or started
    IMAGE = "image"
    #: no node can run it
    UNSCHEDULABLE = "unschedulable"
    #: its node or supervisor was lost with it
    NODE_LOST = "node_lost"
    #: silent for longer than its lease
    LEASE = "lease"
    #: it could not be started at all (no such program, no permission)
    START = "start"
    #: ended for an unknown reason
    UNKNOWN = "unknown"


@values.frozen
class Reason:
    """A reason with its number where it has one: ``EXIT(7)``, ``SIGNAL(9)``, ``OOM``."""

    #: what happened
    kind: ReasonKind
    #: exit code or signal number
    number: int | None = None

    @property
    def counts_as_attempt(self) -> bool:
        """True where the work itself may be to blame, False where the platform is.

        A time limit counts: work that takes longer than any job may would else be begun for ever.
        """
        return self.kind not in (
            ReasonKind.EVICTED,
            ReasonKind.PREEMPTED,
            ReasonKind.CANCELLED,
            ReasonKind.NODE_LOST,
            ReasonKind.LEASE,
        )

    def __str__(self) -> str:
        name = self.kind.name
        return name if self.number is None else f"{name}({self.number})"


@values.frozen(kw_only=True)
class ProcessStatus:
    """Status of one of the processes that a job's supervisor forked."""

    #: position within the job, from 0
    index: int
    #: its state
    state: JobState
    #: process id on its host, once it has one
    pid: int | None = None
    #: its reason, for terminal and suspended states
    reason: Reason | None = None
    #: exit code, or minus the signal number, once ended
    exit_code: int | None = None
    #: one sentence for people, the platform's own words where there are any
    message: str = ""
    #: the last lines it wrote
    log_tail: tuple[str, ...] = ()
    #: most resident memory it had, in bytes
    peak_memory: int | None = None
    #: with a terminal state: what it noted for its parent, see ``fiber._agent.rundir``; None where that is
    #: not known
    noted: bytes | None = None


@values.frozen(kw_only=True)
class JobStatus:
    """Status of a job, as observed at one time."""

    #: its state
    state: JobState
    #: its reason, for states that have one
    reason: Reason | None = None
    #: exit code of the job's first process, or minus its signal, once ended
    exit_code: int | None = None
    #: one sentence for people, the platform's own words where there are any
    message: str = ""
    #: host that runs it, once known
    host: str | None = None
    #: one entry a process, where the supervisor reports them
    processes: tuple[ProcessStatus, ...] = ()
    #: True where the platform has begun to remove it: it still runs, and should get no new work.
    #: The reason and message that stand beside it count for the end that follows
    draining: bool = False
    #: with ``draining``: seconds until the platform ends it, where it knows, from when this number is
    #: told first; they count in place of those in the job's variable ``FIBER_GRACE``
    seconds_left: float | None = None
    #: with PENDING: a host was found, and prepares to start the program: it fetches an image, mounts
    #: a volume, runs a prolog. The message says what it is at. A job that waits for a place is not
    #: starting, and of neither is the time counted against ``start_timeout``
    is_starting: bool = False


@values.frozen(kw_only=True)
class Volume:
    """Storage mounted into a job: ``name`` or an absolute host path, at ``path``."""

    #: name of a volume or claim, or an absolute path on the host
    source: str
    #: where the job sees it
    path: str
    #: True to forbid writing
    read_only: bool = False


@values.frozen(kw_only=True)
class Gang:
    """Group of jobs that are of use only together.

    A hint for the platform's scheduler, so that jobs of one gang do not take the room that another
    gang lacks. The submitter itself ends them all where they do not all start, so that they are all
    or none on every platform. Backends with a ``submit_many`` of their own get the whole gang in one
    call.
    """

    #: its name, unique in the run
    name: str
    #: how many jobs it has
    size: int = values.field(validator=values.ge(1))
    #: seconds within which all of them are to run
    timeout: float


def _words(argv: Iterable[str]) -> tuple[str, ...]:
    return tuple(argv)


@values.frozen(kw_only=True)
class JobSpec:
    """Specification of a job, as passed to :meth:`fiber.abc.Backend.submit`."""

    #: the run it belongs to, eight hexadecimal digits
    run_id: str
    #: a name for people; backends make a valid and unique one of it
    name: str
    #: the program and its arguments, always usable
    argv: tuple[str, ...] = values.field(converter=_words)
    #: ``module:function`` equivalent to argv in a Python that has fiber; called in a forked
    #: child as ``function(private, index) -> exit code`` by backends that fork, else unused
    entry: str | None = None
    #: environment on top of what the platform gives (local jobs inherit the submitter's)
    env: Mapping[str, str] = values.field(factory=dict)
    #: names to remove from an inherited environment
    unset_env: frozenset[str] = frozenset()
    #: working directory, or the platform's own
    cwd: str | None = None
    #: run secret and first instructions; delivered privately, never in argv, labels or logs.
    #: An argv job finds it where ``FIBER_BOOTSTRAP`` says: ``fd:<n>``, ``stdin``,
    #: ``stdin:<length>``, ``file:<path>`` or ``sealed:<path>:<text>``.
    private: bytes | None = values.field(default=None, repr=False)
    #: resources that it needs
    resources: ResourceRequest = values.field(factory=ResourceRequest)
    #: image, where the backend runs images
    image: str | None = None
    #: processes that the job's supervisor forks, each calling ``entry`` with its index
    processes: int = values.field(default=1, validator=values.ge(1))
    #: mounted storage
    volumes: tuple[Volume, ...] = ()
    #: labels for people and sweeps
    labels: Mapping[str, str] = values.field(factory=dict)
    #: group that it belongs to; None for a job that is of use by itself
    gang: Gang | None = None
    #: True for a job that outlives the program that submitted it (``fiber run`` without -a)
    detached: bool = False
    #: True for a job that SIGINT to the submitter's process group, as of Ctrl-C on its terminal,
    #: interrupts too, where the backend forks; elsewhere the core passes an interrupt on
    foreground: bool = False
    #: True to prefix each line of output with the job's name on the parent's terminal
    log_prefix: bool = False
    #: URLs that the submitting process listens at; for backends that forward to them
    urls: tuple[str, ...] = ()
    #: identity of its processes within the run; None for programs other than Fiber's workers
    ident: str | None = None
    #: hosts that were lost lately: others are better, where the platform has any
    avoid_hosts: tuple[str, ...] = ()


@values.frozen(kw_only=True)
class Job:
    """A submitted job: picklable, plain data, no SDK object."""

    #: unique on its backend
    id: str
    #: name in its specification
    name: str
    #: the run it belongs to
    run_id: str
    #: canonical name of the backend that runs it
    backend: str
    #: data by which the backend finds it again
    data: Mapping[str, Any] = values.field(factory=dict, hash=False)
    #: program and arguments, for people; :meth:`~fiber.abc.Backend.list` fills it where it can
    argv: tuple[str, ...] = values.field(default=(), converter=_words, eq=False)
    #: when it was accepted, in seconds since the epoch; as ``argv``
    submitted: float | None = values.field(default=None, eq=False)


@values.frozen(kw_only=True)
class Capabilities:
    """Features of a backend; use of one that is not declared raises CapabilityError early.

    The core refuses jobs that need one, before they are submitted.
    """

    #: ``logs`` returns lines
    logs: bool = False
    #: ``logs(follow=True)`` follows
    follow_logs: bool = False
    #: output of jobs that are not detached reaches their submitter's stdout and stderr by itself
    output: bool = False
    #: ``exec`` runs a program beside a job
    exec: bool = False
    #: ``copy`` moves files
    copy: bool = False
    #: jobs run in images
    images: bool = False
    #: ``volumes`` of a spec are mounted
    volumes: bool = False
    #: ``cpu`` of a request is enforced; else it is in the spec all the same, for the choice of a place
    cpu_limit: bool = False
    #: ``memory`` of a request is enforced; else it is in the spec all the same, as ``cpu`` is
    memory_limit: bool = False
    #: kinds in ``devices`` of a request are granted
    devices: bool = False
    #: ``detached`` jobs outlive their submitter
    detached: bool = False
    #: ``entry`` is called in a forked child; more than one process a job works
    fork: bool = False
    #: SUSPENDED is noticed and reported
    suspend: bool = False
    #: ``open_stream`` opens byte streams into jobs
    streams: bool = False
    #: a job that the platform removes gets SIGTERM, and SIGKILL after the seconds in its variable
    #: ``FIBER_GRACE``: its worker returns tasks that it has not begun, and finishes the rest
    drain: bool = False
    #: jobs run on the submitter's own host and see its file system
    same_host: bool = False

    def names(self) -> tuple[str, ...]:
        """Return the names of the declared features, sorted."""
        return tuple(sorted(k for k, v in values.asdict(self).items() if v))


@values.frozen(kw_only=True)
class Capacity:
    """Capacity of the platform for jobs, now; None where it is unknown."""

    #: CPUs in all
    cpus: float | None = None
    #: memory in MB in all
    memory: int | None = None
    #: free devices by kind
    devices: Mapping[str, int] = values.field(factory=dict)


class ReachKind(enum.Enum, metaclass=DocumentedEnum):
    """Kind of connection between a job and its parent."""

    #: the job dials its parent's listener
    DIRECT = "direct"
    #: the job's side cannot dial: the backend forwards a port there, or opens streams into the job
    #: over which the core carries connections
    REVERSED = "reversed"
    #: no connection is possible
    NONE = "none"


@values.frozen
class Reach:
    """Kind of connection between a job and its parent, with the reason."""

    #: kind of connection
    kind: ReachKind
    #: reason, one sentence
    why: str = ""


@values.frozen(kw_only=True)
class Check:
    """Result of a check: a line of ``fiber doctor``."""

    #: what was checked
    name: str
    #: True where it is as it should be
    ok: bool
    #: what was found
    detail: str = ""
    #: command or sentence that fixes it
    fix: str = ""
    #: capabilities that the backend declares but that the platform's configuration rules out
    missing: tuple[str, ...] = ()


@values.frozen(kw_only=True)
class Attempt:
    """Death of a worker while a task was alone on it."""

    #: name of the worker
    worker: str
    #: host it ran on
    host: str
    #: process id there, where known
    pid: int | None
    #: reason of its death
    reason: Reason
    #: one sentence for people
    message: str = ""
    #: the last lines it wrote
    log_tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        worker = f"{self.worker} (pid {self.pid} on {self.host})"
        text = f"{worker}: {self.message or self.reason}"
        if self.log_tail:
            text += "".join(f"\n      {line}" for line in self.log_tail)
        return text
