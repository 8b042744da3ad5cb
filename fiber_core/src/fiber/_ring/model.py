"""What is told of a ring: its groups, members, failures, conditions and status.

What is raised where a ring fails.
"""

from __future__ import annotations

import enum
from typing import Any

from fiber._base import values
from fiber.exceptions import FiberError
from fiber.model import ResourceRequest

__all__ = ["RingError"]


class RingError(FiberError):
    """A ring failed; the text has the first failure's rank, host, reason and traceback.

    Where user code raised, that exception is its cause.
    """

    def __init__(self, message: str, *, failure: Failure) -> None:
        super().__init__(message)
        #: what failed first
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
    """Workers that are alike; a worker is one job, and has ``slots`` ranks."""

    #: how many workers
    workers: int = values.field(validator=values.ge(1))
    #: ranks of each of them
    slots: int = values.field(default=1, validator=values.ge(1))
    #: what each of them gets
    resources: ResourceRequest = values.field(factory=ResourceRequest)
    #: image, on backends that run images
    image: str | None = None
    #: True for the process that starts the ring itself; such a group has one worker
    is_caller: bool = False


@values.frozen
class Host:
    """A host as its members know it."""

    #: its name, for people
    name: str
    #: equal for processes that share a kernel and a network namespace, and so their addresses
    key: str


@values.frozen(kw_only=True)
class Placement:
    """Where a worker is, and which ranks it has."""

    #: the worker; no number is used twice in a ring
    worker: int
    #: position among all workers that the ring wants, from 0
    seat: int
    #: where it runs
    host: Host
    #: its first rank; the others follow
    first_rank: int
    #: how many ranks it has
    slots: int
    #: the first rank's position among all ranks of its host
    local_rank: int
    #: ranks on its host
    local_size: int
    #: position of its host among all hosts
    node: int
    #: how many hosts there are
    nodes: int

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return range(self.first_rank, self.first_rank + self.slots)


@values.frozen(kw_only=True)
class Member:
    """One rank of a ring, as all its members know it."""

    #: its rank, from 0
    rank: int
    #: address by which all members reached it
    ip: str
    #: a port that is kept free for it on its host
    port: int
    #: name of its host
    host: str
    #: position among the ranks of its host
    local_rank: int = 0
    #: ranks on its host
    local_size: int = 1
    #: position of its host among all hosts
    node: int = 0
    #: how many hosts there are
    nodes: int = 1
    #: network interface that has :attr:`ip`
    interface: str = ""


@values.frozen(kw_only=True)
class Failure:
    """Why a ring, or one of its workers, failed."""

    #: one word: ``raised``, ``EXIT(3)``, ``SIGNAL(9)``, ``OOM``, ``LEASE``, ``DeadlineExceeded`` …
    reason: str
    #: one sentence for people
    message: str = ""
    #: the worker, where it was one
    worker: int | None = None
    #: the rank, where it was one
    rank: int | None = None
    #: name of the host, where known
    host: str = ""
    #: the traceback, where user code raised
    traceback: str = ""
    #: the last lines of output
    log_tail: tuple[str, ...] = ()
    #: exit code, minus the signal, where a process ended
    exit_code: int | None = None
    #: what user code raised, where it could be sent
    error: Any = values.field(default=None, eq=False, repr=False)

    @property
    def is_raised(self) -> bool:
        """True where user code raised; the death of another member may be why."""
        return self.reason == "raised"

    @property
    def is_loss(self) -> bool:
        """True where a member was lost, False where its code raised or ended by itself."""
        return not self.is_raised and not self.reason.startswith("EXIT")

    def __str__(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}"
        where = f"{rank} on {self.host}" if rank and self.host else rank or self.host
        what = f"{self.reason}: {self.message}" if self.message else self.reason
        return f"{where}: {what}" if where else what


class ConditionKind(enum.Enum):
    """What can be said of a ring."""

    #: it was accepted
    CREATED = "Created"
    #: all its members run the user's code
    RUNNING = "Running"
    #: its members were ended and are being started again
    RESTARTING = "Restarting"
    #: its members were ended until it is resumed
    SUSPENDED = "Suspended"
    #: it is over, and did what it should
    SUCCEEDED = "Succeeded"
    #: it is over, and did not
    FAILED = "Failed"


@values.frozen(kw_only=True)
class Condition:
    """One thing that is, or was, true of a ring."""

    #: what
    kind: ConditionKind
    #: whether it is true now
    is_true: bool
    #: why it changed last, one word
    reason: str
    #: the same for people
    message: str
    #: when it changed last, in seconds since the epoch
    time: float


@values.frozen
class RingEvent:
    """Something that happened to a ring, for people."""

    #: in seconds since the epoch
    time: float
    #: one word
    reason: str
    #: one sentence
    message: str


class RingPhase(enum.Enum):
    """Where a ring stands."""

    #: nobody has asked it to start
    NEW = "new"
    #: its workers are being started
    STARTING = "starting"
    #: all are up and get to know each other
    FORMING = "forming"
    #: user code runs
    RUNNING = "running"
    #: something ended the run; what survives tells its state and why
    SETTLING = "settling"
    #: workers are being ended
    ENDING = "ending"
    #: it waits before it tries again
    WAITING = "waiting"
    #: nothing runs until it is resumed
    SUSPENDED = "suspended"
    #: it is over, well
    SUCCEEDED = "succeeded"
    #: it is over, badly
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """True for those that are never left."""
        return self in (RingPhase.SUCCEEDED, RingPhase.FAILED)


@values.frozen(kw_only=True)
class RingStatus:
    """A ring at one moment."""

    #: where it stands
    phase: RingPhase
    #: one of each kind that was ever true, in the order of their last change
    conditions: tuple[Condition, ...] = ()
    #: what happened so far
    events: tuple[RingEvent, ...] = ()
    #: where its workers are, once they are all up
    placements: tuple[Placement, ...] = ()
    #: workers that it wants now
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
    #: why it failed, or why the last restart was
    failure: Failure | None = None
    #: when it was started, or resumed, in seconds since the epoch
    start_time: float | None = None
    #: when it was over
    completion_time: float | None = None

    def condition(self, kind: ConditionKind) -> Condition | None:
        """The condition of a kind, if it was ever true."""
        return next((found for found in self.conditions if found.kind is kind), None)

    def has(self, kind: ConditionKind) -> bool:
        """True where that condition is true now."""
        found = self.condition(kind)
        return found is not None and found.is_true
