"""Keeps a number of workers alive: starts, replaces, adds and retires them, with back-off."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable

from fiber._launch.child import Child
from fiber._workers.records import Member
from fiber._workers.state import GiveUp, Kill, Loss, Retire, Roster, Say, Start, Step, Stop
from fiber.exceptions import FiberError, StartError
from fiber.model import JobStatus

log = logging.getLogger("fiber")


class Fleet:
    """The workers of one pool; one thread of its own does what their :class:`Roster` says.

    Args:
        start: starts a job of so many workers, returns its child; told whether it is to wait for a
            platform that cannot be asked now.
        lost: called when a worker is gone.
        retire: called with the identity of a worker that is to exit once it holds nothing, and
            whether it hands back what it has not begun; False where it cannot be told.
        fail: called with the reason when no worker can be kept alive.
        ended: called when everybody is gone, after :meth:`close` or :meth:`terminate`.
        lease: seconds after which a stopped worker is given up.
        per_job: workers in one job.
        name: of the thread.
        verdict: seconds that a worker has whose connection ended; None for the roster's own.
    """

    def __init__(
        self,
        *,
        start: Callable[[int, Callable[[Child, JobStatus], None], bool], Child],
        lost: Callable[[Loss], None],
        retire: Callable[[str, bool], bool],
        fail: Callable[[BaseException], None],
        ended: Callable[[], None],
        lease: float,
        per_job: int,
        name: str,
        verdict: float | None = None,
    ) -> None:
        self._start = start
        self._lost = lost
        self._retire = retire
        self._fail = fail
        self._ended = ended
        self._per_job = per_job
        self._roster = Roster(lease=lease, per_job=per_job, verdict=verdict)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- what the pool asks

    def begin(self, wanted: int) -> None:
        """Start the first workers.

        The first job is started by the caller's thread, so that what cannot be started at all is
        an error of its own call; the others follow on the fleet's thread.

        Raises:
            Exception: what pickling the initializer raised, or the platform's refusal.
        """
        with self._changed:
            self._roster.wanted = wanted
            self._roster.starting += 1
        try:
            self._launch(min(self._per_job, wanted), waits=True)
        except BaseException:
            with self._changed:
                self._roster.starting -= 1
            raise
        self._thread.start()

    def resize(self, wanted: int) -> None:
        """Keep so many workers from now on; those in surplus are retired."""
        with self._changed:
            self._roster.wanted = wanted
            self._changed.notify_all()

    def release(self, ident: str) -> None:
        """Retire a worker and do not replace it."""
        with self._changed:
            self._roster.release(ident)
            self._changed.notify_all()

    def close(self) -> None:
        """Retire everybody and start nobody any more."""
        with self._changed:
            self._roster.close()
            self._changed.notify_all()

    def terminate(self) -> None:
        """End every worker at once."""
        with self._changed:
            children = self._roster.terminate(time.monotonic())
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
        roster = self._roster
        with self._changed:
            gone = self._changed.wait_for(
                lambda: not roster.members and not roster.starting, timeout
            )
        if gone and self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return gone

    @property
    def size(self) -> int:
        """Workers that are wished for."""
        return self._roster.wanted

    def members(self) -> list[Member]:
        """The workers that have not ended."""
        with self._changed:
            return list(self._roster.members.values())

    def has(self, ident: str) -> bool:
        """True where ``ident`` is one of these workers."""
        with self._changed:
            return ident in self._roster.members

    def knows(self, ident: str) -> bool:
        """The same, or it may be one that is being started."""
        with self._changed:
            return self._roster.knows(ident)

    # -- what happens to workers

    def is_up(self, ident: str) -> None:
        """A worker asked for work."""
        with self._changed:
            if not self._roster.is_up(ident):
                self._changed.notify_all()

    def is_broken(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed; it is about to exit."""
        with self._changed:
            self._roster.is_broken(ident, error)

    def is_cut(self, ident: str) -> None:
        """A worker's connection ended; its supervisor is about to tell how it died."""
        with self._changed:
            self._roster.is_cut(ident, time.monotonic())
            self._changed.notify_all()

    def is_retired(self, ident: str) -> None:
        """A worker was told to exit."""
        with self._changed:
            self._roster.is_retired(ident)

    def _on_status(self, child: Child, status: JobStatus) -> None:
        with self._changed:
            losses = self._roster.observed(child, status, time.monotonic())
        for loss in losses:
            self._lost(loss)
        with self._changed:
            self._changed.notify_all()

    # -- the fleet's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                step = self._roster.next(time.monotonic())
                while step is None:
                    deadline = self._roster.deadline()
                    wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                    self._changed.wait(wait)
                    step = self._roster.next(time.monotonic())
            if isinstance(step, Stop):
                self._ended()
                return
            self._do(step)

    def _do(self, step: Step) -> None:
        if isinstance(step, Start):
            self._try_launch(step.count)
        elif isinstance(step, Retire):
            if not self._retire(step.ident, step.hand_back):
                with self._changed:
                    kill = self._roster.cannot_be_retired(step.ident, time.monotonic())
                if kill is not None:
                    self._kill(kill)
        elif isinstance(step, Kill):
            self._kill(step)
        elif isinstance(step, Say):
            log.warning("fiber: %s: %s", self._thread.name.removeprefix("fiber-"), step.text)
        elif isinstance(step, GiveUp):
            error = StartError(step.text)
            error.__cause__ = step.cause
            self._fail(error)

    def _kill(self, step: Kill) -> None:
        member = step.member
        try:
            if step.whole:
                member.child.kill()
            else:
                member.child.signal(member.index, signal.SIGKILL)
        except FiberError as error:
            log.warning("fiber: %s could not be killed, and will be again: %s", member.name, error)

    def _try_launch(self, count: int) -> None:
        try:
            # this thread has others to see to: the roster says when to try again
            self._launch(count, waits=False)
        # whatever it is, somebody waits for workers: it is tried again, and told in the end
        except Exception as error:
            log.debug("fiber: a worker could not be started", exc_info=error)
            with self._changed:
                self._roster.not_started(error, time.monotonic())
                self._changed.notify_all()

    def _launch(self, count: int, *, waits: bool) -> None:
        early: list[tuple[Child, JobStatus]] = []
        ready = False

        def on_status(child: Child, status: JobStatus) -> None:
            with self._changed:
                if not ready:
                    early.append((child, status))
                    return
            self._on_status(child, status)

        child = self._start(count, on_status, waits)
        with self._changed:
            self._roster.started(child, count)
            is_closing = self._roster.is_closing
        if is_closing:
            child.kill()
        while True:
            with self._changed:
                if not early:
                    ready = True
                    self._changed.notify_all()
                    return
                owner, status = early.pop(0)
            self._on_status(owner, status)
