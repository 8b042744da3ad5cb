"""Keeps a number of workers alive: starts, replaces, adds and retires them, with back-off.

Apart from ``group``, so that it runs without a runtime and a dispatcher: it is given callables.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence

from fiber._base.log import lazy_logger
from fiber._base.threads import in_turns
from fiber._launch.child import Child
from fiber._workers.state import (
    GiveUp,
    GroupState,
    Kill,
    Loss,
    Outlook,
    Report,
    Retire,
    Start,
    Step,
    Stop,
    WorkerRecord,
)
from fiber.exceptions import BackendUnavailableError, FiberError, StartError
from fiber.model import JobStatus, Timing

log = lazy_logger()


class WorkerManager:
    """Carries out, on a thread of its own, what the :class:`GroupState` of its workers decides.

    Args:
        start: starts jobs; called with the number of workers of each, a callback for their statuses
            and whether to wait for a platform that is unavailable now; returns their children, or the
            errors of those that could not be submitted.
        takes_many: called once a job was submitted; True where several are submitted in one call.
        lost: called when a worker has ended.
        retire: retires a worker once it holds nothing; called with its identity and whether it
            hands back what it has not begun; False where it never connected.
        fail: called with the reason when no worker can be kept alive.
        ended: called when all workers have ended, after :meth:`close` or :meth:`terminate`.
        lease: seconds after which a stopped worker is given up.
        per_job: workers in one job.
        name: of the thread.
        timing: durations of the run.
        exit_report_timeout: in place of ``timing.exit_report``, where a worker may connect again.
    """

    def __init__(
        self,
        *,
        start: Callable[
            [Sequence[int], Callable[[Child, JobStatus], None], bool],
            Sequence[Child | BaseException],
        ],
        takes_many: Callable[[], bool],
        lost: Callable[[Loss], None],
        retire: Callable[[str, bool], bool],
        fail: Callable[[BaseException], None],
        ended: Callable[[], None],
        lease: float,
        per_job: int,
        name: str,
        timing: Timing,
        exit_report_timeout: float | None = None,
    ) -> None:
        self._start = start
        self._takes_many = takes_many
        self._lost = lost
        self._retire = retire
        self._fail = fail
        self._ended = ended
        self._per_job = per_job
        self._state = GroupState(
            lease=lease, per_job=per_job, timing=timing, exit_report_timeout=exit_report_timeout
        )
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- called by the group

    def begin(self, desired: int) -> None:
        """Start the first workers.

        The first job is started by the caller's thread, so that what cannot be started at all is
        an error of its own call; the others follow on the manager's thread.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        with self._changed:
            self._state.desired = desired
            self._state.starting += 1
        try:
            refusals = self._launch([min(self._per_job, desired)], waits=True)
            if refusals:
                raise refusals[0]
        except BaseException:
            with self._changed:
                self._state.starting -= 1
            raise
        takes_many = self._takes_many()
        with self._changed:
            self._state.takes_many = takes_many
        self._thread.start()

    def resize(self, desired: int) -> None:
        """Keep ``desired`` workers from now on; those in surplus are retired."""
        with self._changed:
            self._state.desired = desired
            self._changed.notify_all()

    def release(self, ident: str) -> None:
        """Retire a worker and do not replace it."""
        with self._changed:
            self._state.release(ident)
            self._changed.notify_all()

    def replace(self, ident: str) -> WorkerRecord | None:
        """Kill a worker and start another one in its place; returns it, or None where it has ended."""
        with self._changed:
            kill = self._state.replace(ident, time.monotonic())
            self._changed.notify_all()
        if kill is None:
            return None
        self._kill(kill)
        return kill.worker

    def close(self) -> None:
        """Retire all workers and start none any more."""
        with self._changed:
            self._state.close()
            self._changed.notify_all()

    def terminate(self) -> None:
        """End every worker at once."""
        with self._changed:
            children = self._state.terminate(time.monotonic())
            self._changed.notify_all()
        for child in children:
            try:
                child.kill()
            except FiberError as error:
                log.warning(
                    "fiber: %s could not be killed, and will be again: %s", child.name, error
                )

    def join(self, timeout: float | None = None) -> bool:
        """Wait until no worker is left, after :meth:`close` or :meth:`terminate`."""
        state = self._state
        with self._changed:
            gone = in_turns(
                lambda turn: self._changed.wait_for(
                    lambda: not state.workers and not state.starting, turn
                ),
                timeout,
            )
        if gone and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return gone

    @property
    def size(self) -> int:
        """Desired number of workers."""
        return self._state.desired

    def workers(self) -> list[WorkerRecord]:
        """The workers that have not ended."""
        with self._changed:
            return list(self._state.workers.values())

    def outlook(self) -> Outlook:
        """Number of workers, and the reason why there are no more."""
        with self._changed:
            return self._state.outlook()

    def has(self, ident: str) -> bool:
        """True where ``ident`` is one of these workers."""
        with self._changed:
            return ident in self._state.workers

    def accepts(self, ident: str) -> bool:
        """True where ``ident`` is one of these workers or may be one that is being started."""
        with self._changed:
            return self._state.accepts(ident)

    # -- events of workers

    def worker_ready(self, ident: str) -> None:
        """A worker asked for work for the first time."""
        with self._changed:
            if not self._state.worker_ready(ident):
                self._changed.notify_all()

    def initializer_failed(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed; it is about to exit."""
        with self._changed:
            self._state.initializer_failed(ident, error)

    def worker_disconnected(self, ident: str) -> None:
        """A worker's connection ended; the report of its exit should follow."""
        with self._changed:
            self._state.worker_disconnected(ident, time.monotonic())
            self._changed.notify_all()

    def worker_retired(self, ident: str) -> None:
        """A worker was sent RETIRE."""
        with self._changed:
            self._state.worker_retired(ident)

    def _on_status(self, child: Child, status: JobStatus) -> None:
        with self._changed:
            losses = self._state.observed(child, status, time.monotonic())
        for loss in losses:
            self._lost(loss)
        with self._changed:
            self._changed.notify_all()

    # -- the manager's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                step = self._state.next(time.monotonic())
                while step is None:
                    deadline = self._state.deadline()
                    wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                    self._changed.wait(wait)
                    step = self._state.next(time.monotonic())
            if isinstance(step, Stop):
                self._ended()
                return
            self._do(step)

    def _do(self, step: Step) -> None:
        if isinstance(step, Start):
            self._try_launch([step.count] * step.jobs)
        elif isinstance(step, Retire):
            if not self._retire(step.ident, step.hand_back):
                with self._changed:
                    kill = self._state.retire_failed(step.ident, time.monotonic())
                if kill is not None:
                    self._kill(kill)
        elif isinstance(step, Kill):
            self._kill(step)
        elif isinstance(step, Report):
            log.warning("fiber: %s: %s", self._thread.name.removeprefix("fiber-"), step.text)
        elif isinstance(step, GiveUp):
            error = StartError(step.text)
            error.__cause__ = step.cause
            self._fail(error)

    def _kill(self, step: Kill) -> None:
        worker = step.worker
        try:
            if step.whole:
                worker.child.kill()
            else:
                worker.child.signal(worker.index, signal.SIGKILL)
        except FiberError as error:
            log.warning("fiber: %s could not be killed, and will be again: %s", worker.name, error)

    def _try_launch(self, counts: Sequence[int]) -> None:
        try:
            # this thread has other workers to see to: the state says when to try again
            refusals = self._launch(counts, waits=False)
        # whatever it is, calls wait for workers: it is tried again and reported in the end
        except Exception as error:
            refusals = [error] * len(counts)
        if refusals:
            # a refusal of one says more of when to try again than a platform that is away
            first = min(refusals, key=lambda one: isinstance(one, BackendUnavailableError))
            log.debug("fiber: %d jobs could not be started", len(refusals), exc_info=first)
            with self._changed:
                self._state.not_started(first, time.monotonic(), len(refusals))
                self._changed.notify_all()

    def _launch(self, counts: Sequence[int], *, waits: bool) -> list[BaseException]:
        """Start jobs; returns the errors of those that could not be submitted."""
        early: list[tuple[Child, JobStatus]] = []
        ready = False

        def on_status(child: Child, status: JobStatus) -> None:
            with self._changed:
                if not ready:
                    early.append((child, status))
                    return
            self._on_status(child, status)

        found = self._start(counts, on_status, waits)
        started: list[Child] = []
        with self._changed:
            for one, count in zip(found, counts, strict=True):
                if not isinstance(one, BaseException):
                    self._state.started(one, count)
                    started.append(one)
            is_closing = self._state.is_closing
        for child in started if is_closing else ():
            child.kill()
        while True:
            with self._changed:
                if not early:
                    ready = True
                    self._changed.notify_all()
                    return [one for one in found if isinstance(one, BaseException)]
                owner, status = early.pop(0)
            self._on_status(owner, status)
