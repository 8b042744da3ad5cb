"""What a ring's machine wants done; each is done in order, and none is answered at once."""

from __future__ import annotations

from fiber._base import values
from fiber._ring.model import Failure, Group, Placement


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
