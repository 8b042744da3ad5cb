"""Records of the workers of a group, and an index of those that need something to be done.

``GroupState.next`` runs after every event, and a thousand workers cause thousands of events while
they start: a walk over all of them each time would cost more than the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiber._agent.instructions import DESCRIPTORS_LOST
from fiber._base import values
from fiber.model import JobState, ProcessStatus, Reason, ReasonKind
from fiber.model.job import Attempt

if TYPE_CHECKING:
    from fiber._launch.child import Child

#: explanation in errors of what a task must not do
_CLOSED = (
    "has a task closed or replaced descriptors that it did not open, by os.closerange() maybe?"
)


@values.define(eq=False)
class WorkerRecord:
    """State of one worker process as its manager knows it."""

    #: identity within the run
    ident: str
    #: name for people
    name: str
    #: position within its job
    index: int
    #: its job
    child: Child
    #: how many workers in a row had failed before they were ready when it was started
    failures: int = 0
    #: True once its process was seen to run
    runs: bool = False
    #: True once it asked for work
    ready: bool = False
    #: True where it is to end: resize, close, terminate, or a drained place
    leaving: bool = False
    #: True where the platform takes its place away; others run what it has not begun
    draining: bool = False
    #: True once it was sent RETIRE or killed: it is leaving or has run ``maxtasksperchild``
    exit_sent: bool = False
    #: when its connection ended, if it has
    disconnected_at: float | None = None
    #: when it was seen stopped by a signal, if it is
    stopped_at: float | None = None
    #: when its platform suspended it, if it is: silence is no sign of its death
    suspended_at: float | None = None
    #: True once that was logged
    suspension_reported: bool = False
    #: True once it was killed because it was stopped or silent too long
    fenced: bool = False
    #: True once it was killed because its connection ended, on a host where no network is to blame
    killed_as_disconnected: bool = False
    #: when it was killed last, if it was
    killed_at: float | None = None

    @property
    def is_timed(self) -> bool:
        """True where one of its deadlines is pending."""
        moments = (self.disconnected_at, self.stopped_at, self.suspended_at, self.killed_at)
        return any(moment is not None for moment in moments)


class WorkerIndex:
    """Index of the records with pending deadlines or to be retired; updated after every change."""

    def __init__(self) -> None:
        #: how many are not leaving
        self.staying = 0
        self._timed: dict[str, WorkerRecord] = {}
        self._leaving: dict[str, WorkerRecord] = {}

    def add(self, worker: WorkerRecord) -> None:
        """Add a record."""
        self.staying += 1

    def remove(self, worker: WorkerRecord) -> None:
        """Remove the record of a worker that has ended."""
        self._timed.pop(worker.ident, None)
        self._leaving.pop(worker.ident, None)
        self.staying -= not worker.leaving

    def leave(self, worker: WorkerRecord) -> None:
        """Mark a worker as leaving; idempotent."""
        if not worker.leaving:
            worker.leaving = True
            self.staying -= 1
        self.update(worker)

    def update(self, worker: WorkerRecord) -> None:
        """Index a record again after its deadlines, ``leaving`` or ``exit_sent`` changed."""
        if worker.is_timed:
            self._timed[worker.ident] = worker
        if worker.leaving and not worker.exit_sent:
            self._leaving[worker.ident] = worker
        else:
            self._leaving.pop(worker.ident, None)

    def timed(self) -> list[WorkerRecord]:
        """The records with a pending deadline."""
        if not self._timed:
            return []
        found = [worker for worker in self._timed.values() if worker.is_timed]
        if len(found) < len(self._timed):
            self._timed = {worker.ident: worker for worker in found}
        return found

    def next_to_retire(self) -> WorkerRecord | None:
        """A leaving worker that can be sent RETIRE, or be killed, now."""
        for worker in self._leaving.values():
            # one that runs and is not ready is retired once it is: its initializer is not interrupted
            if worker.ready or not worker.runs:
                return worker
        return None


def ident_of(child: Child, index: int) -> str:
    """Identity of a worker by its index within its job."""
    return child.ident if child.processes == 1 else f"{child.ident}.{index}"


def is_stopped(process: ProcessStatus) -> bool:
    """True for a process that a signal stopped; False for one that its platform suspended."""
    reason = process.reason
    return (
        process.state is JobState.SUSPENDED
        and reason is not None
        and reason.kind is ReasonKind.SIGNAL
    )


def is_final(reason: Reason | None, host: str | None) -> bool:
    """True for an end that another worker would have as well: no image, or no host that takes it.

    Args:
        reason: of the end.
        host: that the job was sent to; what a single host refuses, others may take.
    """
    kind = None if reason is None else reason.kind
    return kind is ReasonKind.IMAGE or (kind is ReasonKind.UNSCHEDULABLE and host is None)


def attempt_of(worker: WorkerRecord, process: ProcessStatus) -> Attempt:
    """The end of a worker as the errors of its tasks describe it."""
    reason = process.reason or Reason(ReasonKind.UNKNOWN)
    message = process.message
    if worker.fenced:
        reason = Reason(ReasonKind.LEASE)
        message = "it was stopped or silent for longer than its lease, and was killed"
    elif worker.killed_as_disconnected:
        message = f"its connection ended and it made no other, so that it was killed: {_CLOSED}"
    elif process.exit_code == DESCRIPTORS_LOST:
        message = f"{message}: {_CLOSED}"
    return Attempt(
        worker=worker.name,
        host=worker.child.host,
        pid=process.pid,
        reason=reason,
        message=message,
        log_tail=process.log_tail,
    )
