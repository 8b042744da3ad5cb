"""Runs a ring: carries what its workers tell to the machine, and does what the machine says."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import TYPE_CHECKING

from fiber._base import values
from fiber._ring import commands as do
from fiber._ring import events
from fiber._ring.attempt_messages import Talk
from fiber._ring.job_threads import Hands
from fiber._ring.loop import Loop
from fiber._ring.machine import RingMachine
from fiber._ring.member import MemberProcess, MemberThread, Work
from fiber._ring.model import Failure, Group, RingStatus
from fiber._ring.outcome import Outcome
from fiber._ring.policy import Policy
from fiber._ring.workers import Worker, ended_badly, why
from fiber.model import JobState
from fiber.pipes import Connection, Pipe

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._runtime.runtime import Runtime
    from fiber.model import JobStatus

log = logging.getLogger("fiber")


#: turns that this process has missed when it was stopped, or its machine asleep
_MISSED = 3


class Coordinator:
    """One ring, on a thread of its own.

    Args:
        runtime: of the process that starts it.
        groups: its workers.
        policy: how it starts, restarts and ends.
        work: what its members do.
        changed: told each status, on that thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        groups: Sequence[Group],
        policy: Policy,
        work: Work,
        changed: Callable[[RingStatus], None] = lambda _: None,
    ) -> None:
        self._runtime = runtime
        self._work = work
        self._changed = changed
        self._machine = RingMachine(groups, policy, epoch=time.time() - time.monotonic())
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self._team: dict[int, Worker] = {}
        self._talk = Talk(self._team, self._machine.bounds, self._feed)
        self._loop = Loop()
        together = policy.start_timeout if policy.min is None else None
        self._hands = Hands(runtime, work, self, together)
        self._thread = threading.Thread(
            target=self._run, name="fiber-ring-coordinator", daemon=True
        )
        #: what those who wait are told
        self.outcome = Outcome(self._machine.status())
        self._finalizer: util.Finalize | None = None

    # -- for the ring's user

    def start(self) -> None:
        """Start the workers.

        The first one is started by the caller's thread, so that what cannot be pickled is an error
        of its own call; the others follow at once, many together.

        Raises:
            Exception: what pickling the function, the initializer or its arguments raised.
        """
        told = self._handle(events.StartAsked())
        first = next((one for one in told if isinstance(one, do.StartWorker)), None)
        try:
            if first is not None:
                self._team[first.worker] = Worker(first.worker, first.group)
                if not first.group.is_caller:
                    self._hands.launch(first)
        except BaseException:
            self._close()
            raise
        self._runtime.own(self)
        # before the stdlib's own exit, which ends daemons: a ring is waited for, as processes are
        self._finalizer = util.Finalize(None, _finish, (weakref.ref(self),), exitpriority=20)
        for one in told:
            if one is not first:
                self._do(one)
            elif first is not None and first.group.is_caller:
                self._join_in(first)
        self._thread.start()

    def tell(self, event: events.Event) -> None:
        """What the user asks; what may not be asked is an error at once.

        Raises:
            ValueError: the machine refuses it.
        """
        done = threading.Event()
        errors: list[ValueError] = []

        def ask() -> None:
            try:
                self._feed(event)
            except ValueError as error:
                errors.append(error)
            finally:
                done.set()

        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return
        self._loop.post(ask)
        # the thread that asks may be the last to know that it has ended
        while not done.wait(1.0) and self._thread.is_alive():
            pass
        if errors:
            raise errors[0]

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Wait until nothing of it is kept any more."""
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def status(self) -> RingStatus:
        """Where it stands."""
        with self._lock:
            return self._machine.status()

    def close(self) -> None:
        """End it and let go of everything, because its program ends."""
        if self._thread.is_alive():
            self.tell(events.TerminateAsked("its program ended"))
            self.outcome.wait(10)
            self.tell(events.TerminateAsked())
            self.wait_closed(10)

    # -- its thread

    def _run(self) -> None:
        try:
            self._loop.run(self._turn)
        except Exception as error:
            # nobody may wait for ever for what nobody coordinates
            log.exception("fiber: a ring's coordinator failed")
            self.outcome.over(why(error))
        finally:
            self._close()

    def _turn(self) -> float | None:
        self._feed(events.Tick())
        due = self._machine.next_deadline()
        # often enough to know that this process was not stopped itself
        soon = time.monotonic() + self._work.beat
        return soon if due is None else min(due, soon)

    def _close(self) -> None:
        """End what is left, which is nothing where all went as it should."""
        self._loop.stop()
        for worker in list(self._team.values()):
            worker.is_cancelled = True
            worker.kill(self._hands.do)
        self._hands.close()
        self._loop.drain()
        for worker in self._team.values():
            worker.close()
        self._loop.close()
        self._runtime.disown(self)
        if self._finalizer is not None:
            self._finalizer.cancel()
        self.outcome.over(Failure(reason="Terminated", message="its coordinator ended"))

    def _handle(self, event: events.Event) -> list[do.Instruction]:
        with self._lock:
            now, before = time.monotonic(), self._machine.phase
            slept, self._looked = now - self._looked > _MISSED * self._work.beat, now
            told = self._machine.handle(events.AllHeard(), now) if slept else []
            told += self._machine.handle(event, now)
            is_news = told or self._machine.phase is not before
            after = self._machine.status() if is_news else None
        if after is not None:
            self._changed(after)
            self.outcome.told(after)
        self._hands.gather(told)
        return told

    def _feed(self, event: events.Event) -> None:
        for told in self._handle(event):
            self._do(told)

    def _do(self, told: do.Instruction) -> None:
        if isinstance(told, do.StartWorker):
            self._team[told.worker] = Worker(told.worker, told.group)
            if told.group.is_caller:
                self._join_in(told)
            else:
                self._hands.launch_soon(told)
        elif isinstance(told, do.Form):
            self._talk.form(told)
        elif isinstance(told, do.Go):
            self._talk.go()
        elif isinstance(told, do.Admit):
            self._talk.admit(told)
        elif isinstance(told, do.Change):
            self._talk.change(told)
        elif isinstance(told, do.Collect):
            self._talk.collect(told)
        elif isinstance(told, do.EndWorker):
            self._end(told)
        elif isinstance(told, do.Halt):
            self._feed(events.Halted(told.round))
        elif isinstance(told, do.Conclude):
            self._conclude(told)
        elif isinstance(told, do.Forget):
            self._loop.stop()

    # -- workers come

    def launched(
        self, number: int, child: Child, process: MemberProcess, ends: list[Connection]
    ) -> None:
        """A worker's job was accepted; from any thread, as the next two."""

        def note() -> None:
            worker = self._team[number]
            worker.child, worker.process = child, process
            self._listen_to(worker, ends)
            if worker.is_cancelled:
                worker.kill(self._hands.do)

        self._loop.post(note)

    def not_launched(self, number: int, error: BaseException) -> None:
        """It was not."""
        self._loop.post(lambda: self._feed(events.WorkerGone(number, why(error))))

    def job_changed(self, number: int, child: Child, status: JobStatus) -> None:
        """Something became of it."""
        self._loop.post(lambda: self._job_changed(number, child, status))

    def _join_in(self, told: do.StartWorker) -> None:
        """The caller's own process is a worker."""
        worker = self._team[told.worker]
        ours, theirs = Pipe()
        gone = events.WorkerGone(told.worker)
        worker.thread = MemberThread(
            self._work, theirs, lambda: self._loop.post(lambda: self._feed(gone))
        )
        self._listen_to(worker, [ours])
        worker.thread.start()

    def _listen_to(self, worker: Worker, ends: list[Connection]) -> None:
        worker.ends = ends
        for slot, end in enumerate(ends):
            self._loop.watch(end.fileno(), functools.partial(self._read, worker, slot))

    # -- what workers tell

    def _read(self, worker: Worker, slot: int) -> None:
        end = worker.ends[slot]
        try:
            while end.poll():
                self._talk.heard(worker, slot, end.recv())
        except (EOFError, OSError):
            # its job tells why
            self._deaf_to(worker, slot)
            self._talk.look_again()

    def _deaf_to(self, worker: Worker, slot: int) -> None:
        if slot not in worker.silent:
            worker.silent.add(slot)
            with contextlib.suppress(OSError):
                self._loop.unwatch(worker.ends[slot].fileno())

    def _job_changed(self, number: int, child: Child, status: JobStatus) -> None:
        worker = self._team.get(number)
        if worker is None:
            return
        worker.child = child
        for slot in range(len(worker.ends)):
            # what it said before it ended counts
            if slot not in worker.silent:
                self._read(worker, slot)
        bad = ended_badly(worker, status)
        failure = None
        if bad is not None:
            failure = values.evolve(bad[1], rank=self._talk.rank_of(worker, bad[0]))
        if status.state.is_terminal:
            for slot in range(len(worker.ends)):
                self._deaf_to(worker, slot)
            worker.close()
            self._feed(events.WorkerGone(number, failure))
            self._talk.look_again()
        elif failure is not None:
            self._feed(events.WorkerFailed(number, failure))
        elif status.state is JobState.PENDING and status.message:
            self._feed(events.WorkerWaits(number, status.message))

    # -- workers go

    def _end(self, told: do.EndWorker) -> None:
        worker = self._team[told.worker]
        if not worker.end(self._hands.do, force=told.force):
            self._loop.post(lambda: self._feed(events.WorkerGone(told.worker)))

    def _conclude(self, told: do.Conclude) -> None:
        for worker in self._team.values():
            if worker.is_idle:
                worker.leave()
        self.outcome.over(told.failure, () if told.failure else self._talk.results())


def _finish(reference: weakref.ref[Coordinator]) -> None:
    """At the program's end: a ring that runs is waited for, and what is kept is let go."""
    coordinator = reference()
    if coordinator is not None:
        coordinator.outcome.wait()
        coordinator.close()
