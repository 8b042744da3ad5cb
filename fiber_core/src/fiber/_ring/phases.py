"""The course of a ring: its phases, what leads from one to the next, and what is due when.

Members that come and go while a ring runs, where those that stay go on.

What happened to a ring, as conditions, events and times.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._ring.events import Admit, Change, Collect, Conclude, Forget, Form, Go, Halt, Instruction
from fiber._ring.membership import Roll, Seated, State, Worker, assign, delay, in_order
from fiber._ring.model import (
    Condition,
    ConditionKind,
    Failure,
    Group,
    Placement,
    RingEvent,
    RingPhase,
)
from fiber._ring.policy import Clean, Policy

if TYPE_CHECKING:
    from fiber._ring.model import Failure, Placement


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


_KEPT = 200
_OVER = (ConditionKind.SUCCEEDED, ConditionKind.FAILED)
#: what is no longer true when something else becomes true
_ENDS: dict[ConditionKind, tuple[ConditionKind, ...]] = {
    ConditionKind.CREATED: (),
    ConditionKind.RUNNING: (ConditionKind.RESTARTING, ConditionKind.SUSPENDED),
    ConditionKind.RESTARTING: (ConditionKind.RUNNING, ConditionKind.SUSPENDED),
    ConditionKind.SUSPENDED: (ConditionKind.RUNNING, ConditionKind.RESTARTING),
    ConditionKind.SUCCEEDED: (
        ConditionKind.RUNNING,
        ConditionKind.RESTARTING,
        ConditionKind.SUSPENDED,
    ),
    ConditionKind.FAILED: (
        ConditionKind.RUNNING,
        ConditionKind.RESTARTING,
        ConditionKind.SUSPENDED,
    ),
}


class Chronicle:
    """Keeps the last word on each kind of condition, and the last events.

    Args:
        epoch: what a moment of the machine's clock is to be added to for seconds since the epoch.
    """

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch
        self._conditions: dict[ConditionKind, Condition] = {}
        self._events: deque[RingEvent] = deque(maxlen=_KEPT)
        #: when it was started or resumed
        self.start_time: float | None = None
        #: when it was over
        self.completion_time: float | None = None

    def is_now(self, kind: ConditionKind, reason: str, message: str, now: float) -> None:
        """Something is true of the ring from now on."""
        for other in _ENDS[kind]:
            self.is_no_longer(other, reason, message, now)
        self._set(kind, True, reason, message, now)
        self.note(reason, message, now)
        if kind in _OVER:
            self.completion_time = self._epoch + now

    def is_no_longer(self, kind: ConditionKind, reason: str, message: str, now: float) -> None:
        """Something is no longer true of it; nothing where it was not."""
        known = self._conditions.get(kind)
        if known is not None and known.is_true:
            self._set(kind, False, reason, message, now)

    def note(self, reason: str, message: str, now: float) -> None:
        """Something happened that is no condition."""
        self._events.append(RingEvent(self._epoch + now, reason, message))

    def began(self, now: float) -> None:
        """It was started, or resumed."""
        self.start_time = self._epoch + now

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The last word on each kind, oldest first."""
        return tuple(self._conditions.values())

    @property
    def events(self) -> tuple[RingEvent, ...]:
        """The last events, oldest first."""
        return tuple(self._events)

    def _set(
        self, kind: ConditionKind, is_true: bool, reason: str, message: str, now: float
    ) -> None:
        self._conditions.pop(kind, None)
        self._conditions[kind] = Condition(
            kind=kind, is_true=is_true, reason=reason, message=message, time=self._epoch + now
        )


class Next(enum.Enum):
    """What follows once all workers have ended."""

    #: what was planned before: another attempt, as long as nothing else is said
    RESTART = "restart"
    SUSPEND = "suspend"
    SUCCEED = "succeed"
    FAIL = "fail"


