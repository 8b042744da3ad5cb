"""State of the workers of a group and the next step to take: pure, the clock is passed in.

:class:`GroupState` takes events of workers and says which step comes next; :class:`PendingReport`
says what to log about workers that wait for a place. A pool goes on with the workers that it has;
why there are no more is logged once, in the platform's words, and again when they change.

``GroupState.next`` runs after every event, and a thousand workers cause thousands of events while
they start: a walk over all records each time would cost more than the start. :class:`WorkerIndex` has those
that need something to be done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiber._agent.instructions import DESCRIPTORS_LOST
from fiber._base import values
from fiber._launch.status_merge import process_of
from fiber.backend_parts.outage import Outage
from fiber.exceptions import BackendUnavailableError, StartError
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from fiber.model.job import Attempt

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber.model import Timing


#: explanation in errors of what a task must not do
_CLOSED = (
    "has a task closed or replaced descriptors that it did not open, by os.closerange() maybe?"
)


@values.define(eq=False)
class WorkerRecord:
    """State of one worker process as its manager knows it."""

    #: identity within the run
    ident: str
    #: name for people
    name: str
    #: position within its job
    index: int
    #: its job
    child: Child
    #: how many workers in a row had failed before they were ready when it was started
    failures: int = 0
    #: True once its process was seen to run
    runs: bool = False
    #: True once it asked for work
    ready: bool = False
    #: True where it is to end: resize, close, terminate, or a drained place
    leaving: bool = False
    #: True where the platform takes its place away; others run what it has not begun
    draining: bool = False
    #: True once it was sent RETIRE or killed: it is leaving or has run ``maxtasksperchild``
    exit_sent: bool = False
    #: when its connection ended, if it has
    disconnected_at: float | None = None
    #: when it was seen stopped by a signal, if it is
    stopped_at: float | None = None
    #: when its platform suspended it, if it is: silence is no sign of its death
    suspended_at: float | None = None
    #: True once that was logged
    suspension_reported: bool = False
    #: True once it was killed because it was stopped or silent too long
    fenced: bool = False
    #: True once it was killed because its connection ended, on a host where no network is to blame
    killed_as_disconnected: bool = False
    #: when it was killed last, if it was
    killed_at: float | None = None

    @property
    def is_timed(self) -> bool:
        """True where one of its deadlines is pending."""
        moments = (self.disconnected_at, self.stopped_at, self.suspended_at, self.killed_at)
        return any(moment is not None for moment in moments)


class WorkerIndex:
    """Index of the records with pending deadlines or to be retired; updated after every change."""

    def __init__(self) -> None:
        #: how many are not leaving
        self.staying = 0
        self._timed: dict[str, WorkerRecord] = {}
        self._leaving: dict[str, WorkerRecord] = {}

    def add(self, worker: WorkerRecord) -> None:
        """Add a record."""
        self.staying += 1

    def remove(self, worker: WorkerRecord) -> None:
        """Remove the record of a worker that has ended."""
        self._timed.pop(worker.ident, None)
        self._leaving.pop(worker.ident, None)
        self.staying -= not worker.leaving

    def leave(self, worker: WorkerRecord) -> None:
        """Mark a worker as leaving; idempotent."""
        if not worker.leaving:
            worker.leaving = True
            self.staying -= 1
        self.update(worker)

    def update(self, worker: WorkerRecord) -> None:
        """Index a record again after its deadlines, ``leaving`` or ``exit_sent`` changed."""
        if worker.is_timed:
            self._timed[worker.ident] = worker
        if worker.leaving and not worker.exit_sent:
            self._leaving[worker.ident] = worker
        else:
            self._leaving.pop(worker.ident, None)

    def timed(self) -> list[WorkerRecord]:
        """The records with a pending deadline."""
        if not self._timed:
            return []
        found = [worker for worker in self._timed.values() if worker.is_timed]
        if len(found) < len(self._timed):
            self._timed = {worker.ident: worker for worker in found}
        return found

    def next_to_retire(self) -> WorkerRecord | None:
        """A leaving worker that can be sent RETIRE, or be killed, now."""
        for worker in self._leaving.values():
            # one that runs and is not ready is retired once it is: its initializer is not interrupted
            if worker.ready or not worker.runs:
                return worker
        return None


def ident_of(child: Child, index: int) -> str:
    """Identity of a worker by its index within its job."""
    return child.ident if child.processes == 1 else f"{child.ident}.{index}"


def is_stopped(process: ProcessStatus) -> bool:
    """True for a process that a signal stopped; False for one that its platform suspended."""
    reason = process.reason
    return (
        process.state is JobState.SUSPENDED
        and reason is not None
        and reason.kind is ReasonKind.SIGNAL
    )


def is_final(reason: Reason | None, host: str | None) -> bool:
    """True for an end that another worker would have as well: no image, or no host that takes it.

    Args:
        reason: of the end.
        host: that the job was sent to; what a single host refuses, others may take.
    """
    kind = None if reason is None else reason.kind
    return kind is ReasonKind.IMAGE or (kind is ReasonKind.UNSCHEDULABLE and host is None)


def attempt_of(worker: WorkerRecord, process: ProcessStatus) -> Attempt:
    """The end of a worker as the errors of its tasks describe it."""
    reason = process.reason or Reason(ReasonKind.UNKNOWN)
    message = process.message
    if worker.fenced:
        reason = Reason(ReasonKind.LEASE)
        message = "it was stopped or silent for longer than its lease, and was killed"
    elif worker.killed_as_disconnected:
        message = f"its connection ended and it made no other, so that it was killed: {_CLOSED}"
    elif process.exit_code == DESCRIPTORS_LOST:
        message = f"{message}: {_CLOSED}"
    return Attempt(
        worker=worker.name,
        host=worker.child.host,
        pid=process.pid,
        reason=reason,
        message=message,
        log_tail=process.log_tail,
    )


@values.frozen
class _WaitingJob:
    """A job that is pending."""

    since: float
    #: its platform's message
    text: str
    #: True where it has its place and is not started yet
    is_starting: bool


class PendingReport:
    """Log lines about jobs that wait for a place or failed before they were ready; each text once."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        #: by their ids; the one that waits longest is first
        self._waiting: dict[str, _WaitingJob] = {}
        #: what happened to the last worker that was never ready
        self._failure = ""
        self._reported = ""
        self._reported_at = 0.0
        #: when the next report is due, if one is
        self.due: float | None = None

    def observed(self, job: str, status: JobStatus, now: float) -> None:
        """A job has a status."""
        if status.state is JobState.PENDING and status.message:
            since = self._waiting[job].since if job in self._waiting else now
            self._waiting[job] = _WaitingJob(since, status.message, status.is_starting)
        elif self._waiting.pop(job, None) is None:
            return
        self._plan(now)

    def failed(self, text: str, now: float) -> None:
        """A worker failed before it was ready; ``text`` goes on from "another one"."""
        self._failure = text
        self._plan(now)

    def next(self, now: float, *, ready: int, desired: int) -> str | None:
        """The text to log now, if any.

        Args:
            now: the moment.
            ready: workers that have asked for work.
            desired: workers that there should be.
        """
        if self.due is None or now < self.due:
            return None
        self.due = None
        if ready >= desired:
            self._failure = self._reported = ""
            return None
        longest = self._longest(now)
        self._reported, self._reported_at = longest.text, now
        if self._waiting:
            # those that wait for the same
            count = sum(one.is_starting is longest.is_starting for one in self._waiting.values())
            if longest.is_starting:
                how = "is starting" if count == 1 else "are starting"
            else:
                how = "waits for a place" if count == 1 else "wait for a place"
            return f"{ready} of {desired} workers are ready, {count} {how}: {self._reported}"
        return f"{ready} of {desired} workers are ready; another one {self._reported}"

    @property
    def waiting(self) -> int:
        """Jobs that wait and whose platform says why."""
        return len(self._waiting)

    @property
    def reason(self) -> str:
        """Why there are fewer workers than desired; "" where that is not known."""
        return self._longest(0.0).text

    def _longest(self, now: float) -> _WaitingJob:
        # a job that failed does not wait any more
        failed = _WaitingJob(now - self._timing.wait_report, self._failure, is_starting=False)
        return next(iter(self._waiting.values()), failed)

    def _plan(self, now: float) -> None:
        longest = self._longest(now)
        if not longest.text or longest.text == self._reported:
            self.due = None
            return
        self.due = longest.since + self._timing.wait_report
        if self._reported:
            self.due = max(self.due, self._reported_at + self._timing.wait_report_again)


