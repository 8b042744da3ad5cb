"""A ring's machine: an event in, instructions out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fiber._base import values
from fiber._ring import events
from fiber._ring.events import Instruction
from fiber._ring.membership import State, Worker
from fiber._ring.model import ConditionKind, Failure, Group, RingPhase, RingStatus
from fiber._ring.phases import Course, Next
from fiber._ring.policy import Policy

_ENDED_EARLY = Failure(reason="EXIT(0)", message="it ended before its function returned")


class RingMachine:
    """Decides when a ring's workers start, run, start again and end.

    It has no clock, no thread and no socket, and is not thread-safe: one owner feeds it. All of its
    workers run, or none does; the first failure ends the others; what follows the policy says.

    Args:
        groups: the workers it wants.
        policy: how it starts, restarts and ends.
        epoch: what a moment of its clock is to be added to for seconds since the epoch.

    Raises:
        ValueError: there are more workers than ``max``, or fewer than ``min``.
    """

    def __init__(self, groups: Sequence[Group], policy: Policy, *, epoch: float = 0.0) -> None:
        self._course = course = Course(groups, policy, epoch)
        if not course.least <= course.wanted <= course.most:
            msg = f"min={course.least} and max={course.most} do not fit {course.wanted} members"
            raise ValueError(msg)
        self._handlers: dict[type, Callable[[Any, float, list[Instruction]], None]] = {
            events.StartAsked: self._start_asked,
            events.WorkerUp: self._worker_up,
            events.WorkerWaits: self._worker_waits,
            events.WorkerHeard: self._worker_heard,
            events.AllHeard: self._all_heard,
            events.WorkerDone: self._worker_done,
            events.WorkerFailed: self._worker_failed,
            events.WorkerGone: self._worker_gone,
            events.Formed: self._formed,
            events.NotFormed: self._not_formed,
            events.Admitted: self._admitted,
            events.NotAdmitted: self._not_admitted,
            events.Collected: self._collected,
            events.Halted: self._halted,
            events.JobEnded: self._job_ended,
            events.SuspendAsked: self._suspend_asked,
            events.ResumeAsked: self._resume_asked,
            events.ResizeAsked: self._resize_asked,
            events.TerminateAsked: self._terminate_asked,
            events.Tick: self._tick,
        }

    def handle(self, event: events.Event, now: float) -> list[Instruction]:
        """Take an event in; those about workers and rounds that are over change nothing.

        Args:
            event: what happened.
            now: the moment, by any clock that never goes back.

        Returns:
            What to do, in this order.

        Raises:
            ValueError: it is started twice, or resized beyond ``min`` and ``max``.
        """
        out: list[Instruction] = []
        self._handlers[type(event)](event, now, out)
        while self._course.advance(now, out):
            pass
        return out

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Fewest and most ranks, where these may change while ranks run; None where not."""
        course = self._course
        if not course.policy.is_live:
            return None
        fewest, most = course.roll.slots
        return course.least * fewest, course.most * most

    def next_deadline(self) -> float | None:
        """When a :class:`~fiber._ring.events.Tick` must come; None where none need."""
        return self._course.next_deadline()

    @property
    def phase(self) -> RingPhase:
        """Where it stands."""
        return self._course.phase

    def status(self) -> RingStatus:
        """All that is told of it."""
        course = self._course
        return RingStatus(
            phase=course.phase,
            conditions=course.chronicle.conditions,
            events=course.chronicle.events,
            placements=course.placements,
            wanted=course.wanted,
            starting=course.roll.count(State.STARTING),
            up=course.roll.count(State.UP) + course.roll.count(State.DONE),
            restarts=course.restarts,
            rounds=course.rounds,
            changes=course.changes.count,
            failure=course.failure,
            start_time=course.chronicle.start_time,
            completion_time=course.chronicle.completion_time,
        )

    # -- what its user wants

    def _start_asked(self, event: events.StartAsked, now: float, out: list[Instruction]) -> None:
        course = self._course
        if course.phase is not RingPhase.NEW:
            msg = "a ring can only be started once"
            raise ValueError(msg)
        message = f"{course.wanted} members are wanted"
        course.chronicle.is_now(ConditionKind.CREATED, "RingCreated", message, now)
        course.begin(now, out)

    def _suspend_asked(
        self, event: events.SuspendAsked, now: float, out: list[Instruction]
    ) -> None:
        course = self._course
        if not course.is_active:
            return
        if course.phase is RingPhase.RUNNING:
            course.settle(Next.SUSPEND, now, now, out)
        else:
            course.next = Next.SUSPEND
            if course.phase is not RingPhase.SETTLING:
                course.end(now, out)

    def _resume_asked(self, event: events.ResumeAsked, now: float, out: list[Instruction]) -> None:
        course = self._course
        if course.phase is RingPhase.SUSPENDED:
            text = "resumed by its user"
            course.chronicle.is_no_longer(ConditionKind.SUSPENDED, "RingResumed", text, now)
            course.chronicle.note("RingResumed", text, now)
            course.begin(now, out)
        elif course.next is Next.SUSPEND:
            # it was to be suspended, and is not yet
            course.next = Next.RESTART

    def _resize_asked(self, event: events.ResizeAsked, now: float, out: list[Instruction]) -> None:
        course = self._course
        if not course.least <= event.workers <= course.most:
            msg = (
                f"a ring with min={course.least} and max={course.most} cannot have "
                f"{event.workers} members"
            )
            raise ValueError(msg)
        course.wanted = event.workers
        for worker in course.roll:
            if worker.seat >= course.wanted and worker.number not in course.round:
                course.roll.end(worker, now, out)

    def _terminate_asked(
        self, event: events.TerminateAsked, now: float, out: list[Instruction]
    ) -> None:
        course = self._course
        if course.phase.is_over:
            course.forget_at = now
            return
        failure = Failure(reason="Terminated", message=event.message)
        if course.phase in (RingPhase.NEW, RingPhase.SUSPENDED):
            course.failure, course.next = failure, Next.FAIL
            course.conclude(now, out)
        else:
            course.fail(failure, now, out)

    def _tick(self, event: events.Tick, now: float, out: list[Instruction]) -> None:
        pass

    # -- what its workers tell

    def _worker_up(self, event: events.WorkerUp, now: float, out: list[Instruction]) -> None:
        worker = self._course.roll.get(event.worker)
        if worker is not None and worker.state is State.STARTING:
            worker.state, worker.host, worker.heard = State.UP, event.host, now

    def _worker_waits(self, event: events.WorkerWaits, now: float, out: list[Instruction]) -> None:
        worker = self._course.roll.get(event.worker)
        if worker is not None and worker.waits_for != event.words:
            worker.waits_for = event.words
            self._course.chronicle.note("MemberWaits", f"member {worker.seat}: {event.words}", now)

    def _worker_heard(self, event: events.WorkerHeard, now: float, out: list[Instruction]) -> None:
        worker = self._course.roll.get(event.worker)
        if worker is not None:
            worker.heard = now

    def _all_heard(self, event: events.AllHeard, now: float, out: list[Instruction]) -> None:
        for worker in self._course.roll:
            worker.heard = now

    def _worker_done(self, event: events.WorkerDone, now: float, out: list[Instruction]) -> None:
        course = self._course
        worker = course.roll.get(event.worker)
        if worker is None or course.phase is not RingPhase.RUNNING:
            return
        if event.worker in course.round and worker.state is State.UP:
            course.round[event.worker] = True
            worker.state = State.DONE

    def _worker_failed(
        self, event: events.WorkerFailed, now: float, out: list[Instruction]
    ) -> None:
        worker = self._course.roll.get(event.worker)
        if worker is None or worker.state is State.FAILED:
            return
        worker.state = State.FAILED
        if worker.ending is None:
            self._lost(worker, event.failure, now, out)

    def _worker_gone(self, event: events.WorkerGone, now: float, out: list[Instruction]) -> None:
        worker = self._course.roll.gone(event.worker)
        if worker is None or worker.ending is not None:
            return
        if worker.state in (State.STARTING, State.UP):
            self._lost(worker, event.failure or _ENDED_EARLY, now, out)

    def _lost(self, worker: Worker, failure: Failure, now: float, out: list[Instruction]) -> None:
        course = self._course
        failure = values.evolve(
            failure, worker=worker.number, host=failure.host or worker.host.name
        )
        if worker.number not in course.round:
            course.chronicle.note("MemberNotStarted", str(failure), now)
            course.roll.failed_to_start(worker.seat, failure, now)
            if course.roll.get(worker.number) is not None:
                course.roll.end(worker, now, out)
            if course.phase is RingPhase.STARTING and not course.is_elastic:
                course.attempt_failed(failure, now, out)
        elif course.phase is RingPhase.FORMING:
            course.attempt_failed(failure, now, out)
        elif course.phase is RingPhase.RUNNING:
            course.run_failed(failure, now, out)
        elif course.phase is RingPhase.SETTLING:
            course.heard_why(failure)

    # -- what happens to rounds

    def _formed(self, event: events.Formed, now: float, out: list[Instruction]) -> None:
        course = self._course
        if course.phase is RingPhase.FORMING and event.round == course.rounds:
            course.formed(now, out)

    def _not_formed(self, event: events.NotFormed, now: float, out: list[Instruction]) -> None:
        course = self._course
        if course.phase is RingPhase.FORMING and event.round == course.rounds:
            course.attempt_failed(event.failure, now, out)

    def _admitted(self, event: events.Admitted, now: float, out: list[Instruction]) -> None:
        if self._is_admitting(event):
            self._course.changes.admit(event.worker, now, out)

    def _not_admitted(self, event: events.NotAdmitted, now: float, out: list[Instruction]) -> None:
        if self._is_admitting(event):
            worker = self._course.roll.get(event.worker)
            assert worker is not None, "who is gone is no longer admitted"
            self._lost(worker, event.failure, now, out)

    def _is_admitting(self, event: events.Admitted | events.NotAdmitted) -> bool:
        course = self._course
        is_now = course.phase is RingPhase.RUNNING and event.round == course.rounds
        return is_now and course.changes.is_admitting(event.worker)

    def _collected(self, event: events.Collected, now: float, out: list[Instruction]) -> None:
        if event.round == self._course.rounds:
            self._course.collect_until = None

    def _halted(self, event: events.Halted, now: float, out: list[Instruction]) -> None:
        if event.round == self._course.rounds:
            self._course.is_halting = False

    def _job_ended(self, event: events.JobEnded, now: float, out: list[Instruction]) -> None:
        course = self._course
        if event.round != course.rounds:
            return
        if course.phase is RingPhase.RUNNING:
            if event.failure is None:
                course.succeed(now, out)
            else:
                course.run_failed(event.failure, now, out)
        elif course.phase is RingPhase.SETTLING and event.failure is not None:
            course.heard_why(event.failure)
