"""Who works in a fleet and what is to be done about it next: pure state, the clock is passed in.

What is said of workers that wait for a place, or cannot get one; pure, the clock is passed in.

A pool goes on with the workers that it has. Whoever wonders why there are no more is told once, in the
platform's words, and again when these are others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fiber._base import values
from fiber._launch.outage import Outage
from fiber._workers.records import Groups, Member, attempt_of, ident_of, is_stopped, process_of
from fiber.exceptions import BackendUnavailableError, StartError
from fiber.model import JobState, JobStatus, ProcessStatus
from fiber.model.job import Attempt

if TYPE_CHECKING:
    from fiber._launch.child import Child

__all__ = ["PATIENCE", "Places"]

#: seconds that a worker waits for its place, or is suspended, before a word is said
PATIENCE = 5.0
#: seconds after which other words may be said
REPORT_AGAIN = 60.0


class Places:
    """Remembers who waits, why, and what was said of it."""

    def __init__(self) -> None:
        #: since when a job waits, and its platform's words; who waits longest is first
        self._waiting: dict[str, tuple[float, str]] = {}
        #: why the last one that could not be started was not
        self._failure = ""
        self._said = ""
        self._said_at = 0.0
        #: when there is something to say
        self.due: float | None = None

    def observed(self, job: str, status: JobStatus, now: float) -> None:
        """A job has a status."""
        if status.state is JobState.PENDING and status.message:
            since, _ = self._waiting.get(job, (now, ""))
            self._waiting[job] = since, status.message
        elif self._waiting.pop(job, None) is None:
            return
        self._plan(now)

    def failed(self, words: str, now: float) -> None:
        """A job ended before it ran."""
        self._failure = words
        self._plan(now)

    def next(self, now: float, *, running: int, wanted: int) -> str | None:
        """What to say now, if anything.

        Args:
            now: the moment.
            running: workers that run.
            wanted: workers that are wished for.
        """
        if self.due is None or now < self.due:
            return None
        self.due = None
        if running >= wanted:
            self._failure = self._said = ""
            return None
        self._said, self._said_at = self._longest(now)[1], now
        if self._waiting:
            count = len(self._waiting)
            how = "waits for a place" if count == 1 else "wait for a place"
            return f"{running} of {wanted} workers run, {count} {how}: {self._said}"
        return f"{running} of {wanted} workers run; another one was not started: {self._said}"

    def _longest(self, now: float) -> tuple[float, str]:
        # what failed waits no more
        return next(iter(self._waiting.values()), (now - PATIENCE, self._failure))

    def _plan(self, now: float) -> None:
        since, words = self._longest(now)
        if not words or words == self._said:
            self.due = None
            return
        self.due = since + PATIENCE
        if self._said:
            self.due = max(self.due, self._said_at + REPORT_AGAIN)


#: seconds until a second, third … try after workers that ended before they were up
BACKOFF = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)
#: so many in a row whose initializer raised are enough
FEW = 3
#: so many in a row, for each worker wished for, where others have come up before
MANY = 6
#: seconds that a worker whose connection ended has until the supervisor tells how it died
VERDICT = 2.0
#: seconds by which a turn may be late before nobody is judged in it
LATE = 1.0
#: seconds after which a worker that should be dead is killed again
AGAIN = 5.0


@values.frozen
class Start:
    """Start a job of so many workers."""

    count: int


@values.frozen
class Retire:
    """Have a worker exit once it holds nothing."""

    ident: str
    #: True to have others do what it has not begun
    hand_back: bool = False


@values.frozen
class Kill:
    """End a worker at once; its whole job where nobody else works in it."""

    member: Member
    whole: bool


@values.frozen
class GiveUp:
    """No worker can be kept alive."""

    text: str
    cause: BaseException | None


@values.frozen
class Say:
    """Tell people why there are fewer workers than are wished for."""

    text: str


@values.frozen
class Stop:
    """Everybody is gone and nobody is wished for."""


Step = Start | Retire | Kill | GiveUp | Say | Stop


@values.frozen(kw_only=True)
class Loss:
    """A worker has ended."""

    #: identity within the run
    ident: str
    #: its job
    child: Child
    #: how it ended
    attempt: Attempt
    #: True where what it worked on may be to blame
    counts: bool
    #: True where its end was wished for
    expected: bool


class Roster:
    """The workers of one fleet.

    Args:
        lease: seconds after which a stopped worker is given up.
        per_job: workers in one job.
        verdict: seconds that a worker whose connection ended has, in place of :data:`VERDICT`:
            where a connection may be made again.
    """

    def __init__(self, *, lease: float, per_job: int, verdict: float | None = None) -> None:
        self._lease = lease
        self._verdict = verdict
        self._per_job = per_job
        #: workers that are wished for
        self.wanted = 0
        #: the workers that have not ended
        self.members: dict[str, Member] = {}
        self._groups = Groups()
        self._places = Places()
        self._outage = Outage()
        #: when the submission that is under way began
        self._asked_at = 0.0
        #: jobs that are being submitted
        self.starting = 0
        #: True where nobody is started any more
        self.is_closing = False
        self._failures = 0
        self._retry_at = 0.0
        self._broken: BaseException | None = None
        #: True where a worker's initializer raised, as every other one's would
        self._has_raised = False
        #: workers that were on their way when others failed, and may come up yet
        self._hopes: set[str] = set()
        self._last_words = ""
        self._was_up = False
        # workers may ask, and have done all that they may, before the submission of their job has
        # returned
        self._early_up: set[str] = set()
        self._early_told: set[str] = set()
        self._planned: float | None = None

    # -- wishes

    def release(self, ident: str) -> None:
        """A worker is to leave and not to be replaced."""
        member = self.members.get(ident)
        if member is not None and not member.leaving:
            self._groups.leave(member)
            self.wanted = max(0, self.wanted - 1)

    def close(self) -> None:
        """Start nobody any more, and let everybody leave."""
        self.is_closing = True
        self.wanted = 0

    def terminate(self, now: float) -> list[Child]:
        """The same at once: the jobs to kill."""
        self.close()
        for member in self.members.values():
            member.told, member.killed_at = True, now
            self._groups.leave(member)
        return list(dict.fromkeys(member.child for member in self.members.values()))

    # -- what happens

    def knows(self, ident: str) -> bool:
        """True where ``ident`` is one of the workers, or may be one being started."""
        return ident in self.members or self.starting > 0

    def started(self, child: Child, count: int) -> None:
        """A job of so many workers was submitted."""
        self.starting -= 1
        self._outage.ended()
        for index in range(count):
            ident = ident_of(child, index)
            name = child.name if count == 1 else f"{child.name}.{index}"
            member = Member(ident, name, index, child, up=ident in self._early_up)
            member.told = ident in self._early_told
            member.failures = self._failures
            self.members[ident] = member
            self._groups.joined(member)
        if not self.starting:
            # nobody else can be early
            self._early_up.clear()
            self._early_told.clear()

    def not_started(self, error: BaseException, now: float) -> None:
        """A job could not be submitted."""
        self.starting -= 1
        if isinstance(error, BackendUnavailableError):
            # nothing is known of the workers: they may well start once the platform is back
            self._outage.failed(error, self._asked_at, now)
            self._retry_at = self._outage.retry_at
            return
        self._outage.ended()
        self._failed(f"which could not be started: {error}", now)
        self._broken = self._broken or error

    def is_up(self, ident: str) -> bool:
        """A worker asked for work for the first time; False where it is to leave."""
        self._failures = 0
        self._broken = None
        self._has_raised = False
        self._was_up = True
        member = self.members.get(ident)
        if member is None:
            self._early_up.add(ident)
            return True
        # after a second connection it must be told again
        member.up, member.told, member.cut_at = True, False, None
        self._groups.changed(member)
        return not member.leaving

    def is_broken(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed; it is about to exit."""
        self._broken = error
        self._has_raised = True
        member = self.members.get(ident)
        self._last_words = f"{member.name if member else ident}: initializer raised {error!r}"

    def is_cut(self, ident: str, now: float) -> None:
        """A worker's connection ended; its supervisor is about to tell how it died."""
        member = self.members.get(ident)
        # one that was told to exit may take its time
        if member is not None and not member.told:
            member.cut_at = now
            self._groups.changed(member)

    def is_retired(self, ident: str) -> None:
        """A worker was told to exit."""
        member = self.members.get(ident)
        if member is not None:
            member.told = True
            self._groups.changed(member)
        elif self.starting:
            self._early_told.add(ident)

    def observed(self, child: Child, status: JobStatus, now: float) -> list[Loss]:
        """A job has a status; returns the workers that have ended."""
        losses = []
        self._places.observed(child.ident, status, now)
        for index in range(child.processes):
            member = self.members.get(ident_of(child, index))
            if member is None:
                continue
            process = process_of(status, index)
            if process.state.is_terminal:
                losses.append(self._lose(member, process, now))
                continue
            self._suspend(member, process, now)
            if process.state is not JobState.SUSPENDED:
                member.runs = member.runs or process.state is JobState.RUNNING
                if status.draining and not member.draining:
                    self._drain(member)
        return losses

    def _suspend(self, member: Member, process: ProcessStatus, now: float) -> None:
        """A worker was stopped, suspended by its platform, or neither."""
        stopped = is_stopped(process)
        suspended = process.state is JobState.SUSPENDED and not stopped
        if member.suspended_at is not None and not suspended and member.cut_at is not None:
            # it could not make another connection meanwhile
            member.cut_at = now
        if not suspended:
            member.suspended_at, member.suspension_said = None, False
        elif member.suspended_at is None:
            member.suspended_at = now
        if not stopped:
            member.stopped_at = None
        elif member.stopped_at is None:
            member.stopped_at = now
        self._groups.changed(member)

    def _drain(self, member: Member) -> None:
        """The platform takes its place away: another one takes over, and it is told so."""
        member.draining = True
        # one that was told to exit holds what others may do sooner; one that was killed, nothing
        member.told = member.killed_at is not None
        self._groups.leave(member)

    def _lose(self, member: Member, process: ProcessStatus, now: float) -> Loss:
        del self.members[member.ident]
        self._groups.gone(member)
        expected = member.leaving or member.told
        if member.up:
            # it could be started, so another one may be
            self._failures, self._retry_at = 0, now
        elif not expected and not self._was_taken(member, process):
            if self._broken is None:
                tail = "".join(f"\n  {line}" for line in process.log_tail)
                failure = member.child.failure
                words = f"{member.name}: {failure or process.message or process.reason}{tail}"
                if failure and (process.reason is None or process.reason.counts_as_attempt):
                    # it never could come up, and nor will others
                    self._broken = StartError(words)
            else:
                words = self._last_words
            self._failed(words, now)
        return Loss(
            ident=member.ident,
            child=member.child,
            attempt=attempt_of(member, process),
            counts=not (member.leaving or member.fenced)
            and (process.reason is None or process.reason.counts_as_attempt),
            expected=expected,
        )

    def _was_taken(self, member: Member, process: ProcessStatus) -> bool:
        """True where a worker's place was taken with those of others that are accounted for.

        An engine that restarts takes all that were about to come up: that is one failure, however
        many they were.
        """
        by_platform = process.reason is not None and not process.reason.counts_as_attempt
        return by_platform and member.failures < self._failures

    def _failed(self, words: str, now: float) -> None:
        self._failures += 1
        if self._failures <= FEW:
            # a platform may have had room for these, and none for the others
            self._hopes = {m.ident for m in self.members.values() if not m.up and not m.leaving}
        self._retry_at = now + BACKOFF[min(self._failures, len(BACKOFF)) - 1]
        self._last_words = words
        self._places.failed(words, now)

    # -- what to do about it

    def next(self, now: float) -> Step | None:
        """What to do now; None where there is nothing before :meth:`deadline`."""
        self._forgive(now)
        for member in self._groups.timed():
            due = self._kill_at(member)
            if due is not None and now >= due:
                if not member.leaving and not member.disconnected:
                    # on one host a connection does not end by itself: its work may be to blame
                    times = member.killed_at, member.stopped_at, self._verdict
                    member.disconnected = times == (None, None, None)
                    member.fenced = member.fenced or not member.disconnected
                return self._kill(member, now)
            due = _suspension_due(member)
            if due is not None and now >= due:
                member.suspension_said = True
                return Say(
                    f"{member.name} is suspended by its platform, and keeps its tasks until it "
                    "goes on"
                )
        hopeless = self._hopeless()
        if hopeless is not None:
            self.close()
            return hopeless
        leaving = self._next_leaving()
        if leaving is not None:
            leaving.told = True
            self._groups.changed(leaving)
            # one whose process does not run yet may wait for its place for ever
            if leaving.up:
                return Retire(leaving.ident, leaving.draining)
            return self._kill(leaving, now)
        missing = self._missing()
        if missing > 0 and now >= self._retry_at:
            self.starting += 1
            self._asked_at = now
            return Start(min(self._per_job, missing))
        if self.is_closing and not self.members and not self.starting:
            return Stop()
        return self._say(now)

    def _say(self, now: float) -> Say | None:
        away = None if self.is_closing else self._outage.next(now)
        if away is not None:
            return Say(away)
        if self._places.due is None or now < self._places.due or self.is_closing:
            return None
        running = sum(m.runs and not m.leaving for m in self.members.values())
        text = self._places.next(now, running=running, wanted=self.wanted)
        return None if text is None else Say(text)

    def deadline(self) -> float | None:
        """When :meth:`next` may have something to do though nothing happens."""
        timed = self._groups.timed()
        times = [
            due for m in timed for due in (self._kill_at(m), _suspension_due(m)) if due is not None
        ]
        if self._missing() > 0:
            times.append(self._retry_at)
        if not self.is_closing:
            times += [due for due in (self._places.due, self._outage.due) if due is not None]
        self._planned = min(times, default=None)
        return self._planned

    def _forgive(self, now: float) -> None:
        # we were stopped ourselves, or the machine was asleep: whoever seems silent may not be
        if self._planned is not None and now > self._planned + LATE:
            for member in self._groups.timed():
                member.stopped_at = None if member.stopped_at is None else now
                member.cut_at = None if member.cut_at is None else now
        self._planned = None

    def _kill_at(self, member: Member) -> float | None:
        if member.killed_at is not None:
            return member.killed_at + AGAIN
        if member.suspended_at is not None:
            return None
        times = []
        if member.stopped_at is not None:
            times.append(member.stopped_at + self._lease)
        if member.cut_at is not None:
            times.append(member.cut_at + (VERDICT if self._verdict is None else self._verdict))
        return min(times, default=None)

    def _kill(self, member: Member, now: float) -> Kill:
        member.killed_at = now
        self._groups.changed(member)
        others = [
            self.members.get(ident_of(member.child, i)) for i in range(member.child.processes)
        ]
        return Kill(member, whole=all(m is None or m.killed_at is not None for m in others))

    def cannot_be_retired(self, ident: str, now: float) -> Kill | None:
        """A worker that is to exit cannot be told."""
        member = self.members.get(ident)
        return None if member is None else self._kill(member, now)

    def _hopeless(self) -> GiveUp | None:
        """The reason that nobody will work here any more, if so."""
        if self.is_closing:
            return None
        if self._outage.is_over and not self._groups.staying:
            return GiveUp(
                f"no worker is left, and for {self._outage.lasted:.0f} s the platform could not be "
                f"asked to start another one: {self._outage.error}",
                self._outage.error,
            )
        if not self._has_failed_for_good():
            return None
        return GiveUp(
            f"{self._failures} workers in a row ended before they were up; the last one, "
            f"{self._last_words}",
            self._broken,
        )

    def _has_failed_for_good(self) -> bool:
        if not self._failures:
            return False
        if any(m.up and not m.leaving for m in self.members.values()):
            return False
        if self._broken is not None:
            nobody_may_come = self._has_raised or self._hopes.isdisjoint(self.members)
            return self._failures >= FEW and nobody_may_come
        # workers that did come up before show that they can; whoever kills them may stop
        most = MANY * max(1, self.wanted) if self._was_up else len(BACKOFF)
        return self._failures >= most

    def _next_leaving(self) -> Member | None:
        surplus = self._groups.staying - max(0, self.wanted)
        if surplus > 0:
            staying = [m for m in self.members.values() if not m.leaving]
            for member in staying[-surplus:]:
                self._groups.leave(member)
        return self._groups.next_untold()

    def _missing(self) -> int:
        if self.is_closing or self.starting:
            return 0
        return self.wanted - self._groups.staying


def _suspension_due(member: Member) -> float | None:
    """When people are to be told that a worker is suspended; None where they need not be."""
    if member.suspended_at is None or member.suspension_said or member.leaving:
        return None
    return member.suspended_at + PATIENCE