@values.frozen
class Outlook:
    """Number of workers of a group, and the reason why there are no more."""

    #: that there should be
    desired: int
    #: that are ready for work
    ready: int
    #: that wait for a place
    waiting: int
    #: why some are missing, in the platform's words; "" where none is, or nothing was said
    reason: str


#: failures in a row after which a group gives up where the initializer raises or jobs cannot start
MAX_INITIALIZER_FAILURES = 3
#: failures in a row for each desired worker, where workers have been ready before
MAX_FAILURES_PER_WORKER = 6


#: most jobs that are submitted in one call
MAX_JOBS = 256


@values.frozen
class Start:
    """Start jobs of ``count`` workers each."""

    count: int
    #: how many, submitted in one call
    jobs: int = 1


@values.frozen
class Retire:
    """Make a worker exit once it holds nothing."""

    ident: str
    #: True where it is to hand back what it has not begun
    hand_back: bool = False


@values.frozen
class Kill:
    """Kill a worker; its whole job where no other worker of the job is alive."""

    worker: WorkerRecord
    whole: bool


@values.frozen
class GiveUp:
    """No worker can be kept alive."""

    text: str
    cause: BaseException | None


@values.frozen
class Report:
    """Log why there are fewer workers than desired."""

    text: str


@values.frozen
class Stop:
    """End the manager's thread: no worker is left and none is desired."""


