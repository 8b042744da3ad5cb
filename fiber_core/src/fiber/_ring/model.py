"""Values that describe a ring: limits, durations, members, failures, conditions, status, and its error.

Also the counters of the rings that this process started, by outcome.
"""

from __future__ import annotations

import enum
import threading
from typing import Any

from fiber._base import values
from fiber.exceptions import FiberError
from fiber.model import ResourceRequest, Volume
from fiber.model.timing import Durations


class RingError(FiberError):
    """A ring failed; the text has the first failure's rank, host, reason and traceback.

    Where user code raised, that exception is its cause.
    """

    def __init__(self, message: str, *, failure: Failure) -> None:
        super().__init__(message)
        #: the first failure
        self.failure = failure

    def __str__(self) -> str:
        parts = [super().__str__()]
        if self.failure.log_tail:
            parts += [f"    {line}" for line in self.failure.log_tail]
        if self.failure.traceback:
            parts += ["", self.failure.traceback.rstrip()]
        return "\n".join(parts)

    def __reduce__(self) -> Any:
        return _rebuild, (super().__str__(), self.failure)


def _rebuild(message: str, failure: Failure) -> RingError:
    return RingError(message, failure=failure)


@values.frozen(kw_only=True)
class Group:
    """Workers with equal resources; a worker is one job, and has ``slots`` ranks."""

    #: number of workers
    workers: int = values.field(validator=values.ge(1))
    #: ranks of each worker
    slots: int = values.field(default=1, validator=values.ge(1))
    #: resources of each worker
    resources: ResourceRequest = values.field(factory=ResourceRequest)
    #: image, on backends that run images
    image: str | None = None
    #: storage that they see, on backends that mount any
    volumes: tuple[Volume, ...] = ()
    #: name of its one worker, for display; workers without one have numbers
    name: str = ""
    #: True for the process that starts the ring itself; such a group has one worker
    is_caller: bool = False


@values.frozen
class Host:
    """A host that members run on."""

    #: host name, for display
    name: str
    #: equal for processes that share a kernel and a network namespace, and so their addresses
    key: str


@values.frozen(kw_only=True)
class Placement:
    """Host and ranks of a worker."""

    #: number of the worker; none is used twice in a ring
    worker: int
    #: position among the ring's workers, from 0
    seat: int
    #: host it runs on
    host: Host
    #: its first rank; the others follow
    first_rank: int
    #: number of its ranks
    slots: int
    #: the first rank's position among all ranks of its host
    local_rank: int
    #: ranks on its host
    local_size: int
    #: position of its host among all hosts
    node: int
    #: number of hosts
    nodes: int

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return range(self.first_rank, self.first_rank + self.slots)


@values.frozen(kw_only=True)
class Member:
    """Rank of a ring, as in every member's table."""

    #: its rank, from 0
    rank: int
    #: IPv4 address at which all other members reached it
    ip: str
    #: port reserved for it on its host
    port: int
    #: name of its host
    host: str
    #: position among the ranks of its host
    local_rank: int = 0
    #: ranks on its host
    local_size: int = 1
    #: position of its host among all hosts
    node: int = 0
    #: number of hosts
    nodes: int = 1
    #: network interface that has :attr:`ip`
    interface: str = ""


@values.frozen(kw_only=True)
class Failure:
    """Reason why a ring or one of its workers failed."""

    #: one word: ``raised``, ``EXIT(3)``, ``SIGNAL(9)``, ``OOM``, ``LEASE``, ``DeadlineExceeded`` …
    reason: str
    #: one sentence for display
    message: str = ""
    #: number of the worker, if a worker failed
    worker: int | None = None
    #: the rank, if a rank failed
    rank: int | None = None
    #: name of the host, if known
    host: str = ""
    #: the traceback, if user code raised
    traceback: str = ""
    #: the last lines of output
    log_tail: tuple[str, ...] = ()
    #: exit code, or minus the signal's number, if a process ended
    exit_code: int | None = None
    #: the exception of user code, if it could be pickled
    error: Any = values.field(default=None, eq=False, repr=False)

    @property
    def is_raised(self) -> bool:
        """True if user code raised; the death of another member may be the cause."""
        return self.reason == "raised"

    @property
    def is_loss(self) -> bool:
        """True if a member was lost, False if its code raised or exited."""
        return not self.is_raised and not self.reason.startswith("EXIT")

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}"
        where = f"{rank} on {self.host}" if rank and self.host else rank or self.host
        what = f"{self.reason}: {self.message}" if self.message else self.reason
        return f"{where}: {what}" if where else what


