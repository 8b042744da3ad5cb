"""Entry of a ring's state machine: checks each event and passes it to the lifecycle; pure.

:class:`RingMachine` checks each event against the phase and the membership and hands it on to
:class:`~fiber._ring.phases.Lifecycle`, which decides. Apart from :mod:`fiber._ring.phases`, so that
what an event means and what follows from it can each be read alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fiber._base import values
from fiber._ring import events
from fiber._ring.events import Command
from fiber._ring.membership import WorkerRecord, WorkerState
from fiber._ring.model import ConditionKind, Failure, Group, Policy, RingPhase, RingStatus
from fiber._ring.phases import Lifecycle, Next

_ENDED_EARLY = Failure(reason="EXIT(0)", message="it ended before its function returned")


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
        self._lifecycle = lifecycle = Lifecycle(groups, policy, epoch)
        if not lifecycle.min_workers <= lifecycle.wanted <= lifecycle.max_workers:
            bounds = f"min={lifecycle.min_workers} and max={lifecycle.max_workers}"
            msg = f"{bounds} do not fit {lifecycle.wanted} members"
            raise ValueError(msg)
        self._handlers: dict[type, Callable[[Any, float, list[Command]], None]] = {
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
            events.Tick: self._tick,
        }

    def handle(self, event: events.Event, now: float) -> list[Command]:
        """Process an event; events about workers and rounds that have ended change nothing.

        Args:
            event: the event.
            now: its time in seconds, by any monotonic clock.

        Returns:
            Commands for the controller, to be carried out in this order.

        Raises:
            ValueError: a second start, or a size outside ``min`` and ``max``.
        """
        out: list[Command] = []
        self._handlers[type(event)](event, now, out)
        while self._lifecycle.advance(now, out):
            pass
        return out

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Fewest and most ranks of a live ring; None for rings whose size is fixed while they run."""
        lifecycle = self._lifecycle
        if not lifecycle.policy.is_live:
            return None
        fewest, most = lifecycle.membership.slots
        return lifecycle.min_workers * fewest, lifecycle.max_workers * most

    def next_deadline(self) -> float | None:
        """Time of the next :class:`~fiber._ring.events.Tick`; None if none is needed."""
        return self._lifecycle.next_deadline()

    @property
    def phase(self) -> RingPhase:
        """Current phase."""
        return self._lifecycle.phase

    def status(self) -> RingStatus:
        """Snapshot of the ring for its user."""
        lifecycle = self._lifecycle
        return RingStatus(
            phase=lifecycle.phase,
            conditions=lifecycle.event_log.conditions,
            events=lifecycle.event_log.events,
            placements=lifecycle.placements,
            wanted=lifecycle.wanted,
            starting=lifecycle.membership.count(WorkerState.STARTING),
            up=lifecycle.membership.count(WorkerState.UP)
            + lifecycle.membership.count(WorkerState.DONE),
            restarts=lifecycle.restarts,
            rounds=lifecycle.rounds,
            changes=lifecycle.changes.count,
            failure=lifecycle.failure,
            start_time=lifecycle.event_log.start_time,
            completion_time=lifecycle.event_log.completion_time,
        )

    # -- requests of the user

    def _start_requested(
        self, event: events.StartRequested, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        if lifecycle.phase is not RingPhase.NEW:
            msg = "a ring can only be started once"
            raise ValueError(msg)
        message = f"{lifecycle.wanted} members are wanted"
        lifecycle.event_log.set_condition(ConditionKind.CREATED, "RingCreated", message, now)
        lifecycle.begin(now, out)

    def _suspend_requested(
        self, event: events.SuspendRequested, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        if not lifecycle.is_active:
            return
        if lifecycle.phase is RingPhase.RUNNING:
            lifecycle.settle(Next.SUSPEND, now, now, out)
        else:
            lifecycle.next = Next.SUSPEND
            if lifecycle.phase is not RingPhase.SETTLING:
                lifecycle.end(now, out)

    def _resume_requested(
        self, event: events.ResumeRequested, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        if lifecycle.phase is RingPhase.SUSPENDED:
            text = "resumed by its user"
            lifecycle.event_log.clear_condition(ConditionKind.SUSPENDED, "RingResumed", text, now)
            lifecycle.event_log.record("RingResumed", text, now)
            lifecycle.begin(now, out)
        elif lifecycle.next is Next.SUSPEND:
            # the suspension has not been carried out yet
            lifecycle.next = Next.RESTART

    def _resize_requested(
        self, event: events.ResizeRequested, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        if not lifecycle.min_workers <= event.workers <= lifecycle.max_workers:
            msg = (
                f"a ring with min={lifecycle.min_workers} and max={lifecycle.max_workers} cannot have "
                f"{event.workers} members"
            )
            raise ValueError(msg)
        lifecycle.wanted = event.workers
        for worker in lifecycle.membership:
            if worker.seat >= lifecycle.wanted and worker.number not in lifecycle.round_workers:
                lifecycle.membership.end(worker, now, out)

    def _terminate_requested(
        self, event: events.TerminateRequested, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        if lifecycle.phase.is_over:
            lifecycle.cleanup_at = now
            return
        failure = Failure(reason="Terminated", message=event.message)
        if lifecycle.phase in (RingPhase.NEW, RingPhase.SUSPENDED):
            lifecycle.failure, lifecycle.next = failure, Next.FAIL
            lifecycle.conclude(now, out)
        else:
            lifecycle.fail(failure, now, out)

    def _tick(self, event: events.Tick, now: float, out: list[Command]) -> None:
        pass

    # -- events of workers

    def _worker_up(self, event: events.WorkerUp, now: float, out: list[Command]) -> None:
        worker = self._lifecycle.membership.get(event.worker)
        if worker is not None and worker.state is WorkerState.STARTING:
            worker.state, worker.host, worker.last_seen = WorkerState.UP, event.host, now

    def _worker_pending(self, event: events.WorkerPending, now: float, out: list[Command]) -> None:
        worker = self._lifecycle.membership.get(event.worker)
        if worker is not None and worker.pending_reason != event.reason:
            worker.pending_reason = event.reason
            self._lifecycle.event_log.record(
                "MemberWaits", f"member {worker.seat}: {event.reason}", now
            )

    def _worker_heartbeat(
        self, event: events.WorkerHeartbeat, now: float, out: list[Command]
    ) -> None:
        worker = self._lifecycle.membership.get(event.worker)
        if worker is not None:
            worker.last_seen = now

    def _controller_paused(
        self, event: events.ControllerPaused, now: float, out: list[Command]
    ) -> None:
        for worker in self._lifecycle.membership:
            worker.last_seen = now

    def _worker_done(self, event: events.WorkerDone, now: float, out: list[Command]) -> None:
        lifecycle = self._lifecycle
        worker = lifecycle.membership.get(event.worker)
        if worker is None or lifecycle.phase is not RingPhase.RUNNING:
            return
        if event.worker in lifecycle.round_workers and worker.state is WorkerState.UP:
            lifecycle.round_workers[event.worker] = True
            worker.state = WorkerState.DONE

    def _worker_failed(self, event: events.WorkerFailed, now: float, out: list[Command]) -> None:
        worker = self._lifecycle.membership.get(event.worker)
        if worker is None or worker.state is WorkerState.FAILED:
            return
        worker.state = WorkerState.FAILED
        if worker.ending_since is None:
            self._worker_lost(worker, event.failure, now, out)

    def _worker_ended(self, event: events.WorkerEnded, now: float, out: list[Command]) -> None:
        worker = self._lifecycle.membership.remove(event.worker)
        if worker is None or worker.ending_since is not None:
            return
        if worker.state in (WorkerState.STARTING, WorkerState.UP):
            self._worker_lost(worker, event.failure or _ENDED_EARLY, now, out)

    def _worker_lost(
        self, worker: WorkerRecord, failure: Failure, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        failure = values.evolve(
            failure, worker=worker.number, host=failure.host or worker.host.name
        )
        if worker.number not in lifecycle.round_workers:
            lifecycle.start_failed(worker, failure, now, out)
            if lifecycle.phase is RingPhase.STARTING and not lifecycle.is_elastic:
                lifecycle.attempt_failed(failure, now, out)
        elif lifecycle.phase is RingPhase.FORMING:
            lifecycle.attempt_failed(failure, now, out)
        elif lifecycle.phase is RingPhase.RUNNING:
            lifecycle.run_failed(failure, now, out)
        elif lifecycle.phase is RingPhase.SETTLING:
            lifecycle.explain_failure(failure)

    # -- events of rounds

    def _rendezvous_completed(
        self, event: events.RendezvousCompleted, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        if lifecycle.phase is RingPhase.FORMING and event.round == lifecycle.rounds:
            lifecycle.start_run(now, out)

    def _rendezvous_failed(
        self, event: events.RendezvousFailed, now: float, out: list[Command]
    ) -> None:
        lifecycle = self._lifecycle
        if lifecycle.phase is RingPhase.FORMING and event.round == lifecycle.rounds:
            lifecycle.attempt_failed(event.failure, now, out)

    def _join_completed(self, event: events.JoinCompleted, now: float, out: list[Command]) -> None:
        if self._is_joining(event):
            self._lifecycle.changes.complete_join(event.worker, now, out)

    def _join_failed(self, event: events.JoinFailed, now: float, out: list[Command]) -> None:
        if self._is_joining(event):
            worker = self._lifecycle.membership.get(event.worker)
            assert worker is not None, "a worker that has ended is not joining"
            self._worker_lost(worker, event.failure, now, out)

    def _is_joining(self, event: events.JoinCompleted | events.JoinFailed) -> bool:
        lifecycle = self._lifecycle
        is_now = lifecycle.phase is RingPhase.RUNNING and event.round == lifecycle.rounds
        return is_now and lifecycle.changes.is_joining(event.worker)

    def _state_collected(
        self, event: events.StateCollected, now: float, out: list[Command]
    ) -> None:
        if event.round == self._lifecycle.rounds:
            self._lifecycle.collect_until = None

    def _halted(self, event: events.Halted, now: float, out: list[Command]) -> None:
        if event.round == self._lifecycle.rounds:
            self._lifecycle.halted(now, out)

    def _round_ended(self, event: events.RoundEnded, now: float, out: list[Command]) -> None:
        lifecycle = self._lifecycle
        if event.round != lifecycle.rounds:
            return
        if lifecycle.phase is RingPhase.RUNNING:
            if event.failure is None:
                lifecycle.succeed(now, out)
            else:
                lifecycle.run_failed(event.failure, now, out)
        elif lifecycle.phase is RingPhase.SETTLING and event.failure is not None:
            lifecycle.explain_failure(event.failure)