Step = Start | Retire | Kill | GiveUp | Report | Stop


@values.frozen(kw_only=True)
class Loss:
    """A worker has ended."""

    #: identity within the run
    ident: str
    #: its job
    child: Child
    #: how it ended
    attempt: Attempt
    #: True where its task may be to blame, so that this is an attempt of the task
    counts: bool
    #: True where it was to end
    expected: bool


class GroupState:
    """State machine of one group of workers.

    Args:
        lease: seconds after which a stopped worker is given up.
        per_job: workers in one job.
        timing: durations of the run.
        exit_report_timeout: in place of ``timing.exit_report``, where a worker may connect again.
    """

    def __init__(
        self,
        *,
        lease: float,
        per_job: int,
        timing: Timing,
        exit_report_timeout: float | None = None,
    ) -> None:
        self._lease = lease
        self._timing = timing
        self._exit_report_timeout = exit_report_timeout
        self._per_job = per_job
        #: workers that there should be
        self.desired = 0
        #: the workers that have not ended
        self.workers: dict[str, WorkerRecord] = {}
        self._index = WorkerIndex()
        self._pending_report = PendingReport(timing)
        self._outage = Outage(timing)
        #: when the submission that is under way began
        self._submitted_at = 0.0
        #: True where the platform takes several jobs in one call
        self.takes_many = False
        #: jobs that are being submitted
        self.starting = 0
        #: True where no worker is started any more
        self.is_closing = False
        self._failures = 0
        self._retry_at = 0.0
        #: True where the platform's word for each of these failures is final
        self._only_final = False
        self._fatal_error: BaseException | None = None
        #: True where a worker's initializer raised, as every other one's would
        self._initializer_raised = False
        #: workers that were starting when others failed, and may become ready yet
        self._still_starting: set[str] = set()
        self._last_failure = ""
        self._ever_ready = False
        # workers may become ready, and even be retired, before the submission of their job has
        # returned
        self._early_ready: set[str] = set()
        self._early_retired: set[str] = set()
        self._planned_deadline: float | None = None

    def outlook(self) -> Outlook:
        """Number of workers, and the reason why there are no more; visits all of them."""
        ready = sum(m.ready and not m.leaving for m in self.workers.values())
        if ready >= self.desired:
            return Outlook(self.desired, ready, 0, "")
        outage = self._outage.error
        reason = self._pending_report.reason if outage is None else str(outage)
        waiting = self._pending_report.waiting * self._per_job
        return Outlook(self.desired, ready, min(waiting, self.desired - ready), reason)

    # -- requests

    def release(self, ident: str) -> None:
        """Retire a worker without replacing it."""
        worker = self.workers.get(ident)
        if worker is not None and not worker.leaving:
            self._index.leave(worker)
            self.desired = max(0, self.desired - 1)

    def close(self) -> None:
        """Start no worker any more, and retire all."""
        self.is_closing = True
        self.desired = 0

    def terminate(self, now: float) -> list[Child]:
        """Like :meth:`close`, at once; returns the jobs to kill."""
        self.close()
        for worker in self.workers.values():
            worker.exit_sent, worker.killed_at = True, now
            self._index.leave(worker)
        return list(dict.fromkeys(worker.child for worker in self.workers.values()))

    # -- events

    def accepts(self, ident: str) -> bool:
        """True where ``ident`` is one of the workers, or may be one being started."""
        return ident in self.workers or self.starting > 0

    def started(self, child: Child, count: int) -> None:
        """A job of so many workers was submitted."""
        self.starting -= 1
        self._outage.ended()
        for index in range(count):
            ident = ident_of(child, index)
            name = child.name if count == 1 else f"{child.name}.{index}"
            worker = WorkerRecord(ident, name, index, child, ready=ident in self._early_ready)
            # while the pool ends, its manager kills it
            worker.exit_sent = self.is_closing or ident in self._early_retired
            worker.failures = self._failures
            self.workers[ident] = worker
            self._index.add(worker)
        if not self.starting:
            # no other job is being submitted
            self._early_ready.clear()
            self._early_retired.clear()

    def not_started(self, error: BaseException, now: float, jobs: int = 1) -> None:
        """Count a submission of so many jobs that failed, as one failure."""
        self.starting -= jobs
        if isinstance(error, BackendUnavailableError):
            # no worker has failed: they may well start once the platform is back
            self._outage.failed(error, self._submitted_at, now)
            self._retry_at = self._outage.retry_at
            return
        self._outage.ended()
        words = f"could not be started: {error}"
        self._failed(f"which {words}", words, now)
        self._fatal_error = self._fatal_error or error

    def worker_ready(self, ident: str) -> bool:
        """A worker asked for work for the first time; False where it is leaving."""
        self._failures = 0
        self._fatal_error = None
        self._initializer_raised = False
        self._ever_ready = True
        worker = self.workers.get(ident)
        if worker is None:
            self._early_ready.add(ident)
            return True
        # after a second connection RETIRE must be sent again
        worker.ready, worker.exit_sent, worker.disconnected_at = True, False, None
        self._index.update(worker)
        return not worker.leaving

    def initializer_failed(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed; it is about to exit."""
        self._fatal_error = error
        self._initializer_raised = True
        worker = self.workers.get(ident)
        self._last_failure = f"{worker.name if worker else ident}: initializer raised {error!r}"

    def worker_disconnected(self, ident: str, now: float) -> None:
        """A worker's connection ended; the report of its exit should follow."""
        worker = self.workers.get(ident)
        # one that was sent RETIRE may take its time
        if worker is not None and not worker.exit_sent:
            worker.disconnected_at = now
            self._index.update(worker)

    def worker_retired(self, ident: str) -> None:
        """A worker was sent RETIRE."""
        worker = self.workers.get(ident)
        if worker is not None:
            worker.exit_sent = True
            self._index.update(worker)
        elif self.starting:
            self._early_retired.add(ident)

    def observed(self, child: Child, status: JobStatus, now: float) -> list[Loss]:
        """A job has a status; returns the workers that have ended."""
        losses = []
        self._pending_report.observed(child.ident, status, now)
        for index in range(child.processes):
            worker = self.workers.get(ident_of(child, index))
            if worker is None:
                continue
            process = process_of(status, index)
            if process.state.is_terminal:
                losses.append(self._lose(worker, process, status.host, now))
                continue
            self._suspend(worker, process, now)
            if process.state is not JobState.SUSPENDED:
                worker.runs = worker.runs or process.state is JobState.RUNNING
                if status.draining and not worker.draining:
                    self._drain(worker)
        return losses

    def _suspend(self, worker: WorkerRecord, process: ProcessStatus, now: float) -> None:
        """A worker was stopped, suspended by its platform, or neither."""
        stopped = is_stopped(process)
        suspended = process.state is JobState.SUSPENDED and not stopped
        if worker.suspended_at is not None and not suspended and worker.disconnected_at is not None:
            # it could not make another connection meanwhile
            worker.disconnected_at = now
        if not suspended:
            worker.suspended_at, worker.suspension_reported = None, False
        elif worker.suspended_at is None:
            worker.suspended_at = now
        if not stopped:
            worker.stopped_at = None
        elif worker.stopped_at is None:
            worker.stopped_at = now
        self._index.update(worker)

    def _drain(self, worker: WorkerRecord) -> None:
        """The platform takes a worker's place away: it is retired and another one takes over."""
        worker.draining = True
        # one that was sent RETIRE before holds work that others may do sooner; a killed one holds none
        worker.exit_sent = worker.killed_at is not None
        self._index.leave(worker)

    def _lose(
        self, worker: WorkerRecord, process: ProcessStatus, host: str | None, now: float
    ) -> Loss:
        del self.workers[worker.ident]
        self._index.remove(worker)
        expected = worker.leaving or worker.exit_sent
        if worker.ready:
            # it was ready, so another one may be
            self._failures, self._retry_at = 0, now
        elif not expected and not self._is_accounted_for(worker, process):
            failure = worker.child.failure
            if self._fatal_error is None:
                tail = "".join(f"\n  {line}" for line in process.log_tail)
                text = f"{worker.name}: {failure or process.message or process.reason}{tail}"
                if failure and (process.reason is None or process.reason.counts_as_attempt):
                    # its environment cannot run a worker, so no other one can start either
                    self._fatal_error = StartError(text)
            else:
                text = self._last_failure
            # with an exit code it ran, whatever ended it
            ran = process.exit_code is not None and not failure
            how = "ended before it was ready" if ran else "did not start"
            self._failed(text, f"{how}: {text}", now, final=is_final(process.reason, host))
        return Loss(
            ident=worker.ident,
            child=worker.child,
            attempt=attempt_of(worker, process),
            counts=self._counts(worker, process.reason),
            expected=expected,
        )

    def _counts(self, worker: WorkerRecord, reason: Reason | None) -> bool:
        if worker.draining and reason is not None and reason.kind is ReasonKind.TIME_LIMIT:
            # what it ran may take longer than any worker may live
            return True
        if worker.leaving or worker.fenced:
            return False
        return reason is None or reason.counts_as_attempt

    def _is_accounted_for(self, worker: WorkerRecord, process: ProcessStatus) -> bool:
        """True where a worker's place was taken with those of others that are accounted for.

        An engine that restarts ends all workers that were starting: that is one failure, however
        many they were.
        """
        by_platform = process.reason is not None and not process.reason.counts_as_attempt
        return by_platform and worker.failures < self._failures

    def _failed(self, text: str, report: str, now: float, *, final: bool = False) -> None:
        self._only_final = final and (self._only_final or self._failures == 0)
        self._failures += 1
        if self._failures <= MAX_INITIALIZER_FAILURES:
            # the platform may have room for these, though it had none for the one that failed
            self._still_starting = {
                m.ident for m in self.workers.values() if not m.ready and not m.leaving
            }
        backoff = self._timing.worker_backoff
        self._retry_at = now + backoff[min(self._failures, len(backoff)) - 1]
        self._last_failure = text
        self._pending_report.failed(report, now)

    # -- the next step

    def next(self, now: float) -> Step | None:
        """The step to take now; None where there is none before :meth:`deadline`."""
        self._extend_after_pause(now)
        for worker in self._index.timed():
            due = self._kill_at(worker)
            if due is not None and now >= due:
                if not worker.leaving and not worker.killed_as_disconnected:
                    # on one host a connection does not end by itself: its task may be to blame
                    times = worker.killed_at, worker.stopped_at, self._exit_report_timeout
                    worker.killed_as_disconnected = times == (None, None, None)
                    worker.fenced = worker.fenced or not worker.killed_as_disconnected
                return self._kill(worker, now)
            due = self._suspension_due(worker)
            if due is not None and now >= due:
                worker.suspension_reported = True
                return Report(
                    f"{worker.name} is suspended by its platform, and keeps its tasks until it "
                    "goes on"
                )
        give_up = self._reason_to_give_up()
        if give_up is not None:
            self.close()
            return give_up
        leaving = self._next_leaving()
        if leaving is not None:
            leaving.exit_sent = True
            self._index.update(leaving)
            # one whose process does not run yet may wait for its place for ever
            if leaving.ready:
                return Retire(leaving.ident, leaving.draining)
            return self._kill(leaving, now)
        missing = self._missing()
        if missing > 0 and now >= self._retry_at:
            # where the last one failed, another one tells whether the others would
            several = self.takes_many and not self._failures
            jobs = min(MAX_JOBS, max(1, missing // self._per_job)) if several else 1
            self.starting += jobs
            self._submitted_at = now
            return Start(min(self._per_job, missing), jobs)
        if self.is_closing and not self.workers and not self.starting:
            return Stop()
        return self._next_report(now)

    def _next_report(self, now: float) -> Report | None:
        outage = None if self.is_closing else self._outage.notice(now)
        if outage is not None:
            return Report(outage)
        if self._pending_report.due is None or now < self._pending_report.due or self.is_closing:
            return None
        ready = sum(m.ready and not m.leaving for m in self.workers.values())
        text = self._pending_report.next(now, ready=ready, desired=self.desired)
        return None if text is None else Report(text)

    def deadline(self) -> float | None:
        """When :meth:`next` is to be called again without an event; None for never."""
        timed = self._index.timed()
        times = [
            due
            for m in timed
            for due in (self._kill_at(m), self._suspension_due(m))
            if due is not None
        ]
        if self._missing() > 0:
            times.append(self._retry_at)
        if not self.is_closing:
            times += [
                due for due in (self._pending_report.due, self._outage.due) if due is not None
            ]
        self._planned_deadline = min(times, default=None)
        return self._planned_deadline

    def _extend_after_pause(self, now: float) -> None:
        # this process was stopped, or the machine asleep: workers that seem silent may not be
        planned = self._planned_deadline
        if planned is not None and now > planned + self._timing.lateness:
            for worker in self._index.timed():
                worker.stopped_at = None if worker.stopped_at is None else now
                worker.disconnected_at = None if worker.disconnected_at is None else now
        self._planned_deadline = None

    def _kill_at(self, worker: WorkerRecord) -> float | None:
        if worker.killed_at is not None:
            return worker.killed_at + self._timing.kill_again
        if worker.suspended_at is not None:
            return None
        times = []
        if worker.stopped_at is not None:
            times.append(worker.stopped_at + self._lease)
        if worker.disconnected_at is not None:
            within = self._exit_report_timeout
            times.append(
                worker.disconnected_at + (self._timing.exit_report if within is None else within)
            )
        return min(times, default=None)

    def _suspension_due(self, worker: WorkerRecord) -> float | None:
        """When to log that a worker is suspended; None for never."""
        if worker.suspended_at is None or worker.suspension_reported or worker.leaving:
            return None
        return worker.suspended_at + self._timing.wait_report

    def _kill(self, worker: WorkerRecord, now: float) -> Kill:
        worker.killed_at = now
        self._index.update(worker)
        others = [
            self.workers.get(ident_of(worker.child, i)) for i in range(worker.child.processes)
        ]
        return Kill(worker, whole=all(m is None or m.killed_at is not None for m in others))

    def replace(self, ident: str, now: float) -> Kill | None:
        """Kill a worker at once, so that another one takes its place; None where it has ended."""
        worker = self.workers.get(ident)
        if worker is None or worker.killed_at is not None:
            return None
        worker.exit_sent = True
        self._index.leave(worker)
        return self._kill(worker, now)

    def retire_failed(self, ident: str, now: float) -> Kill | None:
        """RETIRE could not be sent to a worker: kill it."""
        worker = self.workers.get(ident)
        return None if worker is None else self._kill(worker, now)

    def _reason_to_give_up(self) -> GiveUp | None:
        """The reason why no worker can be kept alive, if there is one."""
        if self.is_closing:
            return None
        if self._outage.is_over and not self._index.staying:
            return GiveUp(
                f"no worker is left, and for {self._outage.lasted:.0f} s the platform could not be "
                f"asked to start another one: {self._outage.error}",
                self._outage.error,
            )
        if not self._has_failed_for_good():
            return None
        return GiveUp(
            f"{self._failures} workers in a row ended before they were up; the last one, "
            f"{self._last_failure}",
            self._fatal_error,
        )

    def _has_failed_for_good(self) -> bool:
        if not self._failures:
            return False
        if any(m.ready and not m.leaving for m in self.workers.values()):
            return False
        if self._only_final and not self._ever_ready and not self._may_come_up():
            # the platform has tried for as long as its settings say
            return self._failures >= min(MAX_INITIALIZER_FAILURES, max(1, self.desired))
        if self._fatal_error is not None:
            none_may_follow = self._initializer_raised or self._still_starting.isdisjoint(
                self.workers
            )
            return self._failures >= MAX_INITIALIZER_FAILURES and none_may_follow
        # workers were ready before, so they can be; what ends them now may stop
        if self._ever_ready:
            return self._failures >= MAX_FAILURES_PER_WORKER * max(1, self.desired)
        return self._failures >= len(self._timing.worker_backoff)

    def _may_come_up(self) -> bool:
        """True where a worker runs, or was started before any other had failed."""
        return any((m.runs or not m.failures) and not m.leaving for m in self.workers.values())

    def _next_leaving(self) -> WorkerRecord | None:
        surplus = self._index.staying - max(0, self.desired)
        if surplus > 0:
            staying = [m for m in self.workers.values() if not m.leaving]
            for worker in staying[-surplus:]:
                self._index.leave(worker)
        return self._index.next_to_retire()

    def _missing(self) -> int:
        if self.is_closing or self.starting:
            return 0
        return self.desired - self._index.staying
