"""The pool's side: transport events to the pending table, its instructions to the workers.

One timer that is set anew whenever what it waits for comes sooner.

What a dispatcher tells whoever employs its workers.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from typing import Any, Protocol

from fiber._tasks import protocol
from fiber._tasks.call import Call, Sink
from fiber._tasks.outcomes import Received, read_error
from fiber._tasks.pending import events
from fiber._tasks.pending import events as commands
from fiber._tasks.pending.policy import RetryPolicy
from fiber._tasks.pending.table import PendingTable
from fiber._tasks.protocol import Mode
from fiber._tasks.session import Session
from fiber._tasks.shared_payload import Large, Memory
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind, Message
from fiber._wire.reactor import Reactor, Timer
from fiber.exceptions import WireError
from fiber.model.job import Attempt


class Alarm:
    """Calls back at a moment, or before: whoever is called sets it again. For use under a lock.

    Args:
        reactor: runs the timer.
        ring: called on its thread, after which nothing is set.
    """

    def __init__(self, reactor: Reactor, ring: Callable[[], None]) -> None:
        self._reactor = reactor
        self._ring = ring
        self._timer: Timer | None = None

    def set(self, deadline: float | None) -> None:
        """Ring at ``deadline`` on the monotonic clock; None for no need to.

        One that is set for sooner stays: to be called too soon costs less than to be set each time.
        """
        if deadline is None or (
            self._timer is not None
            and self._timer.action is not None
            and self._timer.when <= deadline
        ):
            return
        self.cancel()
        self._timer = self._reactor.call_later(max(0.0, deadline - time.monotonic()), self._ring)

    def rung(self) -> None:
        """Whoever was called back knows."""
        self._timer = None

    def cancel(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Staff(Protocol):
    """Who employs the workers, and hears how they do; called on the handler thread."""

    def knows(self, ident: str) -> bool:
        """True where the process is one of its workers."""

    def is_up(self, ident: str) -> None:
        """A worker asked for work for the first time."""

    def is_broken(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed."""

    def is_cut(self, ident: str) -> None:
        """A worker's connection ended."""

    def is_retired(self, ident: str) -> None:
        """A worker was told to exit."""


#: a call's item size is observed again when it has changed by this factor
_SIZE_CHANGE = 2.0