class Course:
    """Where a ring stands, and how it goes on; :class:`~fiber._ring.machine.RingMachine` owns it.

    Args:
        groups: the workers it wants.
        policy: how it starts, restarts and ends.
        epoch: what a moment of its clock is to be added to for seconds since the epoch.
    """

    def __init__(self, groups: Sequence[Group], policy: Policy, epoch: float) -> None:
        self.policy = policy
        self.roll = Roll(groups, policy)
        self.chronicle = Chronicle(epoch)
        self.phase = RingPhase.NEW
        self.next = Next.RESTART
        self.wanted = self.roll.size
        self.least = self.wanted if policy.min is None else policy.min
        self.most = max(self.wanted, policy.min or 0) if policy.max is None else policy.max
        #: who runs in this round, and whether it is done
        self.round: dict[int, bool] = {}
        self.placements: tuple[Placement, ...] = ()
        self.rounds = self.restarts = 0
        self.changes = Changes(self)
        self.failure: Failure | None = None
        #: attempts to bring all up that failed since the last run
        self._tries = 0
        self._began = 0.0
        #: the end of what the phase waits for at most, if there is one
        self._until: float | None = None
        #: the same for the survivors' state, for the rest of an elastic ring, and for the end
        self.collect_until: float | None = None
        self._call_until: float | None = None
        self.forget_at: float | None = None
        self.is_halting = False
        #: whether what was kept is being ended, and whether that is done
        self._is_releasing = self._has_forgotten = False
        #: whether workers stay as they are when it is over
        self._stays = False

    # -- what may be asked

    @property
    def is_elastic(self) -> bool:
        """True where it goes on with fewer than it wants."""
        return self.least < self.wanted

    @property
    def is_active(self) -> bool:
        """True where it is to run, now or later, and nobody has decided otherwise."""
        idle = self.phase in (RingPhase.NEW, RingPhase.SUSPENDED) or self.phase.is_over
        return not idle and self.next is Next.RESTART

    def working(self) -> list[Worker]:
        """The workers of this round that are there and not done."""
        found = map(self.roll.get, [number for number, done in self.round.items() if not done])
        return [worker for worker in found if worker is not None and worker.ending is None]

    def next_deadline(self) -> float | None:
        """When :meth:`advance` has something to do."""
        due = [self.roll.next_press(), self.collect_until, self._call_until]
        if self.phase in _TIMED:
            due.append(self._until)
        if self.phase is RingPhase.STARTING or (
            self.phase is RingPhase.RUNNING and not any(self.round.values())
        ):
            due.append(self.roll.next_fill(self.wanted))
        if self.phase in (RingPhase.FORMING, RingPhase.RUNNING):
            due += [worker.heard + self.policy.heartbeat for worker in self.working()]
        if self.is_active and self.policy.deadline is not None:
            due.append(self._began + self.policy.deadline)
        if not self._is_releasing:
            due.append(self.forget_at)
        return min((moment for moment in due if moment is not None), default=None)

    # -- decisions

    def begin(self, now: float, out: list[Instruction]) -> None:
        """It is started, or resumed."""
        self._began = now
        self.chronicle.began(now)
        self._attempt(now, out)

    def attempt_failed(self, failure: Failure, now: float, out: list[Instruction]) -> None:
        """The members could not be brought up together."""
        self.failure, self._until = failure, None
        self.chronicle.note("GangFailed", str(failure), now)
        if self._tries < self.policy.backoff_limit:
            self._tries += 1
            self._until = now + delay(self.policy, self._tries)
        elif self.rounds and self.restarts < self.policy.max_restarts:
            self._count_restart(now)
        else:
            self.next = Next.FAIL
        self.end(now, out)

    def run_failed(self, failure: Failure, now: float, out: list[Instruction]) -> None:
        """User code failed, or a worker that ran it."""
        if self.changes.lets_go(failure, now, out):
            return
        self.failure = failure
        restarts = self.restarts < self.policy.max_restarts
        if restarts:
            self._count_restart(now)
        # a member's death makes others raise, and they may be heard first
        verdict = now + self.policy.verdict if failure.is_raised else now
        self.settle(Next.RESTART if restarts else Next.FAIL, verdict, now, out)

    def heard_why(self, failure: Failure) -> None:
        """Another failure of the same run; a death explains what user code elsewhere raised."""
        if self.failure is None or (self.failure.is_raised and not failure.is_raised):
            same = self.failure is not None and self.failure.worker == failure.worker
            # who raised and exited was not killed
            if not same:
                self.failure = failure

    def settle(self, then: Next, verdict: float, now: float, out: list[Instruction]) -> None:
        """User code has to end; those that are there tell their state first."""
        self.phase, self.next, self._until, self._call_until = (
            RingPhase.SETTLING,
            then,
            verdict,
            None,
        )
        found = map(self.roll.get, self.round)
        there = tuple(w.number for w in found if w is not None and w.ending is None)
        if then in (Next.RESTART, Next.SUSPEND) and there:
            self.collect_until = now + self.policy.collect
            out.append(Collect(self.rounds, there))

    def succeed(self, now: float, out: list[Instruction]) -> None:
        """All is done."""
        self.failure = None
        self.next = Next.SUCCEED
        self.end(now, out)

    def fail(self, failure: Failure, now: float, out: list[Instruction]) -> None:
        """It is to end badly, whatever else was planned."""
        if self.next in (Next.FAIL, Next.SUCCEED):
            return
        self.failure, self.next = failure, Next.FAIL
        self.end(now, out)

    def end(self, now: float, out: list[Instruction]) -> None:
        """End the workers; what follows is :attr:`next`."""
        had_run = self.phase in (RingPhase.RUNNING, RingPhase.SETTLING)
        if self.next is not Next.RESTART:
            self._until = None
        self.collect_until = self._call_until = None
        self.phase = RingPhase.ENDING
        keeps = self.policy.keeps_workers
        if keeps and had_run:
            self.is_halting = True
            out.append(Halt(self.rounds))
        is_over = self.next in (Next.SUCCEED, Next.FAIL)
        self._stays = is_over and had_run and self.policy.clean is Clean.NONE
        if self._stays:
            return
        for worker in self.roll:
            kept = keeps and had_run and worker.state is not State.FAILED
            if not (kept and self.next is Next.RESTART):
                self.roll.end(worker, now, out)

    # -- what is due

    def advance(self, now: float, out: list[Instruction]) -> bool:
        """Do one step of what is due; True where there may be more."""
        before = self.phase, self.next, len(out)
        self.roll.press(now, out)
        deadline = self.policy.deadline
        if self.is_active and deadline is not None and now >= self._began + deadline:
            late = f"it was not done within {deadline:g} s"
            self.fail(Failure(reason="DeadlineExceeded", message=late), now, out)
        step = _STEPS.get(self.phase)
        if step is not None:
            step(self, now, out)
        return before != (self.phase, self.next, len(out))

    def _while_starting(self, now: float, out: list[Instruction]) -> None:
        self.roll.fill(self.wanted, now, out)
        up = self.roll.count(State.UP)
        is_late = self._until is not None and now >= self._until
        is_last_call = self._is_last_call(up, now)
        if up >= self.wanted or is_last_call or (is_late and up >= self.least):
            self._form(now, out)
        elif is_late:
            self.attempt_failed(self._gang_failure(up), now, out)

    def _gang_failure(self, up: int) -> Failure:
        cause = self.roll.failure
        message = (
            f"{up} of {self.wanted} members came up within {self.policy.start_timeout:g} s, so "
            "none was run"
        )
        if cause is None:
            starting = self.roll.starting()
            message += "; missing: " + ", ".join(str(worker.seat) for worker in starting)
            # those that wait for the same say so once
            words = dict.fromkeys(worker.waits_for for worker in starting if worker.waits_for)
            if words:
                message += f" ({'; '.join(words)})"
            return Failure(reason="StartTimeout", message=message)
        return values.evolve(cause, message=f"{cause.message}; {message}")

    def _is_last_call(self, up: int, now: float) -> bool:
        """Whether an elastic ring has waited long enough for the rest."""
        if up < self.least:
            self._call_until = None
        elif self._call_until is None:
            self._call_until = now + self.policy.last_call
        return self._call_until is not None and now >= self._call_until

    def _form(self, now: float, out: list[Instruction]) -> None:
        self.rounds += 1
        self.placements = assign(self.roll.seated())
        self.round = {placement.worker: False for placement in self.placements}
        self.phase, self._call_until = RingPhase.FORMING, None
        self._until = now + self.policy.start_timeout
        for worker in self.working():
            worker.heard = now
        out.append(Form(self.rounds, self.placements, self.restarts))

    def _while_forming(self, now: float, out: list[Instruction]) -> None:
        if self._until is not None and now >= self._until:
            text = f"the members did not get to know each other in {self.policy.start_timeout:g} s"
            self.attempt_failed(Failure(reason="FormTimeout", message=text), now, out)
        else:
            self._give_up_the_silent(now, out)

    def formed(self, now: float, out: list[Instruction]) -> None:
        """User code begins."""
        self.phase, self._until, self._tries = RingPhase.RUNNING, None, 0
        size = sum(placement.slots for placement in self.placements)
        hosts = self.placements[0].nodes
        message = f"{size} rank{'s'[: size > 1]} on {hosts} host{'s'[: hosts > 1]}"
        self.chronicle.is_now(ConditionKind.RUNNING, "RingRunning", message, now)
        self.changes.begin(self.placements)
        for worker in self.working():
            worker.heard = now
        out.append(Go(self.rounds))

    def _while_running(self, now: float, out: list[Instruction]) -> None:
        if all(self.round.values()):
            self.succeed(now, out)
            return
        self._give_up_the_silent(now, out)
        if self.phase is not RingPhase.RUNNING or any(self.round.values()):
            # where somebody is done the others will be soon: nobody is to begin again for a newcomer
            return
        self.roll.fill(self.wanted, now, out)
        if self.policy.is_live:
            self.changes.advance(now, out)
            return
        new = [worker for worker in self.roll.up() if worker.number not in self.round]
        surplus = len(self.round) - self.wanted
        if surplus > 0:
            self.start_again(f"{surplus} fewer are wanted", now, out)
        elif not new:
            self._call_until = None
        elif len(self.round) + len(new) >= self.wanted or self._is_last_call(self.least, now):
            self.start_again(f"{len(new)} more came up", now, out)

    def start_again(self, why: str, now: float, out: list[Instruction]) -> None:
        """All ranks start again because there are more or fewer, which is no failure."""
        self.chronicle.is_now(ConditionKind.RESTARTING, "Resized", why, now)
        self.settle(Next.RESTART, now, now, out)

    def _give_up_the_silent(self, now: float, out: list[Instruction]) -> None:
        for worker in self.working():
            if now < worker.heard + self.policy.heartbeat:
                continue
            worker.state = State.FAILED
            text = f"it gave no sign of life for {self.policy.heartbeat:g} s"
            failure = Failure(
                reason="LEASE", message=text, worker=worker.number, host=worker.host.name
            )
            if self.phase is RingPhase.RUNNING:
                self.run_failed(failure, now, out)
            elif self.phase is RingPhase.FORMING:
                self.attempt_failed(failure, now, out)
            return

    def _while_settling(self, now: float, out: list[Instruction]) -> None:
        if self.collect_until is not None and now >= self.collect_until:
            self.collect_until = None
        if self._until is not None and now >= self._until:
            self._until = None
        if self.collect_until is None and self._until is None:
            self.end(now, out)

    def _while_ending(self, now: float, out: list[Instruction]) -> None:
        is_waiting = not self._stays and any(w.ending is not None for w in self.roll)
        if is_waiting or self.is_halting:
            return
        if self.next is Next.RESTART:
            self.phase = RingPhase.WAITING
        elif self.next is Next.SUSPEND:
            self.phase, self.next = RingPhase.SUSPENDED, Next.RESTART
            self.chronicle.is_now(ConditionKind.SUSPENDED, "RingSuspended", "by its user", now)
        else:
            self.conclude(now, out)

    def _while_waiting(self, now: float, out: list[Instruction]) -> None:
        if self._until is None or now >= self._until:
            self._attempt(now, out)

    def conclude(self, now: float, out: list[Instruction]) -> None:
        """It is over."""
        failure = self.failure
        if self.next is Next.SUCCEED:
            self.phase = RingPhase.SUCCEEDED
            text = "all members are done"
            self.chronicle.is_now(ConditionKind.SUCCEEDED, "RingSucceeded", text, now)
        else:
            self.phase = RingPhase.FAILED
            reason = failure.reason if failure is not None else "Failed"
            self.chronicle.is_now(ConditionKind.FAILED, reason, str(failure), now)
        out.append(Conclude(failure))
        if self.policy.ttl is not None:
            self.forget_at = now + self.policy.ttl
        elif self.policy.clean is Clean.ALL:
            self.forget_at = now

    def _while_over(self, now: float, out: list[Instruction]) -> None:
        if self._has_forgotten or self.forget_at is None or now < self.forget_at:
            return
        if not self._is_releasing:
            self._is_releasing = True
            self.roll.end_all(now, out)
        if not len(self.roll):
            self._has_forgotten = True
            out.append(Forget())

    def _attempt(self, now: float, out: list[Instruction]) -> None:
        self.phase, self.next = RingPhase.STARTING, Next.RESTART
        self.round = {}
        self._until = now + self.policy.start_timeout
        self.roll.begin(now)
        for worker in self.roll:
            if worker.seat >= self.wanted:
                self.roll.end(worker, now, out)

    @property
    def has_forgotten(self) -> bool:
        """True once nothing is kept any more."""
        return self._has_forgotten

    def _count_restart(self, now: float) -> None:
        self.restarts += 1
        text = f"restart {self.restarts} of {self.policy.max_restarts}: {self.failure}"
        self.chronicle.is_now(ConditionKind.RESTARTING, "MemberFailed", text, now)


#: phases that wait for something no longer than a moment
_TIMED = (RingPhase.STARTING, RingPhase.FORMING, RingPhase.SETTLING, RingPhase.WAITING)
_STEPS: dict[RingPhase, Callable[[Course, float, list[Instruction]], None]] = {
    RingPhase.STARTING: Course._while_starting,  # noqa: SLF001 - its own
    RingPhase.FORMING: Course._while_forming,  # noqa: SLF001
    RingPhase.RUNNING: Course._while_running,  # noqa: SLF001
    RingPhase.SETTLING: Course._while_settling,  # noqa: SLF001
    RingPhase.ENDING: Course._while_ending,  # noqa: SLF001
    RingPhase.WAITING: Course._while_waiting,  # noqa: SLF001
    RingPhase.SUCCEEDED: Course._while_over,  # noqa: SLF001
    RingPhase.FAILED: Course._while_over,  # noqa: SLF001
}
