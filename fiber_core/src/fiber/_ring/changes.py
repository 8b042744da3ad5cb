"""Members that come and go while a ring runs, where those that stay go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fiber._ring.commands import Admit, Change, Instruction
from fiber._ring.ranks import Seated, in_order

if TYPE_CHECKING:
    from fiber._ring.model import Failure, Placement
    from fiber._ring.phases import Course


class Changes:
    """Who left a round and who joined it; of no effect where the policy starts all again.

    Those that stay keep their order, and newcomers come after them, so that rank 0 is somebody who
    knows where the others are.

    Args:
        course: of the ring.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        #: how many times ranks were assigned anew while they ran
        self.count = 0
        self._order: list[Seated] = []
        self._newcomer: int | None = None

    def begin(self, placements: Sequence[Placement]) -> None:
        """A round begins to run."""
        self._newcomer = None
        self._order = [Seated(one.worker, one.seat, one.host, one.slots) for one in placements]

    def lets_go(self, failure: Failure, now: float, out: list[Instruction]) -> bool:
        """Whether the others go on without the worker that failed; if so, they are told.

        They do where it was lost, not where its code failed; and not without the one that opened
        what all need, nor with fewer than the ring's least.
        """
        course, number = self._course, failure.worker
        if not course.policy.is_live or number is None or number not in course.round:
            return False
        is_host = number == self._order[0].worker
        if is_host or not failure.is_loss or len(course.round) - 1 < course.least:
            return False
        seat = next(one.seat for one in self._order if one.worker == number)
        course.roll.failed_to_start(seat, failure, now)
        self._leave([number], now, out)
        course.chronicle.note("MemberLost", str(failure), now)
        self._tell(out)
        return True

    def advance(self, now: float, out: list[Instruction]) -> None:
        """Let those go that are not wanted any more, and the next newcomer in."""
        course = self._course
        surplus = [one for one in self._order if one.seat >= course.wanted]
        if surplus and surplus[0] is self._order[0]:
            course.start_again("the member that the others depend on is to go", now, out)
            return
        if surplus:
            self._leave([one.worker for one in surplus], now, out)
            seats = ", ".join(str(one.seat) for one in surplus)
            course.chronicle.note("MemberLeft", f"fewer are wanted; without {seats}", now)
            self._tell(out)
        if self._newcomer is not None and self._is_there(self._newcomer):
            return
        new = [one.number for one in course.roll.up() if one.number not in course.round]
        self._newcomer = new[0] if new else None
        if self._newcomer is not None:
            out.append(Admit(course.rounds, self._newcomer))

    def is_admitting(self, worker: int) -> bool:
        """Whether a newcomer is being brought together with the others."""
        return worker == self._newcomer and self._is_there(worker)

    def admit(self, number: int, now: float, out: list[Instruction]) -> None:
        """A newcomer belongs to the ring from now on."""
        course = self._course
        worker = course.roll.get(number)
        assert worker is not None, "who is gone is not admitted"
        self._newcomer = None
        worker.heard = now
        course.round[number] = False
        self._order.append(Seated(number, worker.seat, worker.host, worker.group.slots))
        course.chronicle.note("MemberJoined", f"member {worker.seat} on {worker.host.name}", now)
        self._tell(out)

    def _is_there(self, number: int) -> bool:
        worker = self._course.roll.get(number)
        return worker is not None and worker.ending is None

    def _leave(self, numbers: Sequence[int], now: float, out: list[Instruction]) -> None:
        course = self._course
        self._order = [one for one in self._order if one.worker not in numbers]
        for number in numbers:
            del course.round[number]
            worker = course.roll.get(number)
            if worker is not None:
                course.roll.end(worker, now, out)

    def _tell(self, out: list[Instruction]) -> None:
        course = self._course
        self.count += 1
        course.placements = in_order(self._order)
        out.append(Change(course.rounds, course.placements))
