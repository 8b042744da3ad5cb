"""Events that go into a ring's state machine, and commands that come out of it.

A *worker* is one job of a ring. Its number is never used again: a worker that replaces another has
a number of its own. A *round* is one assignment of ranks, counted from 1. Commands are carried out
in order; their results come back as events, never while a command is being carried out.
"""

from __future__ import annotations

from fiber._base import values
from fiber._ring.model import Failure, Group, Host, Placement


class Event:
    """What goes into the machine."""


class Command:
    """What comes out of it."""


@values.frozen
class StartRequested(Event):
    """Request of the user to start the ring; accepted once."""


@values.frozen
class WorkerUp(Event):
    """All ranks of a worker have connected."""

    worker: int
    #: host it runs on
    host: Host


@values.frozen
class WorkerPending(Event):
    """A worker's job is pending: the platform has not placed it yet."""

    worker: int
    #: the platform's own message
    reason: str


@values.frozen
class WorkerHeartbeat(Event):
    """A message came from a worker, whatever it was."""

    worker: int


@values.frozen
class ControllerPaused(Event):
    """The controller itself was stopped or asleep, so silence until now proves nothing."""


@values.frozen
class WorkerDone(Event):
    """The function has returned in all ranks of a worker."""

    worker: int


@values.frozen
class WorkerFailed(Event):
    """A rank of a worker raised or exited before its function returned; the job may still exist."""

    worker: int
    failure: Failure


@values.frozen
class WorkerEnded(Event):
    """A worker's job has ended or was never accepted; no event of this worker follows."""

    worker: int
    #: None for exit code 0
    failure: Failure | None = None


@values.frozen
class RendezvousCompleted(Event):
    """All members of a round reached each other and have the member table."""

    round: int


@values.frozen
class RendezvousFailed(Event):
    """Members of a round could not reach each other."""

    round: int
    failure: Failure


@values.frozen
class JoinCompleted(Event):
    """A new worker and the members of the running round reached each other."""

    round: int
    worker: int


@values.frozen
class JoinFailed(Event):
    """A new worker and the members of the running round did not reach each other."""

    round: int
    worker: int
    failure: Failure


@values.frozen
class StateCollected(Event):
    """The survivors of a round have sent their committed states, if they had any."""

    round: int


@values.frozen
class Halted(Event):
    """User code on the workers of a round has ended; the answer to :class:`Halt`."""

    round: int


@values.frozen
class RoundEnded(Event):
    """A round is over as a whole, where one member leads it: each worker's end is not seen."""

    round: int
    #: None for success
    failure: Failure | None = None


@values.frozen
class SuspendRequested(Event):
    """Request of the user to end the workers until the ring is resumed."""


@values.frozen
class ResumeRequested(Event):
    """Request of the user to start a suspended ring again."""


@values.frozen
class ResizeRequested(Event):
    """Request of the user for another number of workers, within ``min`` and ``max``."""

    workers: int


@values.frozen
class TerminateRequested(Event):
    """Request of the user to end the ring now; one that is over is cleaned up."""

    message: str = "terminated by its user"


@values.frozen
class Tick(Event):
    """Time has passed; due at :meth:`~fiber._ring.machine.RingMachine.next_deadline`."""


@values.frozen
class StartWorker(Command):
    """Submit a worker's job.

    Answered by :class:`WorkerUp`, :class:`WorkerFailed` or :class:`WorkerEnded`.
    """

    worker: int
    #: position among the ring's workers, from 0
    seat: int
    #: its resources, image and number of ranks
    group: Group


@values.frozen
class StartRendezvous(Command):
    """Bring the workers of a new round together.

    Answered by :class:`RendezvousCompleted` or :class:`RendezvousFailed`.
    """

    round: int
    placements: tuple[Placement, ...]
    #: how many times all ranks were started again so far
    restarts: int


@values.frozen
class StartJoin(Command):
    """Bring a new worker together with the running round.

    Answered by :class:`JoinCompleted` or :class:`JoinFailed`.
    """

    round: int
    worker: int


@values.frozen
class UpdateMembers(Command):
    """Send the new member table to the running round; joined workers begin."""

    round: int
    placements: tuple[Placement, ...]


@values.frozen
class StartRun(Command):
    """Start user code; ends in :class:`WorkerDone`, :class:`WorkerFailed` or :class:`RoundEnded`."""

    round: int


@values.frozen
class CollectState(Command):
    """Request the committed states of survivors; answered by :class:`StateCollected`."""

    round: int
    workers: tuple[int, ...]


@values.frozen
class Halt(Command):
    """End what the workers run, before their jobs are ended; answered by :class:`Halted`."""

    round: int
    #: None for success
    failure: Failure | None = None


@values.frozen
class EndWorker(Command):
    """End a worker's job; answered by :class:`WorkerEnded`."""

    worker: int
    #: True to kill it, where termination had no effect
    force: bool = False


@values.frozen
class Conclude(Command):
    """Publish the outcome: the ring is over."""

    #: None for success
    failure: Failure | None


@values.frozen
class CleanUp(Command):
    """Release everything that was kept after the end."""
