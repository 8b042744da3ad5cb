"""Keeps a number of workers alive: starts, replaces, adds and retires them, with back-off."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import attrs

from fiber.exceptions import FiberError, StartError
from fiber.launch.child import Child
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind
from fiber.model.task import Attempt

log = logging.getLogger("fiber")

#: seconds until a second, third … try after workers that ended before they were up
_BACKOFF = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)
#: so many in a row whose initializer raised, or could not be submitted, are enough
_FEW = 3
#: so many in a row, for each worker wished for, where others have come up before
_MANY = 6
#: seconds that a worker whose connection ended has until the supervisor tells how it died
_VERDICT = 2.0


@attrs.define(eq=False)
class Member:
    """One worker process."""

    #: identity within the run
    ident: str
    #: name for people
    name: str
    #: position within its job
    index: int
    child: Child | None = None
    #: True once it asked for work
    up: bool = False
    #: True where its end is wished for: resize, terminate, its quota
    leaving: bool = False
    #: when its connection ended, if it has
    cut_at: float | None = None
    #: when it was seen stopped, if it is
    stopped_at: float | None = None
    #: True once it was killed for its silence
    fenced: bool = False


class Fleet:
    """The workers of one pool; one thread of its own starts and ends them.

    Args:
        start: starts a job of so many workers, returns its child.
        lost: called with identity, attempt and whether it counts, when a worker is gone.
        fail: called with the reason when no worker can be kept alive.
        lease: seconds after which a stopped worker is given up.
        per_job: workers in one job.
    """

    def __init__(
        self,
        *,
        start: Callable[[int, Callable[[Child, JobStatus], None]], Child],
        lost: Callable[[str, Attempt | None, bool], None],
        fail: Callable[[BaseException], None],
        lease: float,
        per_job: int,
        name: str,
    ) -> None:
        self._start = start
        self._lost = lost
        self._fail = fail
        self._lease = lease
        self._per_job = per_job
        self._wanted = 0
        self._members: dict[str, Member] = {}
        self._changed = threading.Condition()
        self._failures = 0
        self._retry_at = 0.0
        self._broken: BaseException | None = None
        self._last_words = ""
        self._closing = False
        self._starting = 0
        self._was_up = False
        # workers may ask, and be cut, before their submission has returned
        self._early_up: set[str] = set()
        #: seen at the last turn, to notice that this process itself was stopped
        self._last_turn = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- what the pool asks

    def begin(self, wanted: int) -> None:
        """Start the first workers.

        The first job is started by the caller's thread, so that what cannot be started at all is
        an error of its own call; the others follow on the fleet's thread.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        self._wanted = wanted
        self._launch(min(self._per_job, wanted))
        self._thread.start()

    def resize(self, wanted: int) -> list[str]:
        """Keep so many workers from now on; returns who should be retired."""
        with self._changed:
            self._wanted = wanted
            staying = [m for m in self._members.values() if not m.leaving]
            surplus = staying[wanted:]
            for member in surplus:
                member.leaving = True
            self._changed.notify_all()
            return [member.ident for member in surplus]

    def release(self, ident: str) -> None:
        """A worker is to leave and not to be replaced."""
        with self._changed:
            member = self._members.get(ident)
            if member is not None and not member.leaving:
                member.leaving = True
                self._wanted = max(0, self._wanted - 1)

    def close(self) -> None:
        """Start nobody any more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def end(self, ident: str) -> None:
        """Kill one worker whose end is wished for."""
        member = self._members.get(ident)
        if member is not None:
            member.leaving = True
            self._kill(member)

    def terminate(self) -> None:
        """End every worker at once."""
        with self._changed:
            self._closing = True
            members = list(self._members.values())
            for member in members:
                member.leaving = True
            self._changed.notify_all()
        for child in {id(m.child): m.child for m in members if m.child is not None}.values():
            child.kill()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until no worker is left, after :meth:`close` or :meth:`terminate`."""
        with self._changed:
            gone = self._changed.wait_for(lambda: not self._members, timeout)
        if gone and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return gone

    @property
    def size(self) -> int:
        """Workers that are wished for."""
        return self._wanted

    def members(self) -> list[Member]:
        """The workers that have not ended."""
        with self._changed:
            return list(self._members.values())

    def knows(self, ident: str) -> bool:
        """True where ``ident`` is one of these workers, or may be one being started."""
        return ident in self._members or self._starting > 0

    # -- what happens to workers

    def is_up(self, ident: str) -> None:
        """A worker asked for work."""
        with self._changed:
            self._failures = 0
            self._broken = None
            self._was_up = True
            member = self._members.get(ident)
            if member is None:
                self._early_up.add(ident)
            else:
                member.up = True
                member.cut_at = None

    def is_broken(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed; it is about to exit."""
        with self._changed:
            self._broken = error
            member = self._members.get(ident)
            self._last_words = f"{member.name if member else ident}: initializer raised {error!r}"

    def is_cut(self, ident: str) -> None:
        """A worker's connection ended; its supervisor is about to tell how it died."""
        with self._changed:
            member = self._members.get(ident)
            if member is not None:
                member.cut_at = time.monotonic()
                self._changed.notify_all()

    def _on_status(self, child: Child, status: JobStatus) -> None:
        ended: list[tuple[Member, ProcessStatus]] = []
        with self._changed:
            for index in range(child.processes):
                ident = child.ident if child.processes == 1 else f"{child.ident}.{index}"
                member = self._members.get(ident)
                if member is None:
                    continue
                process = _process(status, index)
                if process.state.is_terminal:
                    ended.append((member, process))
                elif process.state is JobState.SUSPENDED:
                    if member.stopped_at is None:
                        member.stopped_at = time.monotonic()
                else:
                    member.stopped_at = None
            for member, process in ended:
                self._forget(member, process)
            self._changed.notify_all()
        for member, process in ended:
            self._lost(member.ident, _attempt(member, process), _counts(member, process))
        with self._changed:
            self._changed.notify_all()

    def _forget(self, member: Member, process: ProcessStatus) -> None:
        self._members.pop(member.ident, None)
        if member.up or member.leaving:
            return
        self._failures += 1
        self._retry_at = time.monotonic() + _BACKOFF[min(self._failures, len(_BACKOFF)) - 1]
        if self._broken is None:
            tail = "".join(f"\n  {line}" for line in process.log_tail)
            self._last_words = f"{member.name}: {process.message or process.reason}{tail}"

    # -- the fleet's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                action = self._next_action()
                while action is None:
                    self._changed.wait(self._until_next())
                    action = self._next_action()
            if action is _STOP:
                return
            action()

    def _next_action(self) -> Callable[[], Any] | None:
        now = time.monotonic()
        # this process was stopped itself, or its machine asleep: nobody is judged in this turn
        late = now - self._last_turn > self._lease + 1.0 and self._until_next() is not None
        self._last_turn = now
        for member in self._members.values():
            if late:
                member.stopped_at = now if member.stopped_at is not None else None
                member.cut_at = now if member.cut_at is not None else None
            if member.fenced:
                continue
            stopped = member.stopped_at is not None and now >= member.stopped_at + self._lease
            cut = member.cut_at is not None and now >= member.cut_at + _VERDICT
            if stopped or cut:
                member.fenced = True
                return functools.partial(self._kill, member)
        if self._failures >= self._most_failures() and not self._closing:
            self._closing = True
            return self._give_up
        staying = sum(not m.leaving for m in self._members.values())
        missing = self._wanted - staying
        if missing > 0 and not self._closing:
            if now >= self._retry_at:
                return lambda: self._try_launch(min(self._per_job, missing))
            return None
        if self._closing and not self._members:
            return _STOP
        return None

    def _most_failures(self) -> int:
        if self._broken is not None:
            return _FEW
        # workers that did come up before show that they can; whoever kills them may stop
        return len(_BACKOFF) if not self._was_up else _MANY * max(1, self._wanted)

    def _until_next(self) -> float | None:
        times = [self._retry_at] if self._wanted > len(self._members) else []
        for member in self._members.values():
            if member.fenced:
                continue
            if member.stopped_at is not None:
                times.append(member.stopped_at + self._lease)
            if member.cut_at is not None:
                times.append(member.cut_at + _VERDICT)
        if not times:
            return None
        return max(0.0, min(times) - time.monotonic())

    def _try_launch(self, count: int) -> None:
        try:
            self._launch(count)
        except FiberError as error:
            with self._changed:
                if self._closing:
                    return
                self._failures += 1
                self._retry_at = time.monotonic() + _BACKOFF[min(self._failures, len(_BACKOFF)) - 1]
                self._broken = error
                self._last_words = str(error)
                self._changed.notify_all()

    def _launch(self, count: int) -> None:
        with self._changed:
            self._starting += 1
        early: list[tuple[Child, JobStatus]] = []
        ready = False

        def on_status(child: Child, status: JobStatus) -> None:
            with self._changed:
                if not ready:
                    early.append((child, status))
                    return
            self._on_status(child, status)

        try:
            child = self._start(count, on_status)
        finally:
            with self._changed:
                self._starting -= 1
        with self._changed:
            for index in range(count):
                ident = child.ident if count == 1 else f"{child.ident}.{index}"
                name = child.name if count == 1 else f"{child.name}.{index}"
                up = ident in self._early_up
                self._early_up.discard(ident)
                self._members[ident] = Member(ident, name, index, child, up=up)
            ready = True
            unwanted = self._closing
        for owner, status in early:
            self._on_status(owner, status)
        if unwanted:
            child.kill()

    def _kill(self, member: Member) -> None:
        child = member.child
        if child is None:
            return
        try:
            child.signal(member.index, 9)
        except FiberError:
            log.exception("fiber: worker %s could not be killed", member.name)

    def _give_up(self) -> None:
        text = (
            f"{self._failures} workers in a row ended before they were up; the last one, "
            f"{self._last_words}"
        )
        error = StartError(text)
        error.__cause__ = self._broken
        self._fail(error)


def _stop() -> None:
    """Marks the end of the fleet's thread."""


_STOP = _stop


def _process(status: JobStatus, index: int) -> ProcessStatus:
    for process in status.processes:
        if process.index == index and (
            process.state.is_terminal or not status.state.is_terminal
        ):
            return process
    # the backend tells of the job alone
    return ProcessStatus(
        index=index,
        state=status.state,
        reason=status.reason,
        exit_code=status.exit_code,
        message=status.message,
    )


def _attempt(member: Member, process: ProcessStatus) -> Attempt:
    reason = process.reason or Reason(ReasonKind.UNKNOWN)
    message = process.message
    if member.fenced:
        reason = Reason(ReasonKind.LEASE)
        message = "it was stopped or silent for longer than its lease, and was killed"
    child = member.child
    return Attempt(
        worker=member.name,
        host=child.host if child is not None else "",
        pid=process.pid,
        reason=reason,
        message=message,
        log_tail=process.log_tail,
    )


def _counts(member: Member, process: ProcessStatus) -> bool:
    if member.leaving or member.fenced:
        return False
    return process.reason is None or process.reason.counts_as_attempt
