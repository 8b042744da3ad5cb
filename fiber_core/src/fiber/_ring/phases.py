"""Lifecycle of a ring: decides when it starts, restarts, shrinks, grows, ends or has failed.

:class:`Lifecycle` holds the phase and its deadlines, and takes the decisions;
:class:`MembershipChanges` the changes of members while a live ring runs; :class:`EventLog` the
conditions, events and times that users see. All pure: time comes in as an argument, and effects go
out as commands.

Apart from ``machine``, so that what an event means and what follows from it can be read alone.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence

from fiber._base import values
from fiber._ring.events import (
    CleanUp,
    CollectState,
    Command,
    Conclude,
    Halt,
    StartJoin,
    StartRendezvous,
    StartRun,
    UpdateMembers,
)
from fiber._ring.membership import (
    Membership,
    Seated,
    WorkerRecord,
    WorkerState,
    assign,
    assign_in_order,
    backoff_delay,
)
from fiber._ring.model import (
    Clean,
    Condition,
    ConditionKind,
    Failure,
    Group,
    Placement,
    Policy,
    RingEvent,
    RingPhase,
)


class MembershipChanges:
    """Workers that leave and join the running round of a live ring; else without effect.

    Remaining workers keep their order and joining ones are appended, so rank 0 always belongs to a
    worker that knows the others. One worker joins at a time.

    Args:
        lifecycle: of the ring.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        #: changes of the member table so far
        self.count = 0
        self._order: list[Seated] = []
        self._joining: int | None = None
        self._join_until = 0.0

    @property
    def join_deadline(self) -> float | None:
        """Time until which the members that run and the newcomer must have reached each other."""
        present = self._joining is not None and self._is_present(self._joining)
        return self._join_until if present else None

    def begin(self, placements: Sequence[Placement]) -> None:
        """Take over the placements of a round that begins to run."""
        self._joining = None
        self._order = [Seated(one.worker, one.seat, one.host, one.slots) for one in placements]

    def continue_without(self, failure: Failure, now: float, out: list[Command]) -> bool:
        """Drop a failed worker and go on with the others, where that is possible.

        Returns:
            False where the round cannot go on: the ring is not live, user code itself failed, the
            worker has rank 0, whose process hosts the framework's servers, or fewer than the
            minimum would be left.
        """
        lifecycle, number = self._lifecycle, failure.worker
        if not lifecycle.policy.is_live or number is None or number not in lifecycle.round_workers:
            return False
        is_host = number == self._order[0].worker
        if (
            is_host
            or not failure.is_loss
            or len(lifecycle.round_workers) - 1 < lifecycle.min_workers
        ):
            return False
        seat = next(one.seat for one in self._order if one.worker == number)
        lifecycle.membership.record_start_failure(seat, failure, now)
        self._drop([number], now, out)
        lifecycle.event_log.record("MemberLost", str(failure), now)
        self._publish(out)
        return True

    def advance(self, now: float, out: list[Command]) -> None:
        """End surplus workers, and start the join of the next worker that is up."""
        lifecycle = self._lifecycle
        surplus = [one for one in self._order if one.seat >= lifecycle.wanted]
        if surplus and surplus[0] is self._order[0]:
            lifecycle.start_again("the member that the others depend on is to go", now, out)
            return
        if surplus:
            self._drop([one.worker for one in surplus], now, out)
            seats = ", ".join(str(one.seat) for one in surplus)
            lifecycle.event_log.record("MemberLeft", f"fewer are wanted; without {seats}", now)
            self._publish(out)
        if self._joining is not None and self._is_present(self._joining):
            if now < self._join_until:
                return
            self._give_up_join(self._joining, now, out)
        new = [
            one.number
            for one in lifecycle.membership.up()
            if one.number not in lifecycle.round_workers
        ]
        self._joining = new[0] if new else None
        if self._joining is not None:
            self._join_until = now + lifecycle.policy.start_timeout
            out.append(StartJoin(lifecycle.rounds, self._joining))

    def is_joining(self, worker: int) -> bool:
        """True while this worker's join is under way."""
        return worker == self._joining and self._is_present(worker)

    def complete_join(self, number: int, now: float, out: list[Command]) -> None:
        """Add a worker whose join has completed."""
        lifecycle = self._lifecycle
        worker = lifecycle.membership.get(number)
        assert worker is not None, "a worker that has ended does not join"
        self._joining = None
        worker.last_seen = now
        lifecycle.round_workers[number] = False
        self._order.append(Seated(number, worker.seat, worker.host, worker.group.slots))
        lifecycle.event_log.record(
            "MemberJoined", f"member {worker.seat} on {worker.host.name}", now
        )
        self._publish(out)

    def _give_up_join(self, number: int, now: float, out: list[Command]) -> None:
        """End a newcomer that the others have not met in time; another one is started."""
        lifecycle = self._lifecycle
        worker = lifecycle.membership.get(number)
        assert worker is not None, "a worker that has ended is not joining"
        seconds = f"{lifecycle.policy.start_timeout:g} s"
        text = f"the members that run did not all dial it and send their states in {seconds}"
        failure = Failure(reason="JoinTimeout", message=text, worker=number, host=worker.host.name)
        lifecycle.start_failed(worker, failure, now, out)

    def _is_present(self, number: int) -> bool:
        worker = self._lifecycle.membership.get(number)
        return worker is not None and worker.ending_since is None

    def _drop(self, numbers: Sequence[int], now: float, out: list[Command]) -> None:
        lifecycle = self._lifecycle
        self._order = [one for one in self._order if one.worker not in numbers]
        for number in numbers:
            del lifecycle.round_workers[number]
            worker = lifecycle.membership.get(number)
            if worker is not None:
                lifecycle.membership.end(worker, now, out)

    def _publish(self, out: list[Command]) -> None:
        lifecycle = self._lifecycle
        self.count += 1
        lifecycle.placements = assign_in_order(self._order)
        out.append(UpdateMembers(lifecycle.rounds, lifecycle.placements))