class Dispatcher:
    """Feeds one pending table and carries out what it says. Thread-safe.

    Args:
        target: number by which workers address it.
        reactor: runs its timers.
        max_attempts: deaths of a worker after which a task is given up.
        quota: units that a worker does in its life, or None.
        staff: hears of the workers.
        memory: where large functions are laid for workers on this host; None for nowhere.
    """

    def __init__(
        self,
        target: int,
        reactor: Reactor,
        *,
        max_attempts: int,
        quota: int | None,
        staff: Staff,
        memory: Memory | None = None,
    ) -> None:
        self.target = target
        self._large = Large(memory)
        self.lock = threading.RLock()
        self.table = PendingTable(policy=RetryPolicy(max_attempts=max_attempts))
        self._alarm = Alarm(reactor, self._tick)
        self._quota = quota
        self._staff = staff
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._sessions: dict[str, Session] = {}
        self._by_ident: dict[str, Session] = {}
        self._drained = threading.Condition(self.lock)
        self._carry: dict[type, Callable[[Any], None]] = {
            commands.Accept: self._accept,
            commands.Dispatch: self._dispatch,
            commands.Revoke: self._revoke,
            commands.Abandon: self._abandon,
            commands.Withdraw: self._withdrawn,
            commands.Requeue: self._requeued,
            commands.Retire: self._retire,
            commands.CallDone: self._call_done,
        }
        self._lost_counts = [0, 0]
        self._to_size: deque[Call] = deque()
        #: what the report at hand brought
        self._received: Received | None = None
        #: why no more calls are taken
        self._ended: BaseException | None = None

    # -- calls

    def prepare(
        self,
        function: Any,
        mode: Mode,
        sink: Sink,
        *,
        items: Sequence[Any] | None,
        chunksize: int | None = None,
        retry: bool = True,
        begun: Callable[[int, int], None] | None = None,
    ) -> Call:
        """Make a call, to be added.

        Args:
            function: pickled once, here.
            mode: how it is called with an item.
            sink: where results go.
            items: all of them, or None for a call that grows by :meth:`extend`.
            chunksize: items that stay together, or None.
            retry: False for at most once.
            begun: told, under the lock, of the items that are sent to a worker.

        Raises:
            Exception: what pickling the function raised.
        """
        number = next(self._numbers)
        call = Call(number, function, mode, sink, items=items, chunksize=chunksize, retry=retry)
        call.begun = begun
        self._large.lay(call, self._sessions)
        return call

    def add(self, call: Call) -> None:
        """Take a call in and give it to workers that wait.

        Raises:
            Exception: why no more calls are taken.
        """
        with self.lock:
            if self._ended is not None:
                self._let_go(call)
                raise self._ended
            self._calls[call.number] = call
            self._feed(
                events.CallAdded(
                    call.number,
                    call.count,
                    call.chunksize,
                    retry=call.retry,
                    closed=not call.grows,
                    kind=call.kind,
                )
            )

    def extend(self, call: Call, items: Iterable[Any], *, closed: bool = False) -> None:
        """Add items to a call that grows."""
        with self.lock:
            if call.number not in self._calls:
                return
            added = call.extend(items)
            call.closed = closed
            self._feed(events.ItemsAdded(call.number, added, closed))

    def withdraw(self, call: Call, start: int, stop: int) -> None:
        """Have whole units that were not sent to a worker not run; each is a ``CancelledError``."""
        with self.lock:
            self._feed(events.ItemsWithdrawn(call.number, start, stop))

    def end(self, error: BaseException) -> None:
        """End every call with an error, and take no more."""
        with self.lock:
            if self._ended is None:
                self._ended = error
            while self._calls:
                number, call = self._calls.popitem()
                self._feed(events.CallDropped(number))
                call.sink.broken(error)
                self._let_go(call)
            self._drained.notify_all()

    def wait_drained(self, refusal: BaseException) -> None:
        """Wait until no call is left; from then on ``refusal`` is raised to who adds one."""
        with self.lock:
            self._drained.wait_for(lambda: not self._calls)
            if self._ended is None:
                self._ended = refusal

    # -- workers

    def lost(self, ident: str, attempt: Attempt | None, *, counts: bool) -> tuple[int, int]:
        """A worker is gone; returns how many items run again and how many were given up."""
        with self.lock:
            session = self._by_ident.pop(ident, None)
            if session is None:
                return 0, 0
            del self._sessions[session.name]
            self._lost_counts = [0, 0]
            self._feed(events.WorkerLost(session.name, attempt, counts))
            return self._lost_counts[0], self._lost_counts[1]

    def drain(self, ident: str, hand_back: bool = False) -> bool:
        """Retire a worker once it holds nothing; False where it never asked.

        Args:
            ident: of its process.
            hand_back: True to have others do what it has not begun.
        """
        with self.lock:
            session = self._by_ident.get(ident)
            if session is not None:
                self._feed(events.WorkerDraining(session.name, hand_back))
            return session is not None

    def longest_idle(self) -> tuple[str, float] | None:
        """Identity of the worker that has been idle longest, with for how many seconds."""
        with self.lock:
            found = self.table.longest_idle
            if found is None:
                return None
            session = self._sessions.get(found[0])
            return None if session is None else (session.ident, time.monotonic() - found[1])

    def close(self) -> None:
        """Forget timers and workers."""
        with self.lock:
            self._alarm.cancel()
            self._sessions.clear()
            self._by_ident.clear()
        self._large.close()

    # -- service: messages of workers, on the handler thread

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take a worker's message.

        Raises:
            WireError: it makes no sense; its sender is closed.
        """
        session = peer.state.get(self.target)
        if session is None:
            session = self._welcome(peer)
        assert isinstance(session, Session)
        if message.kind is Kind.DONE:
            self._done(session, message.body)
        elif message.kind is Kind.ASK:
            credits_ = protocol.read_ask(message.body)
            with self.lock:
                self._feed(events.WorkerAsked(session.name, credits_))
            if not session.is_up:
                session.is_up = True
                self._staff.is_up(session.ident)
        elif message.kind is Kind.KEPT:
            entry, stop = protocol.read_kept(message.body)
            with self.lock:
                self._feed(events.RevokeAnswered(session.name, entry, stop))
        elif message.kind is Kind.UNREAD:
            self._unread(session, protocol.read_entry(message.body))
        elif message.kind is Kind.MISSING:
            self._missing(session, bytes(message.body), blind=message.id == protocol.LAID)
        elif message.kind is Kind.BROKEN:
            self._staff.is_broken(session.ident, read_error(message.body))
        else:
            msg = f"{message.kind.name} is not for a pool"
            raise WireError(msg)

    def on_peer_lost(self, peer: Peer) -> None:
        """A connection ended; the pool finds out how its worker did."""
        session = peer.state.get(self.target)
        # of a worker that has dialled again this was the former connection
        if isinstance(session, Session) and self._by_ident.get(session.ident) is session:
            self._staff.is_cut(session.ident)

    def _welcome(self, peer: Peer) -> Session:
        if not self._staff.knows(peer.ident):
            msg = f"process {peer.ident} is no worker of this pool"
            raise WireError(msg)
        # dialled again: what the former connection held is lost
        self.lost(peer.ident, None, counts=False)
        with self.lock:
            session = Session(f"{peer.ident}/{next(self._names)}", peer, self.target)
            peer.state[self.target] = session
            self._sessions[session.name] = session
            self._by_ident[peer.ident] = session
            self._feed(events.WorkerJoined(session.name, self._quota))
        return session

    def _done(self, session: Session, body: memoryview) -> None:
        done, pickled = protocol.read_done(body)
        received = Received(pickled, done.start, done.stop)
        happened: list[events.Event] = []
        if done.start < done.stop:
            event = events.UnitsDone(session.name, done.entry, done.start, done.stop, done.seconds)
            happened.append(event)
        if done.credits:
            happened.append(events.WorkerAsked(session.name, done.credits))
        if not happened:
            return
        with self.lock:
            self._received = received
            try:
                self._feed(*happened)
            finally:
                self._received = None

    def _unread(self, session: Session, entry: int) -> None:
        with self.lock:
            for held in self.table.held(session.name):
                if held.entry == entry:
                    session.give_again(held, self._calls.get(held.call))
                    return
        msg = f"entry {entry} is not held by the worker that asks for it again"
        raise WireError(msg)

    def _missing(self, session: Session, digest: bytes, *, blind: bool) -> None:
        session.is_near = session.is_near and not blind
        with self.lock:
            calls = (call for call in self._calls.values() if call.digest == digest)
            session.tell(digest, next(calls, None))

    # -- instructions, under the lock

    def _let_go(self, call: Call) -> None:
        self._large.let_go(call, self._calls, self._sessions)

    def _feed(self, *happened: events.Event) -> None:
        now = time.monotonic()
        steps = self.table.handle(happened[0], now)
        for event in happened[1:]:
            steps += self.table.handle(event, now)
        self._carry_out(steps)
        while self._to_size:
            call = self._to_size.popleft()
            observed = events.SizeObserved(call.number, call.item_bytes)
            self._carry_out(self.table.handle(observed, now))
        self._alarm.set(self.table.next_deadline())

    def _carry_out(self, steps: Iterable[commands.Instruction]) -> None:
        failure: BaseException | None = None
        for step in steps:
            try:
                self._carry[type(step)](step)
            # one that fails must not keep the others from being carried out
            except BaseException as error:
                failure = error
        if failure is not None:
            raise failure

    def _tick(self) -> None:
        with self.lock:
            self._alarm.rung()
            self._feed(events.Tick())

    def _dispatch(self, step: commands.Dispatch) -> None:
        session, call = self._sessions[step.worker], self._calls[step.call]
        if call.begun is not None:
            call.begun(step.start, step.stop)
        try:
            size = session.give(call, step)
        except BaseException:
            # the worker waits for what will not come; once it has dialled again all is in step
            session.cut()
            raise
        if not call.item_bytes / _SIZE_CHANGE <= size <= call.item_bytes * _SIZE_CHANGE:
            call.item_bytes = size
            self._to_size.append(call)

    def _revoke(self, step: commands.Revoke) -> None:
        self._sessions[step.worker].revoke(step.entry)

    def _accept(self, step: commands.Accept) -> None:
        call, received = self._calls.get(step.call), self._received
        if call is None or received is None:
            return
        values, errors = received.of(step.start, step.stop)
        call.forget(step.start, step.stop)
        call.sink.accept(step.start, values, errors)

    def _abandon(self, step: commands.Abandon) -> None:
        self._lost_counts[1] += step.stop - step.start
        call = self._calls.get(step.call)
        if call is None:
            return
        for index in range(step.start, step.stop):
            call.sink.fail(index, index + 1, call.crashed(index, step.attempts))
        call.forget(step.start, step.stop)

    def _withdrawn(self, step: commands.Withdraw) -> None:
        call = self._calls[step.call]
        call.sink.fail(step.start, step.stop, CancelledError())
        call.forget(step.start, step.stop)

    def _requeued(self, step: commands.Requeue) -> None:
        self._lost_counts[0] += step.stop - step.start

    def _retire(self, step: commands.Retire) -> None:
        session = self._sessions[step.worker]
        session.retire()
        self._staff.is_retired(session.ident)

    def _call_done(self, step: commands.CallDone) -> None:
        call = self._calls.pop(step.call, None)
        if call is not None:
            call.sink.done()
            self._let_go(call)
            self._drained.notify_all()
