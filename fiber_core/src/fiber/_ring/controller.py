"""Runs a ring: carries what its workers tell to the machine, and does what the machine says.

One thread that waits for descriptors, for what other threads have for it, and for a time.

Takes what members say of rounds to the machine, and what the machine decides to the members.

What those who wait for a ring are told.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pickle
import queue
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._ring import events
from fiber._ring import events as do
from fiber._ring.machine import RingMachine
from fiber._ring.member import MemberProcess, MemberThread, Work
from fiber._ring.model import Failure, Group, RingStatus
from fiber._ring.policy import Policy
from fiber._ring.protocol import Beat, Hello, Kept, Met, Probed, Raised, Returned, Run
from fiber._ring.rendezvous import Admission, Round
from fiber._ring.workers import Hands, Worker, ended_badly, raised, why
from fiber.connection import Connection, Pipe
from fiber.model import JobState

if TYPE_CHECKING:
    from fiber._launch.child import Child
    from fiber._runtime.runtime import Runtime
    from fiber.model import JobStatus

__all__ = ["Talk"]


class Loop:
    """Calls what belongs to a descriptor, and what was posted, on the thread that runs it."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._news: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        self._selector.register(self._read, selectors.EVENT_READ, self._clear)
        self._is_stopping = False

    def post(self, news: Callable[[], None]) -> None:
        """Have something called on the loop's thread; from any thread."""
        self._news.put(news)
        # a full pipe wakes it as well
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._write >= 0:
                os.write(self._write, b"!")

    def watch(self, fd: int, action: Callable[[], None]) -> None:
        """Have something called whenever a descriptor can be read from."""
        if not self._is_stopping:
            self._selector.register(fd, selectors.EVENT_READ, action)

    def unwatch(self, fd: int) -> None:
        """Not any more; nothing where it was not watched."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def run(self, turn: Callable[[], float | None]) -> None:
        """Until it is stopped.

        Args:
            turn: called after whatever happened; returns the moment by which it must be again.
        """
        due = turn()
        while not self._is_stopping:
            left = None if due is None else max(0.0, due - time.monotonic())
            for key, _ in self._selector.select(left):
                # one that was called before may have ended the watch
                if key.fd in self._selector.get_map():
                    key.data()
            self.drain()
            due = turn()

    def drain(self) -> None:
        """Call what was posted."""
        while not self._news.empty():
            self._news.get()()

    def stop(self) -> None:
        """Return from :meth:`run` soon; on the loop's thread."""
        self._is_stopping = True

    def close(self) -> None:
        """Release its descriptors; what is posted afterwards is never called."""
        self._is_stopping = True
        with self._lock:
            if self._write >= 0:
                self._selector.close()
                os.close(self._read)
                os.close(self._write)
                self._read = self._write = -1

    def _clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass


