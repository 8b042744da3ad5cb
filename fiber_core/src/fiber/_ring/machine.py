"""State machine of a ring: decides when it starts, restarts, shrinks, grows, ends or has failed; pure.

:class:`RingMachine` checks each event against the phase and the membership, and takes the decisions;
:class:`MembershipChanges` has the changes of members while a live ring runs, :class:`EventLog` the
conditions, events and times that users see. Time comes in with each event, and effects go out as
commands: :class:`~fiber._ring.membership.Step` has both.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fiber._base import values
from fiber._ring import events
from fiber._ring.membership import (
    Membership,
    Seated,
    Step,
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
    RingStatus,
)

_MAX_EVENTS = 200
_TERMINAL = (ConditionKind.SUCCEEDED, ConditionKind.FAILED)
#: conditions of which one is true at most, and none once the ring is over
_EXCLUSIVE = (ConditionKind.RUNNING, ConditionKind.RESTARTING, ConditionKind.SUSPENDED)


class EventLog:
    """Conditions with their last transition, the latest events, and start and end times.

    Args:
        step: has the time.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._conditions: dict[ConditionKind, Condition] = {}
        self._events: deque[RingEvent] = deque(maxlen=_MAX_EVENTS)
        #: Unix time of the last start or resumption
        self.start_time: float | None = None
        #: Unix time of the end
        self.completion_time: float | None = None

    def set_condition(self, kind: ConditionKind, reason: str, message: str) -> None:
        """Set a condition, clear those that it excludes, and record an event."""
        for other in _EXCLUSIVE:
            if kind not in (other, ConditionKind.CREATED):
                self.clear_condition(other, reason, message)
        self._set(kind, True, reason, message)
        self.record(reason, message)
        if kind in _TERMINAL:
            self.completion_time = self._step.unix_time

    def clear_condition(self, kind: ConditionKind, reason: str, message: str) -> None:
        """Set a condition to false; without effect unless it is true."""
        known = self._conditions.get(kind)
        if known is not None and known.is_true:
            self._set(kind, False, reason, message)

    def record(self, reason: str, message: str) -> None:
        """Record an event."""
        self._events.append(RingEvent(self._step.unix_time, reason, message))

    def mark_started(self) -> None:
        """Note the time of a start or resumption."""
        self.start_time = self._step.unix_time

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Conditions that were ever true, one of each kind, oldest transition first."""
        return tuple(self._conditions.values())

    @property
    def events(self) -> tuple[RingEvent, ...]:
        """The latest events, oldest first."""
        return tuple(self._events)

    def _set(self, kind: ConditionKind, is_true: bool, reason: str, message: str) -> None:
        self._conditions.pop(kind, None)
        self._conditions[kind] = Condition(
            kind=kind, is_true=is_true, reason=reason, message=message, time=self._step.unix_time
        )


class MembershipChanges:
    """Workers that leave and join the running round of a live ring; else without effect.

    Remaining workers keep their order and joining ones are appended, so rank 0 always belongs to a
    worker that knows the others. One worker joins at a time.

    Args:
        machine: of the ring.
    """

    def __init__(self, machine: RingMachine) -> None:
        self._machine = machine
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

    def continue_without(self, failure: Failure) -> bool:
        """Drop a failed worker and go on with the others, where that is possible.

        Returns:
            False where the round cannot go on: the ring is not live, user code itself failed, the
            worker has rank 0, whose process hosts the framework's servers, or fewer than the
            minimum would be left.
        """
        machine, number = self._machine, failure.worker
        if not machine.policy.is_live or number is None or number not in machine.round_workers:
            return False
        is_host = number == self._order[0].worker
        if is_host or not failure.is_loss or len(machine.round_workers) - 1 < machine.min_workers:
            return False
        seat = next(one.seat for one in self._order if one.worker == number)
        machine.membership.record_start_failure(seat, failure)
        self._drop([number])
        machine.event_log.record("MemberLost", str(failure))
        self._publish()
        return True

    def advance(self) -> None:
        """End surplus workers, and start the join of the next worker that is up."""
        machine = self._machine
        surplus = [one for one in self._order if one.seat >= machine.wanted]
        if surplus and surplus[0] is self._order[0]:
            machine.start_again("the member that the others depend on is to go")
            return
        if surplus:
            self._drop([one.worker for one in surplus])
            seats = ", ".join(str(one.seat) for one in surplus)
            machine.event_log.record("MemberLeft", f"fewer are wanted; without {seats}")
            self._publish()
        if self._joining is not None and self._is_present(self._joining):
            if machine.step.now < self._join_until:
                return
            self._give_up_join(self._joining)
        new = [
            one.number for one in machine.membership.up() if one.number not in machine.round_workers
        ]
        self._joining = new[0] if new else None
        if self._joining is not None:
            self._join_until = machine.step.now + machine.policy.start_timeout
            machine.step.commands.append(events.StartJoin(machine.rounds, self._joining))

    def is_joining(self, worker: int) -> bool:
        """True while this worker's join is under way."""
        return worker == self._joining and self._is_present(worker)

    def complete_join(self, number: int) -> None:
        """Add a worker whose join has completed."""
        machine = self._machine
        worker = machine.membership.get(number)
        assert worker is not None, "a worker that has ended does not join"
        self._joining = None
        worker.last_seen = machine.step.now
        machine.round_workers[number] = False
        self._order.append(Seated(number, worker.seat, worker.host, worker.group.slots))
        machine.event_log.record("MemberJoined", f"member {worker.seat} on {worker.host.name}")
        self._publish()

    def _give_up_join(self, number: int) -> None:
        """End a newcomer that the others have not met in time; another one is started."""
        machine = self._machine
        worker = machine.membership.get(number)
        assert worker is not None, "a worker that has ended is not joining"
        seconds = f"{machine.policy.start_timeout:g} s"
        text = f"the members that run did not all dial it and send their states in {seconds}"
        failure = Failure(reason="JoinTimeout", message=text, worker=number, host=worker.host.name)
        machine.start_failed(worker, failure)

    def _is_present(self, number: int) -> bool:
        worker = self._machine.membership.get(number)
        return worker is not None and worker.ending_since is None

    def _drop(self, numbers: Sequence[int]) -> None:
        machine = self._machine
        self._order = [one for one in self._order if one.worker not in numbers]
        for number in numbers:
            del machine.round_workers[number]
            worker = machine.membership.get(number)
            if worker is not None:
                machine.membership.end(worker)

    def _publish(self) -> None:
        machine = self._machine
        self.count += 1
        machine.placements = assign_in_order(self._order)
        machine.step.commands.append(events.UpdateMembers(machine.rounds, machine.placements))


