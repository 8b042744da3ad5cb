"""The pool's side: transport events to the pending table, its instructions to the workers."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fiber.dispatch import protocol
from fiber.dispatch.calls import Call, Sink
from fiber.dispatch.protocol import Mode, Tasks
from fiber.exceptions import WireError, WorkerCrashedError
from fiber.model.task import Attempt
from fiber.pending import events, instructions
from fiber.pending.policy import RetryPolicy
from fiber.pending.table import PendingTable
from fiber.transport import codec
from fiber.transport.endpoint import Peer
from fiber.transport.reactor import Reactor, Timer
from fiber.transport.wire import Kind, Message

log = logging.getLogger("fiber")

#: a call's item size is observed again when it has changed by this factor
_SIZE_CHANGE = 2.0


class Session:
    """One connection of one worker; a worker that dials again gets another."""

    def __init__(self, name: str, ident: str, peer: Peer) -> None:
        #: its name in the pending table, never used twice
        self.name = name
        #: identity of the worker's process within the run
        self.ident = ident
        self.peer = peer
        #: True once it asked for work, so that its initializer is behind it
        self.is_up = False
        #: digests of the functions that it was sent
        self.known: set[bytes] = set()


class Dispatcher:
    """Feeds one pending table and carries out what it says. Thread-safe.

    Args:
        target: number by which workers address it.
        reactor: runs its timers.
        max_attempts: deaths of a worker after which a task is given up.
        quota: units that a worker does in its life, or None.
        is_ours: tells whether an identity belongs to a worker of this pool.
        on_up: called when a worker first asks, with its identity.
        on_broken: called when a worker's initializer failed.
        on_gone: called when a worker's connection ends, with its identity.
    """

    def __init__(
        self,
        target: int,
        reactor: Reactor,
        *,
        max_attempts: int,
        quota: int | None,
        is_ours: Callable[[str], bool],
        on_up: Callable[[str], None],
        on_broken: Callable[[str, BaseException], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self.target = target
        self.lock = threading.RLock()
        self.table = PendingTable(policy=RetryPolicy(max_attempts=max_attempts))
        self._reactor = reactor
        self._quota = quota
        self._is_ours = is_ours
        self._on_up = on_up
        self._on_broken = on_broken
        self._on_gone = on_gone
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._sessions: dict[str, Session] = {}
        self._by_ident: dict[str, Session] = {}
        self._timer: Timer | None = None
        self._drained = threading.Condition(self.lock)
        self._carry: dict[type, Callable[[Any], None]] = {
            instructions.Dispatch: self._dispatch,
            instructions.Revoke: self._revoke,
            instructions.Abandon: self._abandon,
            instructions.Requeue: self._requeued,
            instructions.Retire: self._retire,
            instructions.CallDone: self._call_done,
        }
        self._lost_counts = [0, 0]
        self._to_size: deque[Call] = deque()

    # -- calls

    def add(  # noqa: PLR0913 - one argument for each thing that callers may choose
        self,
        function: Any,
        mode: Mode,
        sink: Sink,
        *,
        items: Sequence[Any] | None,
        chunksize: int | None = None,
        retry: bool = True,
    ) -> Call:
        """Take a call in and give it to workers that wait.

        Args:
            function: pickled once, here.
            mode: how it is called with an item.
            sink: where results go.
            items: all of them, or None for a call that grows by :meth:`extend`.
            chunksize: items that stay together, or None.
            retry: False for at most once.

        Raises:
            Exception: what pickling the function raised.
        """
        call = Call(
            next(self._numbers),
            function,
            mode,
            sink,
            items=items,
            chunksize=chunksize,
            retry=retry,
        )
        with self.lock:
            self._calls[call.number] = call
            self._feed(
                events.CallAdded(
                    call.number,
                    call.count,
                    chunksize,
                    retry=retry,
                    closed=items is not None,
                    kind=call.kind,
                )
            )
        return call

    def extend(self, call: Call, items: Iterable[Any], *, closed: bool = False) -> None:
        """Add items to a call that grows."""
        with self.lock:
            if call.number not in self._calls:
                return
            added = call.extend(items)
            self._feed(events.ItemsAdded(call.number, added, closed))

    def drop(self, call: Call) -> None:
        """Nobody wants the results of a call any more."""
        with self.lock:
            if self._calls.pop(call.number, None) is not None:
                self._feed(events.CallDropped(call.number))
                call.release()
                self._drained.notify_all()

    def queued(self, call: Call) -> int:
        """Items of a call that wait for a worker."""
        with self.lock:
            view = self.table.call(call.number)
            return 0 if view is None else view.queued

    def fail_all(self, error: BaseException) -> None:
        """End every call with an error."""
        with self.lock:
            calls, self._calls = list(self._calls.values()), {}
            for call in calls:
                self._feed(events.CallDropped(call.number))
                call.sink.broken(error)
                call.release()
            self._drained.notify_all()

    def wait_drained(self, timeout: float | None = None) -> bool:
        """Wait until no call is left."""
        with self.lock:
            return self._drained.wait_for(lambda: not self._calls, timeout)

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

    def drain(self, ident: str) -> bool:
        """Retire a worker once it holds nothing; False where it never asked."""
        with self.lock:
            session = self._by_ident.get(ident)
            if session is not None:
                self._feed(events.WorkerDraining(session.name))
            return session is not None

    def is_connected(self, ident: str) -> bool:
        """True while the worker has a session."""
        return ident in self._by_ident

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
            if self._timer is not None:
                self._timer.cancel()
            self._sessions.clear()
            self._by_ident.clear()

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
                self._on_up(session.ident)
        elif message.kind is Kind.KEPT:
            entry, stop = protocol.read_kept(message.body)
            with self.lock:
                self._feed(events.RevokeAnswered(session.name, entry, stop))
        elif message.kind is Kind.MISSING:
            self._missing(session, bytes(message.body))
        elif message.kind is Kind.BROKEN:
            self._on_broken(session.ident, _error(message.body))
        else:
            msg = f"{message.kind.name} is not for a pool"
            raise WireError(msg)

    def on_peer_lost(self, peer: Peer) -> None:
        """A connection ended; the pool finds out how its worker did."""
        session = peer.state.get(self.target)
        if isinstance(session, Session):
            self._on_gone(session.ident)

    def _welcome(self, peer: Peer) -> Session:
        if not self._is_ours(peer.ident):
            msg = f"process {peer.ident} is no worker of this pool"
            raise WireError(msg)
        # dialled again: what the former connection held is lost
        self.lost(peer.ident, None, counts=False)
        with self.lock:
            session = Session(f"{peer.ident}/{next(self._names)}", peer.ident, peer)
            peer.state[self.target] = session
            self._sessions[session.name] = session
            self._by_ident[peer.ident] = session
            self._feed(events.WorkerJoined(session.name, self._quota))
        return session

    def _done(self, session: Session, body: memoryview) -> None:
        done, pickled = protocol.read_done(body)
        count = done.stop - done.start
        values, errors = _outcomes(pickled, count)
        with self.lock:
            if done.start < done.stop:
                now = time.monotonic()
                event = events.UnitsDone(
                    session.name, done.entry, done.start, done.stop, done.seconds
                )
                todo = self.table.handle(event, now)
                if done.credits:
                    todo += self.table.handle(
                        events.WorkerAsked(session.name, done.credits), now
                    )
                for step in todo:
                    if type(step) is instructions.Accept:
                        self._accept(step, done.start, values, errors)
                    else:
                        self._carry[type(step)](step)
                self._after()
            elif done.credits:
                self._feed(events.WorkerAsked(session.name, done.credits))

    def _missing(self, session: Session, digest: bytes) -> None:
        with self.lock:
            for call in self._calls.values():
                if call.digest == digest:
                    session.peer.send(Kind.FUNCTION, self.target, 0, [digest, *call.function])
                    return
        # the call is over: anything that can be called will do, its results are dropped
        session.peer.send(Kind.FUNCTION, self.target, 0, [digest, *codec.dumps(_nothing)])

    # -- instructions, under the lock

    def _feed(self, event: events.Event) -> None:
        for step in self.table.handle(event, time.monotonic()):
            self._carry[type(step)](step)
        self._after()

    def _after(self) -> None:
        while self._to_size:
            call = self._to_size.popleft()
            observed = events.SizeObserved(call.number, call.item_bytes)
            for step in self.table.handle(observed, time.monotonic()):
                self._carry[type(step)](step)
        deadline = self.table.next_deadline()
        if deadline is None or (
            self._timer is not None
            and self._timer.action is not None
            and self._timer.when <= deadline
        ):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(max(0.0, deadline - time.monotonic()), self._tick)

    def _tick(self) -> None:
        with self.lock:
            self._timer = None
            self._feed(events.Tick())

    def _dispatch(self, step: instructions.Dispatch) -> None:
        session, call = self._sessions[step.worker], self._calls[step.call]
        mode, segments = call.encode(step.start, step.stop)
        size = sum(len(segment) for segment in segments) / (step.stop - step.start)
        if not call.item_bytes / _SIZE_CHANGE <= size <= call.item_bytes * _SIZE_CHANGE:
            call.item_bytes = size
            self._to_size.append(call)
        if call.digest not in session.known:
            session.known.add(call.digest)
            session.peer.send(Kind.FUNCTION, self.target, 0, [call.digest, *call.function])
        head = Tasks(
            step.entry, step.call, step.start, step.stop, step.chunk, mode, call.digest
        )
        session.peer.send(Kind.TASKS, self.target, step.entry, [head.encode(), *segments])

    def _revoke(self, step: instructions.Revoke) -> None:
        self._sessions[step.worker].peer.send(
            Kind.REVOKE, self.target, 0, [protocol.entry(step.entry)]
        )

    def _accept(
        self,
        step: instructions.Accept,
        first: int,
        values: Sequence[Any],
        errors: dict[int, BaseException | None],
    ) -> None:
        call = self._calls.get(step.call)
        if call is None:
            return
        wanted = values[step.start - first : step.stop - first]
        failed = {
            first + offset: error
            for offset, error in errors.items()
            if step.start <= first + offset < step.stop
        }
        call.forget(step.start, step.stop)
        call.sink.accept(step.start, wanted, failed)

    def _abandon(self, step: instructions.Abandon) -> None:
        self._lost_counts[1] += step.stop - step.start
        call = self._calls.get(step.call)
        if call is None:
            return
        for index in range(step.start, step.stop):
            call.sink.fail(index, index + 1, _crashed(index, step.attempts, call))
        call.forget(step.start, step.stop)

    def _requeued(self, step: instructions.Requeue) -> None:
        self._lost_counts[0] += step.stop - step.start

    def _retire(self, step: instructions.Retire) -> None:
        self._sessions[step.worker].peer.send(Kind.RETIRE, self.target, 0)

    def _call_done(self, step: instructions.CallDone) -> None:
        call = self._calls.pop(step.call, None)
        if call is not None:
            call.sink.done()
            call.release()
            self._drained.notify_all()


def _nothing(*_: Any, **__: Any) -> None:
    """The function of a call that nobody waits for any more."""


def _outcomes(
    body: memoryview, count: int
) -> tuple[Sequence[Any], dict[int, BaseException | None]]:
    try:
        values, errors = codec.loads(body)
        if len(values) == count:
            return values, errors or {}
        failure: BaseException = WireError(f"{len(values)} results for {count} items")
    except Exception as error:  # noqa: BLE001 - unpickling runs the results' own code
        failure = error
    message = f"results could not be read: {type(failure).__name__}: {failure}"
    wrapped = codec.encoding_error(failure, message)
    return [None] * count, dict.fromkeys(range(count), wrapped)


def _error(body: memoryview) -> BaseException:
    try:
        error = codec.loads(body)
    except Exception as failure:  # noqa: BLE001 - unpickling runs the exception's own code
        return failure
    return error if isinstance(error, BaseException) else WireError(repr(error))


def _crashed(index: int, attempts: Sequence[Attempt], call: Call) -> WorkerCrashedError:
    times = f"{len(attempts)} times" if len(attempts) != 1 else "once"
    lines = [f"task {index} was given up: its worker died {times} while it ran alone"]
    if not call.retry:
        lines = [f"task {index} may have begun on a worker that died, and must not run twice"]
    lines += [f"  {number}. {attempt}" for number, attempt in enumerate(attempts, 1)]
    return WorkerCrashedError("\n".join(lines), attempts=attempts)