class Talk:
    """The round of a ring, and what it goes on from.

    Args:
        team: all workers, by number.
        bounds: fewest and most ranks, where these may change while ranks run.
        feed: tells the machine.
    """

    def __init__(
        self,
        team: Mapping[int, Worker],
        bounds: tuple[int, int] | None,
        feed: Callable[[events.Event], None],
    ) -> None:
        self._team = team
        self._bounds = bounds
        self._feed = feed
        self._round: Round | None = None
        self._admission: Admission | None = None
        self._state: tuple[int, bytes | None] = (0, None)

    def rank_of(self, worker: Worker, slot: int | None) -> int | None:
        """The rank of a worker's slot; None where it has none."""
        return None if self._round is None else self._round.rank_of(worker.number, slot)

    def results(self) -> list[bytes]:
        """What each rank returned, pickled, by rank."""
        return [] if self._round is None else self._round.results()

    # -- what the machine wants

    def form(self, told: do.Form) -> None:
        """Bring the workers of a new round together."""
        self._admission = None
        self._round = Round(told.round, told.restarts, told.placements, self._team, self._bounds)
        self._round.dial()

    def go(self) -> None:
        """Let all of them begin."""
        current = self._round
        assert current is not None, "the machine forms a round before it runs"
        for place in current.placements:
            self._team[place.worker].send(self._run(current))

    def admit(self, told: do.Admit) -> None:
        """Bring a newcomer together with those that run."""
        assert self._round is not None, "the machine admits to a round"
        self._admission = Admission(self._round, self._team[told.worker], self._team)
        self._admission.ask()
        self.look_again()

    def change(self, told: do.Change) -> None:
        """Tell those that run who they are now; a newcomer is told the same, and begins."""
        current, admission = self._round, self._admission
        assert current is not None, "the machine changes a round"
        joined = any(place.worker not in current.workers for place in told.placements)
        came = admission.hellos if admission is not None and joined else ()
        current.change(told.placements, came)
        self.look_again()

    def collect(self, told: do.Collect) -> None:
        """Ask survivors what they committed last."""
        current = self._round
        assert current is not None, "the machine collects from a round"
        current.ask(told.workers)
        self.look_again()

    # -- what members say

    def heard(self, worker: Worker, slot: int, message: Any) -> None:
        """A member said something, which is a sign of life in any case."""
        number, current = worker.number, self._round
        self._feed(events.WorkerHeard(number))
        if isinstance(message, Hello):
            worker.hellos[slot] = message
            if worker.is_up:
                self._feed(events.WorkerUp(number, message.host))
        elif isinstance(message, Probed) and current is not None:
            self._probed(current, worker, slot, message)
        elif isinstance(message, Met) and current is not None:
            self._met(current, worker, slot, message)
        elif isinstance(message, Returned):
            worker.returned[slot] = message.result
            if len(worker.returned) == worker.group.slots:
                self._feed(events.WorkerDone(number))
        elif isinstance(message, Raised):
            worker.raised.add(slot)
            host = worker.hellos[slot].host.name
            failed = raised(message, self.rank_of(worker, slot), host)
            self._feed(events.WorkerFailed(number, failed))
        elif isinstance(message, Kept):
            worker.kept[slot] = message
            self.look_again()
        else:
            assert isinstance(message, Beat), f"a member said {message!r}"

    def look_again(self) -> None:
        """Somebody answered, or will not any more."""
        current, admission = self._round, self._admission
        if current is not None and current.is_answered():
            self._keep_newest(current)
            self._feed(events.Collected(current.number))
        if admission is not None and admission.is_answered():
            self._decide(admission)

    def _probed(self, current: Round, worker: Worker, slot: int, message: Probed) -> None:
        admission = self._admission
        if admission is not None:
            admission.probed(worker, slot, message)
            self.look_again()
            return
        failure = current.probed(worker.number, slot, message)
        if failure is not None:
            self._feed(events.NotFormed(current.number, failure))

    def _met(self, current: Round, worker: Worker, slot: int, message: Met) -> None:
        if current.is_joining(worker.number):
            worker.send_to(slot, self._run(current))
        elif current.met(worker.number, slot, message):
            self._feed(events.Formed(current.number))

    def _decide(self, admission: Admission) -> None:
        failure, number, current = admission.failure(), admission.worker.number, self._round
        assert current is not None, "somebody is admitted to a round"
        self._keep_newest(current)
        if failure is None:
            self._feed(events.Admitted(current.number, number))
        else:
            self._feed(events.NotAdmitted(current.number, number, failure))
        if self._admission is admission:
            self._admission = None

    def _keep_newest(self, current: Round) -> None:
        """What those that begin go on from: the newest state that anybody told."""
        newest = current.newest()
        if newest is not None and newest[0] >= self._state[0]:
            self._state = newest

    def _run(self, current: Round) -> Run:
        step, state = self._state
        return Run(facts=current.facts, step=step, state=state)


class Outcome:
    """The last status of a ring, and its end; for any thread.

    Args:
        status: as it is now.
    """

    def __init__(self, status: RingStatus) -> None:
        self._changed = threading.Condition()
        self._status = status
        self._is_over = False
        self._results: tuple[bytes, ...] = ()
        #: why it failed, once it has
        self.failure: Failure | None = None

    # -- for those who wait

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is over, or ``timeout`` seconds have passed; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_over, timeout)

    def wait_for(
        self, condition: Callable[[RingStatus], bool], timeout: float | None = None
    ) -> bool:
        """Wait until something is true of the status; False where it is over or time ran out."""
        with self._changed:
            self._changed.wait_for(lambda: condition(self._status) or self._is_over, timeout)
            return condition(self._status)

    def results(self) -> list[Any]:
        """What the ranks returned, by rank."""
        return [pickle.loads(found) for found in self._results]

    # -- for the coordinator

    def told(self, status: RingStatus) -> None:
        """It has another status."""
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def over(self, failure: Failure | None, results: Sequence[bytes] = ()) -> None:
        """It is over; the first word on it counts."""
        with self._changed:
            if not self._is_over:
                self._is_over, self.failure = True, failure
                self._results = tuple(results)
            self._changed.notify_all()


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
