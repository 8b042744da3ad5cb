"""The workers of a fleet, counted and grouped so that none is looked at for nothing.

A roster is asked what to do after everything that happens, and with a thousand workers thousands of
things happen while they start: a walk over all of them each time would cost more than the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiber._agent.instructions import DESCRIPTORS_LOST
from fiber._base import values
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from fiber.model.job import Attempt

if TYPE_CHECKING:
    from fiber._launch.child import Child

#: what a task must not do, as it is told
_CLOSED = (
    "has a task closed or replaced descriptors that it did not open, by os.closerange() maybe?"
)


@values.define(eq=False)
class Member:
    """One worker process."""

    #: identity within the run
    ident: str
    #: name for people
    name: str
    #: position within its job
    index: int
    #: its job
    child: Child
    #: workers in a row that had failed to come up when it was started
    failures: int = 0
    #: True once its process was seen to run
    runs: bool = False
    #: True once it asked for work
    up: bool = False
    #: True where its end is wished for: resize, close, terminate
    leaving: bool = False
    #: True where its place is taken away, and what it has not begun is to be done by others
    draining: bool = False
    #: True once it was told to exit, because it is leaving or has done its quota
    told: bool = False
    #: when its connection ended, if it has
    cut_at: float | None = None
    #: when it was seen stopped by a signal, if it is
    stopped_at: float | None = None
    #: when its platform suspended it, if it is: its silence proves nothing
    suspended_at: float | None = None
    #: True once people were told of that
    suspension_said: bool = False
    #: True once it was killed for its silence
    fenced: bool = False
    #: True once it was killed for having lost its connection, where no network can be to blame
    disconnected: bool = False
    #: when it was killed last, if it was
    killed_at: float | None = None

    @property
    def is_timed(self) -> bool:
        """True where something is to be done about it when a moment comes."""
        moments = (self.cut_at, self.stopped_at, self.suspended_at, self.killed_at)
        return any(moment is not None for moment in moments)


class Groups:
    """Which of the members are to be looked at; told of every change to one."""

    def __init__(self) -> None:
        #: how many are not to leave
        self.staying = 0
        self._timed: dict[str, Member] = {}
        self._leaving: dict[str, Member] = {}

    def joined(self, member: Member) -> None:
        """It is one of them from now on."""
        self.staying += 1

    def gone(self, member: Member) -> None:
        """It has ended."""
        self._timed.pop(member.ident, None)
        self._leaving.pop(member.ident, None)
        self.staying -= not member.leaving

    def leave(self, member: Member) -> None:
        """It is to leave."""
        if not member.leaving:
            member.leaving = True
            self.staying -= 1
        self.changed(member)

    def changed(self, member: Member) -> None:
        """It was told to exit, must be told again, or something about it is due one day."""
        if member.is_timed:
            self._timed[member.ident] = member
        if member.leaving and not member.told:
            self._leaving[member.ident] = member
        else:
            self._leaving.pop(member.ident, None)

    def timed(self) -> list[Member]:
        """Those about whom something is due one day."""
        if not self._timed:
            return []
        found = [member for member in self._timed.values() if member.is_timed]
        if len(found) < len(self._timed):
            self._timed = {member.ident: member for member in found}
        return found

    def next_untold(self) -> Member | None:
        """One that is to leave and can be told so now."""
        for member in self._leaving.values():
            # one that is about to be up is told then: its initializer is not interrupted
            if member.up or not member.runs:
                return member
        return None


def ident_of(child: Child, index: int) -> str:
    """Identity of one of the workers of a job."""
    return child.ident if child.processes == 1 else f"{child.ident}.{index}"


def process_of(status: JobStatus, index: int) -> ProcessStatus:
    """The last word on one of them."""
    for process in status.processes:
        if process.index == index and (process.state.is_terminal or not status.state.is_terminal):
            return process
    # the backend tells of the job alone
    return ProcessStatus(
        index=index,
        state=status.state,
        reason=status.reason,
        exit_code=status.exit_code,
        message=status.message,
    )


def is_stopped(process: ProcessStatus) -> bool:
    """True for a process that a signal stopped; False for one that its platform suspended."""
    reason = process.reason
    return (
        process.state is JobState.SUSPENDED
        and reason is not None
        and reason.kind is ReasonKind.SIGNAL
    )


def attempt_of(member: Member, process: ProcessStatus) -> Attempt:
    """Its end, as tasks that it held are told."""
    reason = process.reason or Reason(ReasonKind.UNKNOWN)
    message = process.message
    if member.fenced:
        reason = Reason(ReasonKind.LEASE)
        message = "it was stopped or silent for longer than its lease, and was killed"
    elif member.disconnected:
        message = f"its connection ended and it made no other, so that it was killed: {_CLOSED}"
    elif process.exit_code == DESCRIPTORS_LOST:
        message = f"{message}: {_CLOSED}"
    return Attempt(
        worker=member.name,
        host=member.child.host,
        pid=process.pid,
        reason=reason,
        message=message,
        log_tail=process.log_tail,
    )