class ConditionKind(enum.Enum):
    """Kinds of conditions of a ring, as the operators of Kubeflow name them."""

    #: the ring was accepted
    CREATED = "Created"
    #: all its members run the user's code
    RUNNING = "Running"
    #: its members were ended and are being started again
    RESTARTING = "Restarting"
    #: its members were ended until it is resumed
    SUSPENDED = "Suspended"
    #: it is over, and all ranks returned
    SUCCEEDED = "Succeeded"
    #: it is over, and failed or was terminated
    FAILED = "Failed"


@values.frozen(kw_only=True)
class Condition:
    """A condition that is or was true of a ring."""

    #: its kind
    kind: ConditionKind
    #: whether it is true now
    is_true: bool
    #: reason of the last transition, one word
    reason: str
    #: the same for display
    message: str
    #: time of the last transition, in seconds since the epoch
    time: float


@values.frozen
class RingEvent:
    """An event of a ring, for display."""

    #: in seconds since the epoch
    time: float
    #: reason, one word
    reason: str
    #: one sentence
    message: str


class RingPhase(enum.Enum):
    """Phases of a ring."""

    #: not started yet
    NEW = "new"
    #: its workers are being started
    STARTING = "starting"
    #: all are up and probe each other
    FORMING = "forming"
    #: user code runs
    RUNNING = "running"
    #: the run has ended; survivors send their states, and causes are awaited
    SETTLING = "settling"
    #: workers are being ended
    ENDING = "ending"
    #: back-off before the next attempt
    WAITING = "waiting"
    #: suspended until it is resumed
    SUSPENDED = "suspended"
    #: over with success
    SUCCEEDED = "succeeded"
    #: over with a failure
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """True for the final phases."""
        return self in (RingPhase.SUCCEEDED, RingPhase.FAILED)


@values.frozen(kw_only=True)
class RingStatus:
    """Snapshot of a ring."""

    #: its phase
    phase: RingPhase
    #: one condition of each kind that was ever true, in the order of their last transition
    conditions: tuple[Condition, ...] = ()
    #: latest events, oldest first
    events: tuple[RingEvent, ...] = ()
    #: hosts and ranks of its workers, once they are all up
    placements: tuple[Placement, ...] = ()
    #: desired number of workers
    wanted: int = 0
    #: workers that are being started
    starting: int = 0
    #: workers that are up
    up: int = 0
    #: how many times all ranks were started again since one failed
    restarts: int = 0
    #: how many times ranks were assigned and all started
    rounds: int = 0
    #: how many times ranks were assigned anew while they ran, because members came or went
    changes: int = 0
    #: reason of the failure, or of the last restart
    failure: Failure | None = None
    #: time of the last start or resumption, in seconds since the epoch
    start_time: float | None = None
    #: time of its end, in seconds since the epoch
    completion_time: float | None = None

    def condition(self, kind: ConditionKind) -> Condition | None:
        """Return the condition of a kind; None if it was never true."""
        return next((found for found in self.conditions if found.kind is kind), None)

    def has(self, kind: ConditionKind) -> bool:
        """Return True if the condition of a kind is true now."""
        found = self.condition(kind)
        return found is not None and found.is_true


@values.frozen(kw_only=True)
class RingCounters:
    """Rings that this process started, since it began."""

    #: rings started
    created: int = 0
    #: rings that succeeded
    succeeded: int = 0
    #: rings that failed
    failed: int = 0
    #: restarts of all ranks of a ring, over all rings
    restarts: int = 0

    def to_prometheus(self) -> str:
        """Return the counters in Prometheus' text format."""
        lines = []
        for name, value in values.asdict(self).items():
            metric = f"fiber_rings_{name}_total"
            lines += [f"# TYPE {metric} counter", f"{metric} {value}"]
        return "\n".join(lines) + "\n"


_lock = threading.Lock()
_counts = RingCounters()


def ring_counters() -> RingCounters:
    """Return the counts so far."""
    with _lock:
        return _counts


class StatusCounter:
    """Counts the start, restarts and end of one ring by comparing successive statuses."""

    def __init__(self) -> None:
        self._was_created = self._was_over = False
        self._restarts = 0

    def __call__(self, status: RingStatus) -> None:
        """Compare a new status with the last one and add the difference."""
        global _counts  # noqa: PLW0603 - they are the process's
        created = not self._was_created and status.condition(ConditionKind.CREATED) is not None
        over = not self._was_over and status.phase.is_over
        more = status.restarts - self._restarts
        self._was_created |= created
        self._was_over |= over
        self._restarts = status.restarts
        with _lock:
            _counts = RingCounters(
                created=_counts.created + created,
                succeeded=_counts.succeeded + (over and status.phase is RingPhase.SUCCEEDED),
                failed=_counts.failed + (over and status.phase is RingPhase.FAILED),
                restarts=_counts.restarts + more,
            )