class Next(enum.Enum):
    """Continuation once all workers of a round have ended."""

    #: another attempt; the default
    RESTART = "restart"
    SUSPEND = "suspend"
    SUCCEED = "succeed"
    FAIL = "fail"


_ENDED_EARLY = Failure(reason="EXIT(0)", message="it ended before its function returned")
#: phases that have a deadline
_TIMED = (RingPhase.STARTING, RingPhase.FORMING, RingPhase.SETTLING, RingPhase.WAITING)


class RingMachine:
    """State machine that decides when a ring's workers start, run, restart and end.

    Not thread-safe: its one owner calls :meth:`handle`. All workers run or none does, the first
    failure ends the others, and the policy decides what follows.

    Args:
        groups: the workers of the ring, alike within a group.
        policy: limits and timeouts.
        epoch: offset in seconds from the machine's clock to the Unix epoch.

    Raises:
        ValueError: there are more workers than ``max``, or fewer than ``min``.
    """

    def __init__(self, groups: Sequence[Group], policy: Policy, *, epoch: float = 0.0) -> None:
        self.policy = policy
        self.step = Step(epoch)
        self.membership = Membership(groups, policy, self.step)
        self.event_log = EventLog(self.step)
        #: the current phase
        self.phase = RingPhase.NEW
        self.next = Next.RESTART
        self.wanted = self.membership.size
        self.min_workers = self.wanted if policy.min is None else policy.min
        self.max_workers = max(self.wanted, policy.min or 0) if policy.max is None else policy.max
        if not self.min_workers <= self.wanted <= self.max_workers:
            bounds = f"min={self.min_workers} and max={self.max_workers}"
            msg = f"{bounds} do not fit {self.wanted} members"
            raise ValueError(msg)
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
        self._collect_until: float | None = None
        self._last_call_until: float | None = None
        self._cleanup_at: float | None = None
        self._is_halting = False
        #: whether the clean-up has begun, and whether it is complete
        self._is_cleaning_up = self._is_cleaned_up = False
        #: whether jobs stay as they are after the end
        self._keeps_jobs = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.StartRequested: self._start_requested,
            events.WorkerUp: self._worker_up,
            events.WorkerPending: self._worker_pending,
            events.WorkerHeartbeat: self._worker_heartbeat,
            events.ControllerPaused: self._controller_paused,
            events.WorkerDone: self._worker_done,
            events.WorkerFailed: self._worker_failed,
            events.WorkerEnded: self._worker_ended,
            events.RendezvousCompleted: self._rendezvous_completed,
            events.RendezvousFailed: self._rendezvous_failed,
            events.JoinCompleted: self._join_completed,
            events.JoinFailed: self._join_failed,
            events.StateCollected: self._state_collected,
            events.Halted: self._halted,
            events.RoundEnded: self._round_ended,
            events.SuspendRequested: self._suspend_requested,
            events.ResumeRequested: self._resume_requested,
            events.ResizeRequested: self._resize_requested,
            events.TerminateRequested: self._terminate_requested,
            # what is due follows each event
            events.Tick: lambda _: None,
        }
        self._steps: dict[RingPhase, Callable[[], None]] = {
            RingPhase.STARTING: self._while_starting,
            RingPhase.FORMING: self._while_forming,
            RingPhase.RUNNING: self._while_running,
            RingPhase.SETTLING: self._while_settling,
            RingPhase.ENDING: self._while_ending,
            RingPhase.WAITING: self._while_waiting,
            RingPhase.SUCCEEDED: self._while_over,
            RingPhase.FAILED: self._while_over,
        }

    def handle(self, event: events.Event, now: float) -> list[events.Command]:
        """Process an event; events about workers and rounds that have ended change nothing.

        Args:
            event: the event.
            now: its time in seconds, by any monotonic clock.

        Returns:
            Commands for the controller, to be carried out in this order.

        Raises:
            ValueError: a second start, or a size outside ``min`` and ``max``.
        """
        self.step.now, self.step.commands = now, []
        self._handlers[type(event)](event)
        while self._advance():
            pass
        return self.step.commands

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Fewest and most ranks of a live ring; None for rings whose size is fixed while they run."""
        if not self.policy.is_live:
            return None
        fewest, most = self.membership.slots
        return self.min_workers * fewest, self.max_workers * most

    def status(self) -> RingStatus:
        """Snapshot of the ring for its user."""
        count = self.membership.count
        return RingStatus(
            phase=self.phase,
            conditions=self.event_log.conditions,
            events=self.event_log.events,
            placements=self.placements,
            wanted=self.wanted,
            starting=count(WorkerState.STARTING),
            up=count(WorkerState.UP) + count(WorkerState.DONE),
            restarts=self.restarts,
            rounds=self.rounds,
            changes=self.changes.count,
            failure=self.failure,
            start_time=self.event_log.start_time,
            completion_time=self.event_log.completion_time,
        )

    @property
    def _is_elastic(self) -> bool:
        """True where the ring may run with fewer workers than wanted."""
        return self.min_workers < self.wanted

    @property
    def _is_active(self) -> bool:
        """True where the ring runs or is to run again, and no end or suspension is due."""
        idle = self.phase in (RingPhase.NEW, RingPhase.SUSPENDED) or self.phase.is_over
        return not idle and self.next is Next.RESTART

    def _working(self) -> list[WorkerRecord]:
        """Workers of this round that exist, are not being ended, and have not returned."""
        found = map(
            self.membership.get, [number for number, done in self.round_workers.items() if not done]
        )
        return [worker for worker in found if worker is not None and worker.ending_since is None]

    def next_deadline(self) -> float | None:
        """Time of the next :class:`~fiber._ring.events.Tick`; None if none is needed."""
        due = [self.membership.next_escalation(), self._collect_until, self._last_call_until]
        if self.phase in _TIMED:
            due.append(self._phase_deadline)
        if self.phase is RingPhase.STARTING or (
            self.phase is RingPhase.RUNNING and not any(self.round_workers.values())
        ):
            due.append(self.membership.next_fill(self.wanted))
            if self.phase is RingPhase.RUNNING:
                due.append(self.changes.join_deadline)
        if self.phase in (RingPhase.FORMING, RingPhase.RUNNING):
            due += [worker.last_seen + self.policy.heartbeat for worker in self._working()]
        if self._is_active and self.policy.deadline is not None:
            due.append(self._began + self.policy.deadline)
        if not self._is_cleaning_up:
            due.append(self._cleanup_at)
        return min((moment for moment in due if moment is not None), default=None)

    # -- requests of the user

    def _start_requested(self, event: events.StartRequested) -> None:
        if self.phase is not RingPhase.NEW:
            msg = "a ring can only be started once"
            raise ValueError(msg)
        message = f"{self.wanted} members are wanted"
        self.event_log.set_condition(ConditionKind.CREATED, "RingCreated", message)
        self._begin()

    def _suspend_requested(self, event: events.SuspendRequested) -> None:
        if not self._is_active:
            return
        if self.phase is RingPhase.RUNNING:
            self._settle(Next.SUSPEND, self.step.now)
        else:
            self.next = Next.SUSPEND
            if self.phase is not RingPhase.SETTLING:
                self._end()

    def _resume_requested(self, event: events.ResumeRequested) -> None:
        if self.phase is RingPhase.SUSPENDED:
            text = "resumed by its user"
            self.event_log.clear_condition(ConditionKind.SUSPENDED, "RingResumed", text)
            self.event_log.record("RingResumed", text)
            self._begin()
        elif self.next is Next.SUSPEND:
            # the suspension has not been carried out yet
            self.next = Next.RESTART

    def _resize_requested(self, event: events.ResizeRequested) -> None:
        if not self.min_workers <= event.workers <= self.max_workers:
            msg = (
                f"a ring with min={self.min_workers} and max={self.max_workers} cannot have "
                f"{event.workers} members"
            )
            raise ValueError(msg)
        self.wanted = event.workers
        for worker in self.membership:
            if worker.seat >= self.wanted and worker.number not in self.round_workers:
                self.membership.end(worker)

    def _terminate_requested(self, event: events.TerminateRequested) -> None:
        if self.phase.is_over:
            self._cleanup_at = self.step.now
            return
        failure = Failure(reason="Terminated", message=event.message)
        if self.phase in (RingPhase.NEW, RingPhase.SUSPENDED):
            self.failure, self.next = failure, Next.FAIL
            self._conclude()
        else:
            self._fail(failure)

    # -- events of workers

    def _worker_up(self, event: events.WorkerUp) -> None:
        worker = self.membership.get(event.worker)
        if worker is not None and worker.state is WorkerState.STARTING:
            worker.state, worker.host, worker.last_seen = WorkerState.UP, event.host, self.step.now

    def _worker_pending(self, event: events.WorkerPending) -> None:
        worker = self.membership.get(event.worker)
        if worker is not None and worker.pending_reason != event.reason:
            worker.pending_reason = event.reason
            self.event_log.record("MemberWaits", f"member {worker.seat}: {event.reason}")

    def _worker_heartbeat(self, event: events.WorkerHeartbeat) -> None:
        worker = self.membership.get(event.worker)
        if worker is not None:
            worker.last_seen = self.step.now

    def _controller_paused(self, event: events.ControllerPaused) -> None:
        for worker in self.membership:
            worker.last_seen = self.step.now

    def _worker_done(self, event: events.WorkerDone) -> None:
        worker = self.membership.get(event.worker)
        if worker is None or self.phase is not RingPhase.RUNNING:
            return
        if event.worker in self.round_workers and worker.state is WorkerState.UP:
            self.round_workers[event.worker] = True
            worker.state = WorkerState.DONE

    def _worker_failed(self, event: events.WorkerFailed) -> None:
        worker = self.membership.get(event.worker)
        if worker is None or worker.state is WorkerState.FAILED:
            return
        worker.state = WorkerState.FAILED
        if worker.ending_since is None:
            self._worker_lost(worker, event.failure)

    def _worker_ended(self, event: events.WorkerEnded) -> None:
        worker = self.membership.remove(event.worker)
        if worker is None or worker.ending_since is not None:
            return
        if worker.state in (WorkerState.STARTING, WorkerState.UP):
            self._worker_lost(worker, event.failure or _ENDED_EARLY)

    def _worker_lost(self, worker: WorkerRecord, failure: Failure) -> None:
        failure = values.evolve(
            failure, worker=worker.number, host=failure.host or worker.host.name
        )
        if worker.number not in self.round_workers:
            self.start_failed(worker, failure)
            if self.phase is RingPhase.STARTING and not self._is_elastic:
                self._attempt_failed(failure)
        elif self.phase is RingPhase.FORMING:
            self._attempt_failed(failure)
        elif self.phase is RingPhase.RUNNING:
            self._run_failed(failure)
        elif self.phase is RingPhase.SETTLING:
            self._explain_failure(failure)

    # -- events of rounds

    def _rendezvous_completed(self, event: events.RendezvousCompleted) -> None:
        if self.phase is RingPhase.FORMING and event.round == self.rounds:
            self._start_run()

    def _rendezvous_failed(self, event: events.RendezvousFailed) -> None:
        if self.phase is RingPhase.FORMING and event.round == self.rounds:
            self._attempt_failed(event.failure)

    def _join_completed(self, event: events.JoinCompleted) -> None:
        if self._is_joining(event):
            self.changes.complete_join(event.worker)

    def _join_failed(self, event: events.JoinFailed) -> None:
        if self._is_joining(event):
            worker = self.membership.get(event.worker)
            assert worker is not None, "a worker that has ended is not joining"
            self._worker_lost(worker, event.failure)

    def _is_joining(self, event: events.JoinCompleted | events.JoinFailed) -> bool:
        is_now = self.phase is RingPhase.RUNNING and event.round == self.rounds
        return is_now and self.changes.is_joining(event.worker)

    def _state_collected(self, event: events.StateCollected) -> None:
        if event.round == self.rounds:
            self._collect_until = None

    def _halted(self, event: events.Halted) -> None:
        if event.round == self.rounds and self._is_halting:
            self._is_halting = False
            self._end_workers()

    def _round_ended(self, event: events.RoundEnded) -> None:
        if event.round != self.rounds:
            return
        if self.phase is RingPhase.RUNNING:
            if event.failure is None:
                self._succeed()
            else:
                self._run_failed(event.failure)
        elif self.phase is RingPhase.SETTLING and event.failure is not None:
            self._explain_failure(event.failure)

    # -- decisions

    def _begin(self) -> None:
        """Start or resume the ring."""
        self._began = self.step.now
        self.event_log.mark_started()
        self._start_attempt()

    def start_failed(self, worker: WorkerRecord, failure: Failure) -> None:
        """Handle the failure of a worker that is in no round yet: another one is started later."""
        self.event_log.record("MemberNotStarted", str(failure))
        self.membership.record_start_failure(worker.seat, failure)
        if self.membership.get(worker.number) is not None:
            self.membership.end(worker)

    def _attempt_failed(self, failure: Failure) -> None:
        """Handle an attempt that did not bring all members up together."""
        self.failure, self._phase_deadline = failure, None
        self.event_log.record("GangFailed", str(failure))
        if self._failed_attempts < self.policy.backoff_limit:
            self._failed_attempts += 1
            self._phase_deadline = self.step.now + backoff_delay(self.policy, self._failed_attempts)
        elif self.rounds and self.restarts < self.policy.max_restarts:
            self._record_restart()
        else:
            self.next = Next.FAIL
        self._end()

    def _run_failed(self, failure: Failure) -> None:
        """Handle a failure of user code, or the loss of a worker that ran it."""
        if self.changes.continue_without(failure):
            return
        self.failure = failure
        restarts = self.restarts < self.policy.max_restarts
        if restarts:
            self._record_restart()
        # a member's death makes others raise, and their messages may come first
        window = self.policy.timing.failure_window if failure.is_raised else 0.0
        self._settle(Next.RESTART if restarts else Next.FAIL, self.step.now + window)

    def _explain_failure(self, failure: Failure) -> None:
        """Handle a further failure of a run: a member's death explains what others raised."""
        known = self.failure
        # the exit of a process after it raised is no cause
        if known is None or (
            known.is_raised and not failure.is_raised and known.worker != failure.worker
        ):
            self.failure = failure

    def _settle(self, then: Next, until: float) -> None:
        """Wait for causes until ``until`` and for the survivors' states; then end the round."""
        self.phase, self.next = RingPhase.SETTLING, then
        self._phase_deadline, self._last_call_until = until, None
        found = map(self.membership.get, self.round_workers)
        there = tuple(w.number for w in found if w is not None and w.ending_since is None)
        if then in (Next.RESTART, Next.SUSPEND) and there:
            self._collect_until = self.step.now + self.policy.timing.collect
            self.step.commands.append(events.CollectState(self.rounds, there))

    def _succeed(self) -> None:
        """End the workers; the ring has succeeded."""
        self.failure = None
        self.next = Next.SUCCEED
        self._end()

    def _fail(self, failure: Failure) -> None:
        """End the workers; the ring has failed, whatever was due otherwise."""
        if self.next in (Next.FAIL, Next.SUCCEED):
            return
        self.failure, self.next = failure, Next.FAIL
        self._end()

    def _end(self) -> None:
        """End the workers; :attr:`next` is the continuation."""
        had_run = self.phase in (RingPhase.RUNNING, RingPhase.SETTLING)
        if self.next is not Next.RESTART:
            self._phase_deadline = None
        self._collect_until = self._last_call_until = None
        self.phase = RingPhase.ENDING
        is_over = self.next in (Next.SUCCEED, Next.FAIL)
        self._keeps_jobs = is_over and had_run and self.policy.clean is Clean.NONE
        if self.policy.halts and had_run:
            self._is_halting = True
            self.step.commands.append(events.Halt(self.rounds, self.failure))
        elif not self._is_halting:
            self._end_workers()

    def _end_workers(self) -> None:
        if not self._keeps_jobs:
            self.membership.end_all()

    # -- steps by time and state

    def _advance(self) -> bool:
        """Take one step that is due; True where there may be another."""
        before = self.phase, self.next, len(self.step.commands)
        self.membership.escalate()
        deadline = self.policy.deadline
        if self._is_active and deadline is not None and self.step.now >= self._began + deadline:
            late = f"it was not done within {deadline:g} s"
            self._fail(Failure(reason="DeadlineExceeded", message=late))
        step = self._steps.get(self.phase)
        if step is not None:
            step()
        return before != (self.phase, self.next, len(self.step.commands))

    def _while_starting(self) -> None:
        self.membership.fill(self.wanted)
        up = self.membership.count(WorkerState.UP)
        is_late = self.step.is_past(self._phase_deadline)
        is_last_call = self._is_last_call(up)
        if up >= self.wanted or is_last_call or (is_late and up >= self.min_workers):
            self._start_rendezvous()
        elif is_late:
            self._attempt_failed(self._start_timeout_failure(up))

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

    def _is_last_call(self, up: int) -> bool:
        """True where an elastic ring has waited ``last_call`` seconds for more workers."""
        if up < self.min_workers:
            self._last_call_until = None
        elif self._last_call_until is None:
            self._last_call_until = self.step.now + self.policy.timing.last_call
        return self.step.is_past(self._last_call_until)

    def _start_rendezvous(self) -> None:
        self.rounds += 1
        self.placements = assign(self.membership.seated())
        self.round_workers = {placement.worker: False for placement in self.placements}
        self.phase, self._last_call_until = RingPhase.FORMING, None
        self._phase_deadline = self.step.now + self.policy.start_timeout
        for worker in self._working():
            worker.last_seen = self.step.now
        self.step.commands.append(
            events.StartRendezvous(self.rounds, self.placements, self.restarts)
        )

    def _while_forming(self) -> None:
        if self.step.is_past(self._phase_deadline):
            text = f"the members did not get to know each other in {self.policy.start_timeout:g} s"
            self._attempt_failed(Failure(reason="FormTimeout", message=text))
        else:
            self._fail_silent_workers()

    def _start_run(self) -> None:
        """Start user code on the workers of the round."""
        self.phase, self._phase_deadline, self._failed_attempts = RingPhase.RUNNING, None, 0
        size = sum(placement.slots for placement in self.placements)
        hosts = self.placements[0].nodes
        message = f"{size} rank{'s'[: size > 1]} on {hosts} host{'s'[: hosts > 1]}"
        self.event_log.set_condition(ConditionKind.RUNNING, "RingRunning", message)
        self.changes.begin(self.placements)
        for worker in self._working():
            worker.last_seen = self.step.now
        self.step.commands.append(events.StartRun(self.rounds))

    def _while_running(self) -> None:
        if all(self.round_workers.values()):
            self._succeed()
            return
        self._fail_silent_workers()
        if self.phase is not RingPhase.RUNNING or any(self.round_workers.values()):
            # where one member is done the others will be soon: no restart for a new worker
            return
        self.membership.fill(self.wanted)
        if self.policy.is_live:
            self.changes.advance()
            return
        new = [worker for worker in self.membership.up() if worker.number not in self.round_workers]
        surplus = len(self.round_workers) - self.wanted
        if surplus > 0:
            self.start_again(f"{surplus} fewer are wanted")
        elif not new:
            self._last_call_until = None
        elif len(self.round_workers) + len(new) >= self.wanted or self._is_last_call(
            self.min_workers
        ):
            self.start_again(f"{len(new)} more came up")

    def start_again(self, why: str) -> None:
        """Restart all ranks because the ring was resized, which is no failure."""
        self.event_log.set_condition(ConditionKind.RESTARTING, "Resized", why)
        self._settle(Next.RESTART, self.step.now)

    def _fail_silent_workers(self) -> None:
        for worker in self._working():
            if self.step.now < worker.last_seen + self.policy.heartbeat:
                continue
            worker.state = WorkerState.FAILED
            text = f"it gave no sign of life for {self.policy.heartbeat:g} s"
            failure = Failure(
                reason="LEASE", message=text, worker=worker.number, host=worker.host.name
            )
            if self.phase is RingPhase.RUNNING:
                self._run_failed(failure)
            elif self.phase is RingPhase.FORMING:
                self._attempt_failed(failure)
            return

    def _while_settling(self) -> None:
        if self.step.is_past(self._collect_until):
            self._collect_until = None
        if self.step.is_past(self._phase_deadline):
            self._phase_deadline = None
        if self._collect_until is None and self._phase_deadline is None:
            self._end()

    def _while_ending(self) -> None:
        is_waiting = not self._keeps_jobs and any(
            w.ending_since is not None for w in self.membership
        )
        if is_waiting or self._is_halting:
            return
        if self.next is Next.RESTART:
            self.phase = RingPhase.WAITING
        elif self.next is Next.SUSPEND:
            self.phase, self.next = RingPhase.SUSPENDED, Next.RESTART
            self.event_log.set_condition(ConditionKind.SUSPENDED, "RingSuspended", "by its user")
        else:
            self._conclude()

    def _while_waiting(self) -> None:
        if self._phase_deadline is None or self.step.is_past(self._phase_deadline):
            self._start_attempt()

    def _conclude(self) -> None:
        """Set the final phase and condition, and publish the outcome."""
        failure = self.failure
        if self.next is Next.SUCCEED:
            self.phase = RingPhase.SUCCEEDED
            text = "all members are done"
            self.event_log.set_condition(ConditionKind.SUCCEEDED, "RingSucceeded", text)
        else:
            self.phase = RingPhase.FAILED
            reason = failure.reason if failure is not None else "Failed"
            self.event_log.set_condition(ConditionKind.FAILED, reason, str(failure))
        self.step.commands.append(events.Conclude(failure))
        if self.policy.ttl is not None:
            self._cleanup_at = self.step.now + self.policy.ttl
        elif self.policy.clean is Clean.ALL:
            self._cleanup_at = self.step.now

    def _while_over(self) -> None:
        if self._is_cleaned_up or not self.step.is_past(self._cleanup_at):
            return
        if not self._is_cleaning_up:
            self._is_cleaning_up = True
            self.membership.end_all()
        if not len(self.membership):
            self._is_cleaned_up = True
            self.step.commands.append(events.CleanUp())

    def _start_attempt(self) -> None:
        self.phase, self.next = RingPhase.STARTING, Next.RESTART
        self.round_workers = {}
        self._phase_deadline = self.step.now + self.policy.start_timeout
        self.membership.begin_attempt()
        for worker in self.membership:
            if worker.seat >= self.wanted:
                self.membership.end(worker)

    def _record_restart(self) -> None:
        self.restarts += 1
        text = f"restart {self.restarts} of {self.policy.max_restarts}: {self.failure}"
        self.event_log.set_condition(ConditionKind.RESTARTING, "MemberFailed", text)
