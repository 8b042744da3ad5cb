"""What a ring's machine is told: by its workers, by their platform, and by its user.

A *worker* is one job of a ring. It has a number that is never used again; a worker that takes the
place of another has another number. A *round* is one assignment of ranks, counted from 1.

What a ring's machine wants done; each is done in order, and none is answered at once.
"""

from __future__ import annotations

from fiber._base import values
from fiber._ring.model import Failure, Group, Host, Placement


@values.frozen
class StartAsked:
    """The user wants it to run; once."""


@values.frozen
class WorkerUp:
    """A worker said hello, with all its slots."""

    worker: int
    #: where it runs
    host: Host


@values.frozen
class WorkerWaits:
    """A worker's job waits for a place."""

    worker: int
    #: why, in the platform's words
    words: str


@values.frozen
class WorkerHeard:
    """A worker gave a sign of life."""

    worker: int


@values.frozen
class AllHeard:
    """Nobody is to be judged by the time that passed: whoever listens was asleep or stopped."""


@values.frozen
class WorkerDone:
    """All ranks of a worker have returned."""

    worker: int


@values.frozen
class WorkerFailed:
    """A worker could not be started, or one of its ranks raised; its job may still be there."""

    worker: int
    failure: Failure


@values.frozen
class WorkerGone:
    """A worker's job has ended, or could not be submitted; nothing more will come of it."""

    worker: int
    #: how; None where it ended well
    failure: Failure | None = None


@values.frozen
class Formed:
    """The workers of a round know each other, and user code may begin."""

    round: int


@values.frozen
class NotFormed:
    """They do not."""

    round: int
    failure: Failure


@values.frozen
class Admitted:
    """A newcomer and the workers of a round that runs know each other."""

    round: int
    worker: int


@values.frozen
class NotAdmitted:
    """They do not."""

    round: int
    worker: int
    failure: Failure


@values.frozen
class Collected:
    """The survivors of a round have told their state, or have none."""

    round: int


@values.frozen
class Halted:
    """What ran on the workers of a round has ended; the answer to ``Halt``."""

    round: int


@values.frozen
class JobEnded:
    """The round as a whole is over, for those who see that rather than each worker's end."""

    round: int
    #: None where it ended well
    failure: Failure | None = None


@values.frozen
class SuspendAsked:
    """The user wants its workers ended until it is resumed."""


@values.frozen
class ResumeAsked:
    """The user wants it to go on."""


@values.frozen
class ResizeAsked:
    """The user wants another number of workers; within ``min`` and ``max``."""

    workers: int


@values.frozen
class TerminateAsked:
    """The user wants it to end now; one that is over lets go of what it kept."""

    message: str = "terminated by its user"


@values.frozen
class Tick:
    """Time passed; due at :meth:`~fiber._ring.machine.RingMachine.next_deadline`."""


Event = (
    StartAsked
    | WorkerUp
    | WorkerWaits
    | WorkerHeard
    | AllHeard
    | WorkerDone
    | WorkerFailed
    | WorkerGone
    | Formed
    | NotFormed
    | Admitted
    | NotAdmitted
    | Collected
    | Halted
    | JobEnded
    | SuspendAsked
    | ResumeAsked
    | ResizeAsked
    | TerminateAsked
    | Tick
)


@values.frozen
class StartWorker:
    """Submit a worker's job; answered by ``WorkerUp``, ``WorkerFailed`` or ``WorkerGone``."""

    worker: int
    #: position among the workers that the ring wants
    seat: int
    #: what it needs
    group: Group


@values.frozen
class Form:
    """Let the workers get to know each other; answered by ``Formed`` or ``NotFormed``."""

    round: int
    placements: tuple[Placement, ...]
    #: how many times all ranks were started again so far
    restarts: int


@values.frozen
class Admit:
    """Let a newcomer get to know a round that runs; answered by ``Admitted`` or ``NotAdmitted``."""

    round: int
    worker: int


@values.frozen
class Change:
    """Tell the workers of a round that runs who they are now; newcomers begin."""

    round: int
    placements: tuple[Placement, ...]


@values.frozen
class Go:
    """Let user code begin; answered by ``WorkerDone``, ``WorkerFailed`` or ``JobEnded``."""

    round: int


@values.frozen
class Collect:
    """Ask the survivors for their state; answered by ``Collected``."""

    round: int
    workers: tuple[int, ...]


@values.frozen
class Halt:
    """End what runs on the workers, not the workers; answered by ``Halted``."""

    round: int


@values.frozen
class EndWorker:
    """End a worker's job; answered by ``WorkerGone``."""

    worker: int
    #: True to kill it: asking did not help
    force: bool = False


@values.frozen
class Conclude:
    """It is over: tell those who wait."""

    #: None where it did what it should
    failure: Failure | None


@values.frozen
class Forget:
    """Let go of everything that is still kept."""


Instruction = (
    StartWorker | Form | Admit | Change | Go | Collect | Halt | EndWorker | Conclude | Forget
)