@values.frozen(kw_only=True)
class RingTiming(Durations):
    """Durations of a ring that are no options of it."""

    # -- the state machine's

    #: before the first further attempt to bring all members up, doubled with each, and at most
    backoff: float = 1.0
    backoff_cap: float = 60.0
    #: that an elastic ring waits for more workers once ``min`` are up (torchrun's term)
    last_call: float = 30.0
    #: after user code raised in which another member's death may be reported as the cause
    failure_window: float = 0.5
    #: for survivors to send their committed state
    collect: float = 10.0
    #: between terminating a worker and killing it, and between two kills
    grace: float = 2.0
    #: after which a worker, or a whole ring, that was to end is given up
    end: float = 30.0

    # -- members'

    #: between two heartbeats, at most
    heartbeat: float = 2.0
    #: for an address to answer a probe, and for others once one of each target has answered
    probe: float = 5.0
    probe_rest: float = 0.5

    # -- sockets and files

    #: for a client of a ring's socket to send its request, and for the answer
    request: float = 10.0
    #: for threads to end whose streams were closed
    stream_end: float = 10.0
    #: between two writes of a changed status
    status: float = 1.0
    #: between two looks at what another process writes, which no event announces
    poll: float = 0.2


@values.frozen(kw_only=True)
class MpiTiming(Durations):
    """Durations of a run of ``mpirun`` that are no options of it."""

    #: for member agents to end by themselves, before they are killed
    end: float = 5.0
    #: for an answer of an address; on a network that drops packets, none comes
    dial: float = 4.0
    #: after a command's end for which its descendants may keep its output open
    linger: float = 1.0
    #: for mpirun to end by itself after a rank failed, after all have ended, and after a signal
    after_failure: float = 5.0
    after_all: float = 15.0
    after_signal: float = 5.0


_none_or_positive = values.optional(values.gt(0.0))
_count = values.ge(0)
#: signs of life within the time after which a silent worker is given up
_SIGNS_OF_LIFE = 10


class Clean(enum.Enum):
    """Clean-up of the workers when a ring is over."""

    #: workers stay as they are until ``ttl`` has passed or the ring is terminated
    NONE = "none"
    #: running workers are ended; their records stay
    RUNNING = "running"
    #: workers are ended and their records removed
    ALL = "all"


def _check_max(policy: Any, _: Any, most: int | None) -> None:
    least = policy.min
    if least is not None and most is not None and most < least:
        msg = f"max must be at least min, got min={least} and max={most}"
        raise ValueError(msg)


@values.frozen(kw_only=True)
class Policy:
    """Policy by which a ring starts, restarts and ends."""

    #: fewest workers the ring runs with; None: all of them
    min: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    #: True: running ranks go on when members come and go; False: all ranks restart
    is_live: bool = False
    #: most workers it may be resized to; None: the number it began with
    max: int | None = values.field(
        default=None, validator=values.and_(values.optional(values.ge(1)), _check_max)
    )
    #: restarts of all ranks after one failed while user code ran
    max_restarts: int = values.field(default=0, validator=_count)
    #: further attempts after the members could not be brought up together
    backoff_limit: int = values.field(default=0, validator=_count)
    #: seconds within which all members must be up and have reached each other, or none runs; and
    #: within which those that run must have reached a newcomer, or another one is tried
    start_timeout: float = values.field(default=300.0, validator=values.gt(0.0))
    #: seconds from start or resumption after which the ring has failed
    deadline: float | None = values.field(default=None, validator=_none_or_positive)
    #: seconds after the end for which workers and records are kept
    ttl: float | None = values.field(default=None, validator=values.optional(values.ge(0.0)))
    #: clean-up at the end
    clean: Clean = Clean.ALL
    #: seconds of silence after which a worker is given up
    heartbeat: float = values.field(default=30.0, validator=values.gt(0.0))
    #: True where what the workers run is ended before they are: :class:`~fiber._ring.events.Halt`
    halts: bool = False
    #: durations that are no options
    timing: RingTiming = values.field(factory=RingTiming)

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a member, and between two turns of the controller."""
        return min(self.heartbeat / _SIGNS_OF_LIFE, self.timing.heartbeat)