_MAX_EVENTS = 200
_TERMINAL = (ConditionKind.SUCCEEDED, ConditionKind.FAILED)
#: conditions that become false when the key becomes true
_CLEARS: dict[ConditionKind, tuple[ConditionKind, ...]] = {
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


class EventLog:
    """Conditions with their last transition, the latest events, and start and end times.

    Args:
        epoch: offset in seconds from the machine's clock to the Unix epoch.
    """

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch
        self._conditions: dict[ConditionKind, Condition] = {}
        self._events: deque[RingEvent] = deque(maxlen=_MAX_EVENTS)
        #: Unix time of the last start or resumption
        self.start_time: float | None = None
        #: Unix time of the end
        self.completion_time: float | None = None

    def set_condition(self, kind: ConditionKind, reason: str, message: str, now: float) -> None:
        """Set a condition, clear those that it excludes, and record an event."""
        for other in _CLEARS[kind]:
            self.clear_condition(other, reason, message, now)
        self._set(kind, True, reason, message, now)
        self.record(reason, message, now)
        if kind in _TERMINAL:
            self.completion_time = self._epoch + now

    def clear_condition(self, kind: ConditionKind, reason: str, message: str, now: float) -> None:
        """Set a condition to false; without effect unless it is true."""
        known = self._conditions.get(kind)
        if known is not None and known.is_true:
            self._set(kind, False, reason, message, now)

    def record(self, reason: str, message: str, now: float) -> None:
        """Record an event."""
        self._events.append(RingEvent(self._epoch + now, reason, message))

    def mark_started(self, now: float) -> None:
        """Note the time of a start or resumption."""
        self.start_time = self._epoch + now

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions that were ever true, one of each kind, oldest transition first."""
        return tuple(self._conditions.values())

    @property
    def events(self) -> tuple[RingEvent, ...]:
        """The latest events, oldest first."""
        return tuple(self._events)

    def _set(
        self, kind: ConditionKind, is_true: bool, reason: str, message: str, now: float
    ) -> None:
        self._conditions.pop(kind, None)
        self._conditions[kind] = Condition(
            kind=kind, is_true=is_true, reason=reason, message=message, time=self._epoch + now
        )


class Next(enum.Enum):
    """Continuation once all workers of a round have ended."""

    #: another attempt; the default
    RESTART = "restart"
    SUSPEND = "suspend"
    SUCCEED = "succeed"
    FAIL = "fail"


class Lifecycle:
    """Phase of a ring and its transitions; owned by :class:`~fiber._ring.machine.RingMachine`.

    Methods append commands to ``out``.

    Args:
        groups: the workers of the ring.
        policy: limits and timeouts.
        epoch: offset in seconds from the machine's clock to the Unix epoch.
    """

    def __init__(self, groups: Sequence[Group], policy: Policy, epoch: float) -> None:
        self.policy = policy
        self.membership = Membership(groups, policy)
        self.event_log = EventLog(epoch)
        self.phase = RingPhase.NEW
        self.next = Next.RESTART
        self.wanted = self.membership.size
        self.min_workers = self.wanted if policy.min is None else policy.min
        self.max_workers = max(self.wanted, policy.min or 0) if policy.max is None else policy.max
        #: workers of the current round by number; True once all ranks have returned
        self.round_workers: dict[int, bool] = {}
        self.placements: tuple[Placement, ...] = ()
        self.rounds = self.restarts = 0
        self.changes = MembershipChanges(self)
        self.failure: Failure | None = None
        #: attempts to bring all members up that failed since the last run
        self._failed_attempts = 0
        self._began = 0.0
        #: deadline of the current phase, if it has one
        self._phase_deadline: float | None = None
        #: deadlines for the survivors' states, for more workers of an elastic ring, and for
        #: the clean-up
        self.collect_until: float | None = None
        self._last_call_until: float | None = None
        self.cleanup_at: float | None = None
        self._is_halting = False
        #: whether the clean-up has begun, and whether it is complete
        self._is_cleaning_up = self._is_cleaned_up = False
        #: whether jobs stay as they are after the end
        self._keeps_jobs = False

    # -- queries

    @property
    def is_elastic(self) -> bool:
        """True where the ring may run with fewer workers than wanted."""
        return self.min_workers < self.wanted

    @property
    def is_active(self) -> bool:
        """True where the ring runs or is to run again, and no end or suspension is due."""
        idle = self.phase in (RingPhase.NEW, RingPhase.SUSPENDED) or self.phase.is_over
        return not idle and self.next is Next.RESTART

    def working(self) -> list[WorkerRecord]:
        """Workers of this round that exist, are not being ended, and have not returned."""
        found = map(
            self.membership.get, [number for number, done in self.round_workers.items() if not done]
        )
        return [worker for worker in found if worker is not None and worker.ending_since is None]

    def next_deadline(self) -> float | None:
        """Time at which :meth:`advance` has something to do."""
        due = [self.membership.next_escalation(), self.collect_until, self._last_call_until]
        if self.phase in _TIMED:
            due.append(self._phase_deadline)
        if self.phase is RingPhase.STARTING or (
            self.phase is RingPhase.RUNNING and not any(self.round_workers.values())
        ):
            due.append(self.membership.next_fill(self.wanted))
            if self.phase is RingPhase.RUNNING:
                due.append(self.changes.join_deadline)
        if self.phase in (RingPhase.FORMING, RingPhase.RUNNING):
            due += [worker.last_seen + self.policy.heartbeat for worker in self.working()]
        if self.is_active and self.policy.deadline is not None:
            due.append(self._began + self.policy.deadline)
        if not self._is_cleaning_up:
            due.append(self.cleanup_at)
        return min((moment for moment in due if moment is not None), default=None)

    # -- decisions

    def begin(self, now: float, out: list[Command]) -> None:
        """Start or resume the ring."""
        self._began = now
        self.event_log.mark_started(now)
        self._start_attempt(now, out)

    def start_failed(
        self, worker: WorkerRecord, failure: Failure, now: float, out: list[Command]
    ) -> None:
        """Handle the failure of a worker that is in no round yet: another one is started later."""
        self.event_log.record("MemberNotStarted", str(failure), now)
        self.membership.record_start_failure(worker.seat, failure, now)
        if self.membership.get(worker.number) is not None:
            self.membership.end(worker, now, out)

    def attempt_failed(self, failure: Failure, now: float, out: list[Command]) -> None:
        """Handle an attempt that did not bring all members up together."""
        self.failure, self._phase_deadline = failure, None
        self.event_log.record("GangFailed", str(failure), now)
        if self._failed_attempts < self.policy.backoff_limit:
            self._failed_attempts += 1
            self._phase_deadline = now + backoff_delay(self.policy, self._failed_attempts)
        elif self.rounds and self.restarts < self.policy.max_restarts:
            self._record_restart(now)
        else:
            self.next = Next.FAIL
        self.end(now, out)

    def run_failed(self, failure: Failure, now: float, out: list[Command]) -> None:
        """Handle a failure of user code, or the loss of a worker that ran it."""
        if self.changes.continue_without(failure, now, out):
            return
        self.failure = failure
        restarts = self.restarts < self.policy.max_restarts
        if restarts:
            self._record_restart(now)
        # a member's death makes others raise, and their messages may come first
        until = now + self.policy.timing.failure_window if failure.is_raised else now
        self.settle(Next.RESTART if restarts else Next.FAIL, until, now, out)

    def explain_failure(self, failure: Failure) -> None:
        """Handle a further failure of a run: a member's death explains what others raised."""
        if self.failure is None or (self.failure.is_raised and not failure.is_raised):
            same = self.failure is not None and self.failure.worker == failure.worker
            # the exit of a process after it raised is no cause
            if not same:
                self.failure = failure

    def settle(self, then: Next, until: float, now: float, out: list[Command]) -> None:
        """Wait for causes until ``until`` and for the survivors' states; then end the round."""
        self.phase, self.next, self._phase_deadline, self._last_call_until = (
            RingPhase.SETTLING,
            then,
            until,
            None,
        )
        found = map(self.membership.get, self.round_workers)
        there = tuple(w.number for w in found if w is not None and w.ending_since is None)
        if then in (Next.RESTART, Next.SUSPEND) and there:
            self.collect_until = now + self.policy.timing.collect
            out.append(CollectState(self.rounds, there))

    def succeed(self, now: float, out: list[Command]) -> None:
        """End the workers; the ring has succeeded."""
        self.failure = None
        self.next = Next.SUCCEED
        self.end(now, out)

    def fail(self, failure: Failure, now: float, out: list[Command]) -> None:
        """End the workers; the ring has failed, whatever was due otherwise."""
        if self.next in (Next.FAIL, Next.SUCCEED):
            return
        self.failure, self.next = failure, Next.FAIL
        self.end(now, out)

    def end(self, now: float, out: list[Command]) -> None:
        """End the workers; :attr:`next` is the continuation."""
        had_run = self.phase in (RingPhase.RUNNING, RingPhase.SETTLING)
        if self.next is not Next.RESTART:
            self._phase_deadline = None
        self.collect_until = self._last_call_until = None
        self.phase = RingPhase.ENDING
        is_over = self.next in (Next.SUCCEED, Next.FAIL)
        self._keeps_jobs = is_over and had_run and self.policy.clean is Clean.NONE
        if self.policy.halts and had_run:
            self._is_halting = True
            out.append(Halt(self.rounds, self.failure))
        elif not self._is_halting:
            self._end_workers(now, out)

    def halted(self, now: float, out: list[Command]) -> None:
        """End the workers, now that what they ran has ended."""
        if self._is_halting:
            self._is_halting = False
            self._end_workers(now, out)

    def _end_workers(self, now: float, out: list[Command]) -> None:
        if not self._keeps_jobs:
            self.membership.end_all(now, out)

    # -- steps by time and state

    def advance(self, now: float, out: list[Command]) -> bool:
        """Take one step that is due; True where there may be another."""
        before = self.phase, self.next, len(out)
        self.membership.escalate(now, out)
        deadline = self.policy.deadline
        if self.is_active and deadline is not None and now >= self._began + deadline:
            late = f"it was not done within {deadline:g} s"
            self.fail(Failure(reason="DeadlineExceeded", message=late), now, out)
        step = _STEPS.get(self.phase)
        if step is not None:
            step(self, now, out)
        return before != (self.phase, self.next, len(out))

    def _while_starting(self, now: float, out: list[Command]) -> None:
        self.membership.fill(self.wanted, now, out)
        up = self.membership.count(WorkerState.UP)
        is_late = self._phase_deadline is not None and now >= self._phase_deadline
        is_last_call = self._is_last_call(up, now)
        if up >= self.wanted or is_last_call or (is_late and up >= self.min_workers):
            self._start_rendezvous(now, out)
        elif is_late:
            self.attempt_failed(self._start_timeout_failure(up), now, out)

    def _start_timeout_failure(self, up: int) -> Failure:
        cause = self.membership.failure
        message = (
            f"{up} of {self.wanted} members came up within {self.policy.start_timeout:g} s, so "
            "none was run"
        )
        if cause is None:
            starting = self.membership.starting()
            message += "; missing: " + ", ".join(w.group.name or str(w.seat) for w in starting)
            # a message that several workers have stands once
            words = dict.fromkeys(
                worker.pending_reason for worker in starting if worker.pending_reason
            )
            if words:
                message += f" ({'; '.join(words)})"
            return Failure(reason="StartTimeout", message=message)
        return values.evolve(cause, message=f"{cause.message}; {message}")

    def _is_last_call(self, up: int, now: float) -> bool:
        """True where an elastic ring has waited ``last_call`` seconds for more workers."""
        if up < self.min_workers:
            self._last_call_until = None
        elif self._last_call_until is None:
            self._last_call_until = now + self.policy.timing.last_call
        return self._last_call_until is not None and now >= self._last_call_until

    def _start_rendezvous(self, now: float, out: list[Command]) -> None:
        self.rounds += 1
        self.placements = assign(self.membership.seated())
        self.round_workers = {placement.worker: False for placement in self.placements}
        self.phase, self._last_call_until = RingPhase.FORMING, None
        self._phase_deadline = now + self.policy.start_timeout
        for worker in self.working():
            worker.last_seen = now
        out.append(StartRendezvous(self.rounds, self.placements, self.restarts))

    def _while_forming(self, now: float, out: list[Command]) -> None:
        if self._phase_deadline is not None and now >= self._phase_deadline:
            text = f"the members did not get to know each other in {self.policy.start_timeout:g} s"
            self.attempt_failed(Failure(reason="FormTimeout", message=text), now, out)
        else:
            self._fail_silent_workers(now, out)

    def start_run(self, now: float, out: list[Command]) -> None:
        """Start user code on the workers of the round."""
        self.phase, self._phase_deadline, self._failed_attempts = RingPhase.RUNNING, None, 0
        size = sum(placement.slots for placement in self.placements)
        hosts = self.placements[0].nodes
        message = f"{size} rank{'s'[: size > 1]} on {hosts} host{'s'[: hosts > 1]}"
        self.event_log.set_condition(ConditionKind.RUNNING, "RingRunning", message, now)
        self.changes.begin(self.placements)
        for worker in self.working():
            worker.last_seen = now
        out.append(StartRun(self.rounds))

    def _while_running(self, now: float, out: list[Command]) -> None:
        if all(self.round_workers.values()):
            self.succeed(now, out)
            return
        self._fail_silent_workers(now, out)
        if self.phase is not RingPhase.RUNNING or any(self.round_workers.values()):
            # where one member is done the others will be soon: no restart for a new worker
            return
        self.membership.fill(self.wanted, now, out)
        if self.policy.is_live:
            self.changes.advance(now, out)
            return
        new = [worker for worker in self.membership.up() if worker.number not in self.round_workers]
        surplus = len(self.round_workers) - self.wanted
        if surplus > 0:
            self.start_again(f"{surplus} fewer are wanted", now, out)
        elif not new:
            self._last_call_until = None
        elif len(self.round_workers) + len(new) >= self.wanted or self._is_last_call(
            self.min_workers, now
        ):
            self.start_again(f"{len(new)} more came up", now, out)

    def start_again(self, why: str, now: float, out: list[Command]) -> None:
        """Restart all ranks because the ring was resized, which is no failure."""
        self.event_log.set_condition(ConditionKind.RESTARTING, "Resized", why, now)
        self.settle(Next.RESTART, now, now, out)

    def _fail_silent_workers(self, now: float, out: list[Command]) -> None:
        for worker in self.working():
            if now < worker.last_seen + self.policy.heartbeat:
                continue
            worker.state = WorkerState.FAILED
            text = f"it gave no sign of life for {self.policy.heartbeat:g} s"
            failure = Failure(
                reason="LEASE", message=text, worker=worker.number, host=worker.host.name
            )
            if self.phase is RingPhase.RUNNING:
                self.run_failed(failure, now, out)
            elif self.phase is RingPhase.FORMING:
                self.attempt_failed(failure, now, out)
            return

    def _while_settling(self, now: float, out: list[Command]) -> None:
        if self.collect_until is not None and now >= self.collect_until:
            self.collect_until = None
        if self._phase_deadline is not None and now >= self._phase_deadline:
            self._phase_deadline = None
        if self.collect_until is None and self._phase_deadline is None:
            self.end(now, out)

    def _while_ending(self, now: float, out: list[Command]) -> None:
        is_waiting = not self._keeps_jobs and any(
            w.ending_since is not None for w in self.membership
        )
        if is_waiting or self._is_halting:
            return
        if self.next is Next.RESTART:
            self.phase = RingPhase.WAITING
        elif self.next is Next.SUSPEND:
            self.phase, self.next = RingPhase.SUSPENDED, Next.RESTART
            self.event_log.set_condition(
                ConditionKind.SUSPENDED, "RingSuspended", "by its user", now
            )
        else:
            self.conclude(now, out)

    def _while_waiting(self, now: float, out: list[Command]) -> None:
        if self._phase_deadline is None or now >= self._phase_deadline:
            self._start_attempt(now, out)

    def conclude(self, now: float, out: list[Command]) -> None:
        """Set the final phase and condition, and publish the outcome."""
        failure = self.failure
        if self.next is Next.SUCCEED:
            self.phase = RingPhase.SUCCEEDED
            text = "all members are done"
            self.event_log.set_condition(ConditionKind.SUCCEEDED, "RingSucceeded", text, now)
        else:
            self.phase = RingPhase.FAILED
            reason = failure.reason if failure is not None else "Failed"
            self.event_log.set_condition(ConditionKind.FAILED, reason, str(failure), now)
        out.append(Conclude(failure))
        if self.policy.ttl is not None:
            self.cleanup_at = now + self.policy.ttl
        elif self.policy.clean is Clean.ALL:
            self.cleanup_at = now

    def _while_over(self, now: float, out: list[Command]) -> None:
        if self._is_cleaned_up or self.cleanup_at is None or now < self.cleanup_at:
            return
        if not self._is_cleaning_up:
            self._is_cleaning_up = True
            self.membership.end_all(now, out)
        if not len(self.membership):
            self._is_cleaned_up = True
            out.append(CleanUp())

    def _start_attempt(self, now: float, out: list[Command]) -> None:
        self.phase, self.next = RingPhase.STARTING, Next.RESTART
        self.round_workers = {}
        self._phase_deadline = now + self.policy.start_timeout
        self.membership.begin_attempt(now)
        for worker in self.membership:
            if worker.seat >= self.wanted:
                self.membership.end(worker, now, out)

    def _record_restart(self, now: float) -> None:
        self.restarts += 1
        text = f"restart {self.restarts} of {self.policy.max_restarts}: {self.failure}"
        self.event_log.set_condition(ConditionKind.RESTARTING, "MemberFailed", text, now)


#: phases that have a deadline
_TIMED = (RingPhase.STARTING, RingPhase.FORMING, RingPhase.SETTLING, RingPhase.WAITING)
_STEPS: dict[RingPhase, Callable[[Lifecycle, float, list[Command]], None]] = {
    RingPhase.STARTING: Lifecycle._while_starting,  # noqa: SLF001 - its own
    RingPhase.FORMING: Lifecycle._while_forming,  # noqa: SLF001
    RingPhase.RUNNING: Lifecycle._while_running,  # noqa: SLF001
    RingPhase.SETTLING: Lifecycle._while_settling,  # noqa: SLF001
    RingPhase.ENDING: Lifecycle._while_ending,  # noqa: SLF001
    RingPhase.WAITING: Lifecycle._while_waiting,  # noqa: SLF001
    RingPhase.SUCCEEDED: Lifecycle._while_over,  # noqa: SLF001
    RingPhase.FAILED: Lifecycle._while_over,  # noqa: SLF001
}
