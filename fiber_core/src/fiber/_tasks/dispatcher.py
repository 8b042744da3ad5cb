"""Owner side: messages of workers to events of the pending table, its commands to messages.

:class:`WorkerObserver` is what the dispatcher reports to the owner of the workers;
:class:`DeadlineTimer` drives the table's deadlines.
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fiber._base import values
from fiber._base.slowness import Lately, lately
from fiber._base.threads import Reactor, Timer
from fiber._tasks import protocol
from fiber._tasks.call import Call, Session, SharedFunctions, Sink
from fiber._tasks.pending import events
from fiber._tasks.pending.events import RetryPolicy
from fiber._tasks.pending.table import PendingTable
from fiber._tasks.protocol import Done, Mode, ReceivedOutcomes, read_error
from fiber._tasks.shared_payload import PayloadStore
from fiber._wire.endpoint import Peer
from fiber._wire.frames import Kind, Message
from fiber._wire.reading import Action
from fiber.exceptions import WireError
from fiber.model.job import Attempt


def _cancelled() -> BaseException:
    # imported when used, since the import takes time
    from concurrent.futures import CancelledError

    return CancelledError()


class DeadlineTimer:
    """One timer for a deadline that moves; may call back too early. Not thread-safe.

    Args:
        reactor: runs the timer.
        callback: called on the reactor's thread; is to call :meth:`expired`, then :meth:`set`.
    """

    def __init__(self, reactor: Reactor, callback: Callable[[], None]) -> None:
        self._reactor = reactor
        self._callback = callback
        self._timer: Timer | None = None

    def set(self, deadline: float | None) -> None:
        """Call back at ``deadline`` on the monotonic clock; None for no need to.

        A timer that is set for sooner stays: an early callback costs less than setting it each time.
        """
        if deadline is None or (
            self._timer is not None
            and self._timer.callback is not None
            and self._timer.when <= deadline
        ):
            return
        self.cancel()
        self._timer = self._reactor.call_later(
            max(0.0, deadline - time.monotonic()), self._callback
        )

    def expired(self) -> None:
        """Note that the callback came, so that no timer is set."""
        self._timer = None

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WorkerObserver(Protocol):
    """Owner of the workers, which the dispatcher reports to.

    Called on the handler thread; ``worker_retired`` on any thread, under the dispatcher's lock.
    """

    def accepts(self, ident: str) -> bool:
        """True where the process may join as one of the workers."""

    def has_ended(self, ident: str) -> bool:
        """True for a process that was one of the workers, of those that have ended of late."""

    def worker_ready(self, ident: str) -> None:
        """A worker asked for work for the first time."""

    def initializer_failed(self, ident: str, error: BaseException) -> None:
        """A worker's initializer failed."""

    def worker_disconnected(self, ident: str) -> None:
        """A worker's connection ended."""

    def worker_retired(self, ident: str) -> None:
        """A worker was sent RETIRE."""


class FailureKeeper(Protocol):
    """What keeps failed tasks."""

    def keep(self, call: Call, index: int, error: BaseException) -> None:
        """A task has failed; its item is there until this returns. Called under the dispatcher's lock."""

    def close(self, *, waits: bool = True) -> None:
        """Write what is kept to the end."""


class Tracer(Protocol):
    """What notes when tasks are sent and come back; called under the dispatcher's lock."""

    def added(self, call: Call) -> None:
        """A call was added."""

    def ended(self, call: Call) -> None:
        """A call is over."""

    def dispatched(self, worker: str, step: events.Dispatch, call: Call, size: float) -> None:
        """An entry was sent to a worker; ``size`` is the mean of an item's."""

    def done(self, worker: str, done: protocol.Done, size: int, later: float = 0.0) -> None:
        """A worker has reported items, with so many bytes of results, and ``later`` seconds of others after them."""

    def failed(self, call: Call, errors: Mapping[int, BaseException | None]) -> None:
        """Some items have failed."""

    def lost(self, worker: str, attempt: Attempt | None, requeued: int, abandoned: int) -> None:
        """A worker has ended; so many items run again, and so many were given up."""


class Tracers:
    """Several tracers as one."""

    def __init__(self, tracers: Iterable[Tracer]) -> None:
        self._tracers = tuple(tracers)

    def added(self, call: Call) -> None:
        """A call was added."""
        for one in self._tracers:
            one.added(call)

    def ended(self, call: Call) -> None:
        """A call is over."""
        for one in self._tracers:
            one.ended(call)

    def dispatched(self, worker: str, step: events.Dispatch, call: Call, size: float) -> None:
        """An entry was sent to a worker."""
        for one in self._tracers:
            one.dispatched(worker, step, call, size)

    def done(self, worker: str, done: protocol.Done, size: int, later: float = 0.0) -> None:
        """A worker has reported items."""
        for one in self._tracers:
            one.done(worker, done, size, later)

    def failed(self, call: Call, errors: Mapping[int, BaseException | None]) -> None:
        """Some items have failed."""
        for one in self._tracers:
            one.failed(call, errors)

    def lost(self, worker: str, attempt: Attempt | None, requeued: int, abandoned: int) -> None:
        """A worker has ended."""
        for one in self._tracers:
            one.lost(worker, attempt, requeued, abandoned)


@values.frozen
class Mishap:
    """A task that failed."""

    #: name of its function
    function: str
    #: position among the items of its call
    item: int
    #: class and text of its error
    error: str
    #: seconds since the epoch
    when: float
    #: traceback in the worker, its end where it is long; "" where there is none
    traceback: str
    #: name by which it is kept; "" where it is not
    replay: str
    #: identity of the worker that ran it; "" where it was given up
    worker: str


#: frames of ours at the beginning of a traceback, whose lines of code are indented more
_OUR_FRAMES = r'\A(  File "[^"\n]*[/\\]fiber[/\\]_[^"\n]*", line .*\n(    .*\n)*)+'
#: most failed tasks that are remembered, and characters of what each says and of its traceback
_MOST_MISHAPS, _MOST_TEXT, _MOST_TRACEBACK = 8, 500, 8000


class Mishaps:
    """Count of what went wrong, with the last few failed tasks as text. Costs nothing that succeeds."""

    def __init__(self) -> None:
        #: tasks that failed
        self.count = 0
        #: items that ran again since a worker was lost
        self.retried = 0
        #: the last ones that failed
        self.last: deque[Mishap] = deque(maxlen=_MOST_MISHAPS)

    def failed(
        self, function: str, errors: Mapping[int, BaseException | None], worker: str
    ) -> None:
        """Some items failed; None for one that was skipped because of another."""
        self.count += len(errors)
        for index, error in itertools.islice(errors.items(), _MOST_MISHAPS):
            if error is not None:
                # as text: an error may hold what its program expects to be released
                kept = getattr(error, "replay", None)
                self.last.append(
                    Mishap(
                        function,
                        index,
                        f"{type(error).__name__}: {text_of(error)}"[:_MOST_TEXT],
                        time.time(),
                        _traceback_of(error),
                        str(getattr(kept, "task", "")),
                        worker,
                    )
                )


def text_of(error: BaseException) -> str:
    """Return the text of an error, whatever that is, shortened."""
    try:
        return str(error)[:_MOST_TEXT]
    # the user's own code
    except Exception:
        return "(its text cannot be made)"


def _traceback_of(error: BaseException) -> str:
    cause = error.__cause__
    if type(cause).__name__ != "RemoteTraceback":
        return ""
    text = str(cause).strip().strip('"').strip()
    # the frames of a worker that called the function tell nothing of it
    head, _, frames = text.partition("\n")
    text = f"{head}\n{re.sub(_OUR_FRAMES, '', frames, count=1)}"
    return text if len(text) <= _MOST_TRACEBACK else f"…\n{text[-_MOST_TRACEBACK:]}"


@values.frozen
class HeldTasks:
    """What a worker does."""

    #: items that it holds
    items: int = 0
    #: name of the function that it runs
    function: str = ""
    #: seconds for which its current task has run
    seconds: float = 0.0
    #: seconds of the median task of that call lately; None until one has ended
    usual: float | None = None
    #: items that it has reported
    done: int = 0
    #: how fast it was lately, and the others where it is slow
    lately: Lately = Lately()


@values.frozen
class TasksView:
    """What waits, runs and has ended, in items."""

    #: that no worker holds
    waiting: int
    #: that workers hold
    running: int
    #: that have ended, the failed ones among them
    done: int
    #: that raised or were given up
    failed: int
    #: that ran again since a worker was lost
    retried: int
    #: what each worker does, by its identity
    held: dict[str, HeldTasks]
    #: the last ones that failed
    errors: tuple[Mishap, ...]


#: a call's item size is observed again when it has changed by this factor
_SIZE_CHANGE = 2.0


class Dispatcher:
    """Feeds one pending table with events and carries out its commands. Thread-safe.

    Args:
        target: its number in messages.
        reactor: runs its timers.
        max_attempts: deaths of a worker after which a task is given up.
        maxtasksperchild: units that a worker runs before it is replaced, or None.
        observer: owner of the workers.
        store: shared memory for large functions and arguments; None for none.
        keeper: keeps tasks that failed; None to keep none.
    """

    def __init__(
        self,
        target: int,
        reactor: Reactor,
        *,
        max_attempts: int,
        maxtasksperchild: int | None,
        observer: WorkerObserver,
        store: PayloadStore | None = None,
        keeper: FailureKeeper | None = None,
    ) -> None:
        self.target = target
        self._reactor = reactor
        self._keeper = keeper
        #: notes when tasks are sent and come back; None while nobody wants that
        self.tracer: Tracer | None = None
        self._shared_functions = SharedFunctions(store)
        self.lock = threading.RLock()
        self.table = PendingTable(policy=RetryPolicy(max_attempts=max_attempts))
        self._timer = DeadlineTimer(reactor, self._tick)
        self._maxtasksperchild = maxtasksperchild
        self._observer = observer
        self._numbers = itertools.count(1)
        self._names = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._sessions: dict[str, Session] = {}
        self._by_ident: dict[str, Session] = {}
        self._drained = threading.Condition(self.lock)
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Accept: self._accept,
            events.Dispatch: self._dispatch,
            events.Revoke: self._revoke,
            events.Abandon: self._abandon,
            events.Withdraw: self._withdrawn,
            events.Requeue: self._requeued,
            events.Retire: self._retire,
            events.CallDone: self._call_done,
        }
        self._lost_counts = [0, 0]
        self._resized: deque[Call] = deque()
        #: outcomes of the DONE message that is being handled
        self._received: ReceivedOutcomes | None = None
        #: identity of the worker that sent it; "" while none is handled
        self._reporter = ""
        #: items of calls that are over
        self._ended_items = 0
        #: what went wrong so far
        self.mishaps = Mishaps()
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
        one_by_one: bool = False,
        on_dispatch: Callable[[int, int], None] | None = None,
    ) -> Call:
        """Pickle a function and make a call, to be passed to :meth:`add`.

        Args:
            function: pickled once, here.
            mode: how it is called with an item.
            sink: where results go.
            items: all of them, or None for a call that grows by :meth:`extend`.
            chunksize: items that stay together, or None.
            retry: False for at most once.
            one_by_one: True for tasks given one by one, which begin in that order.
            on_dispatch: called under the lock with the items that are sent to a worker.

        Raises:
            Exception: what pickling the function raised.
        """
        number = next(self._numbers)
        call = Call(number, function, mode, sink, items=items, chunksize=chunksize, retry=retry)
        call.one_by_one = one_by_one
        call.on_dispatch = on_dispatch
        self._shared_functions.share(call, self._sessions)
        return call

    def add(self, call: Call) -> None:
        """Add a call to the table; workers with credit are given its items at once.

        Raises:
            Exception: why no more calls are taken.
        """
        with self.lock:
            if self._ended is not None:
                self._release(call)
                raise self._ended
            self._calls[call.number] = call
            if self.tracer is not None:
                self.tracer.added(call)
            self._feed(
                events.CallAdded(
                    call.number,
                    call.count,
                    call.chunksize,
                    retry=call.retry,
                    closed=not call.grows,
                    kind=call.kind,
                    one_by_one=call.one_by_one,
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
        """Cancel whole units that were not sent to a worker; each fails with ``CancelledError``."""
        with self.lock:
            self._feed(events.ItemsWithdrawn(call.number, start, stop))

    def cancel(self, call: Call) -> None:
        """End a call with ``CancelledError``; outcomes of what runs of it are dropped."""
        with self.lock:
            if call.number in self._calls:
                self._drop(call, _cancelled())
                self._drained.notify_all()

    def holders(self, call: Call) -> tuple[list[str], list[str]]:
        """Identities of the workers that run items of a call, and of those that hold some behind others."""
        running: list[str] = []
        behind: list[str] = []
        with self.lock:
            for session in self._sessions.values():
                calls = [held.call for held in self.table.held(session.name)]
                if call.number in calls:
                    (running if calls[0] == call.number else behind).append(session.ident)
        return running, behind

    def end(self, error: BaseException) -> None:
        """End every call with an error, and take no more."""
        with self.lock:
            if self._ended is None:
                self._ended = error
            while self._calls:
                self._drop(next(reversed(self._calls.values())), error)
            self._drained.notify_all()

    def _drop(self, call: Call, error: BaseException) -> None:
        """End a call with an error, under the lock."""
        del self._calls[call.number]
        self._feed(events.CallDropped(call.number))
        call.sink.broken(error)
        self._release(call)

    def wait_drained(self, refusal: BaseException) -> None:
        """Wait until no call is left; from then on :meth:`add` raises ``refusal``."""
        with self.lock:
            self._drained.wait_for(lambda: not self._calls)
            if self._ended is None:
                self._ended = refusal

    # -- workers

    def lost(self, ident: str, attempt: Attempt | None, *, counts: bool) -> tuple[int, int]:
        """A worker has ended or reconnected.

        Args:
            ident: of its process.
            attempt: how it ended, if known.
            counts: False where its tasks are not to blame.

        Returns:
            How many items will run again, and how many were given up.
        """
        with self.lock:
            session = self._by_ident.pop(ident, None)
            if session is None:
                return 0, 0
            del self._sessions[session.name]
            self._lost_counts = [0, 0]
            self._feed(events.WorkerLost(session.name, attempt, counts))
            if self.tracer is not None:
                self.tracer.lost(ident, attempt, *self._lost_counts)
            return self._lost_counts[0], self._lost_counts[1]

    def drain(self, ident: str, hand_back: bool = False) -> bool:
        """Retire a worker once it holds nothing; False where it has not connected.

        Args:
            ident: of its process.
            hand_back: True where other workers are to run what it has not begun.
        """
        with self.lock:
            session = self._by_ident.get(ident)
            if session is not None:
                self._feed(events.WorkerDraining(session.name, hand_back))
            return session is not None

    def longest_idle(self) -> tuple[str, float] | None:
        """Identity of the worker that has been idle longest, and for how many seconds."""
        with self.lock:
            found = self.table.longest_idle
            if found is None:
                return None
            session = self._sessions.get(found[0])
            return None if session is None else (session.ident, time.monotonic() - found[1])

    def look(self) -> TasksView:
        """What waits, runs and has ended; a walk over all calls and workers."""
        with self.lock:
            totals = self.table.totals()
            holdings = self.table.holdings(time.monotonic())
            held: dict[str, HeldTasks] = {}
            reports = {}
            for session in self._sessions.values():
                found = holdings[session.name]
                call = None if found.call is None else self._calls.get(found.call)
                name = "" if call is None else call.name
                reports[session.ident] = found.reports
                held[session.ident] = HeldTasks(
                    found.items, name, found.seconds, found.usual, found.done
                )
            view = TasksView(
                waiting=totals.waiting,
                running=totals.running,
                done=self._ended_items + totals.finished,
                failed=self.mishaps.count,
                retried=self.mishaps.retried,
                held=held,
                errors=tuple(self.mishaps.last),
            )
        # sorting is done while others have the lock
        for ident, one in lately(reports).items():
            held[ident] = values.evolve(held[ident], lately=one)
        return view

    def ask_memory(self, interval: float) -> dict[str, int | None]:
        """Resident memory of workers by identity, as each told last, and ask for it anew.

        Args:
            interval: seconds for which what was asked for is good enough.
        """
        now = time.monotonic()
        with self.lock:
            for session in self._sessions.values():
                session.ask_memory(now, interval)
            return {session.ident: session.memory for session in self._sessions.values()}

    def close(self) -> None:
        """Cancel timers and forget workers."""
        with self.lock:
            self._timer.cancel()
            self._sessions.clear()
            self._by_ident.clear()
        self._shared_functions.close()

    # -- service: messages of workers, on the handler thread

    def on_message(self, peer: Peer, message: Message) -> None:
        """Handle a worker's message.

        Raises:
            WireError: it makes no sense; its sender is closed.
        """
        session = peer.state.get(self.target)
        if session is None:
            if self._observer.has_ended(peer.ident):
                # sent before its end, which was reported sooner
                peer.close()
                return
            session = self._add_session(peer)
        assert isinstance(session, Session)
        if message.kind is Kind.DONE:
            self._done(session, message.id, message.body)
        elif message.kind is Kind.ASK:
            credits_ = protocol.read_ask(message.body)
            with self.lock:
                self._feed(events.WorkerAsked(session.name, credits_))
            if not session.is_up:
                session.is_up = True
                self._observer.worker_ready(session.ident)
        elif message.kind is Kind.KEPT:
            entry, stop = protocol.read_kept(message.body)
            with self.lock:
                self._feed(events.RevokeAnswered(session.name, entry, stop))
        elif message.kind is Kind.SEEN:
            session.memory = protocol.read_seen(message.body)
        elif message.kind is Kind.UNREAD:
            self._unread(session, protocol.read_entry(message.body))
        elif message.kind is Kind.MISSING:
            self._missing(session, bytes(message.body), cannot_map=message.id == protocol.SHARED)
        elif message.kind is Kind.BROKEN:
            self._observer.initializer_failed(session.ident, read_error(message.body))
        else:
            msg = f"{message.kind.name} is not for a pool"
            raise WireError(msg)

    def on_peer_lost(self, peer: Peer) -> None:
        """A connection ended; the observer finds out how its worker did."""
        session = peer.state.get(self.target)
        # where a worker has reconnected, this is its former connection
        if isinstance(session, Session) and self._by_ident.get(session.ident) is session:
            self._observer.worker_disconnected(session.ident)

    def _add_session(self, peer: Peer) -> Session:
        if not self._observer.accepts(peer.ident):
            msg = f"process {peer.ident} is no worker of this pool"
            raise WireError(msg)
        # reconnected: what the former connection held is lost
        self.lost(peer.ident, None, counts=False)
        with self.lock:
            name = f"{peer.ident}/{next(self._names)}"
            session = Session(name, peer, self.target, self._look)
            peer.state[self.target] = session
            self._sessions[session.name] = session
            self._by_ident[peer.ident] = session
            self._feed(events.WorkerJoined(session.name, self._maxtasksperchild))
        return session

    def _done(self, session: Session, number: int, body: memoryview) -> None:
        all_done, received = protocol.read_all_done(number, body)
        self._report(session, all_done, received)

    def _look(self, session: Session, entry: int, message: Message) -> Action | None:
        """What a thread that waits for an entry of one item does with a message.

        An interrupt may come anywhere in it, and must harm no other task. So it takes up that item's
        outcome alone, and only while nothing waits that the worker would be given next. Interrupted
        amidst that, it closes the connection: the worker makes another one, and both sides agree.
        """
        if message.kind is not Kind.DONE or message.id:
            return None
        done, pickled = protocol.read_done(message.body)
        if done.entry != entry or done.stop - done.start != 1:
            return None
        received = ReceivedOutcomes(pickled, done.start, done.stop)
        report = functools.partial(self._report, session, [done], received)
        was_begun = False

        def take() -> None:
            nonlocal was_begun
            if was_begun:
                session.disconnect()
                return
            was_begun = True
            with self.lock:
                if self.table.queued:
                    self._reactor.call_soon(report)
                else:
                    report()

        return take

    def _report(
        self, session: Session, all_done: Sequence[Done], received: ReceivedOutcomes
    ) -> None:
        failure: BaseException | None = None
        with self.lock:
            self._received = received
            self._reporter = session.ident
            position, later = 0, 0.0
            if self.tracer is not None:
                later = sum(done.seconds for done in all_done)
            try:
                for done in all_done:
                    if len(all_done) > 1:
                        received.turn_to(done.start, position)
                    position += done.stop - done.start
                    later -= done.seconds
                    try:
                        self._report_one(session, done, received.size // len(all_done), later)
                    # an error must not keep the other entries from being done
                    except BaseException as error:
                        failure = error
            finally:
                self._received = None
                self._reporter = ""
        if failure is not None:
            raise failure

    def _report_one(self, session: Session, done: Done, size: int, later: float) -> None:
        if done.start < done.stop:
            if self.tracer is not None:
                self.tracer.done(session.ident, done, size, later)
            self._feed(
                events.UnitsDone(
                    session.name, done.entry, done.start, done.stop, done.seconds, done.credits
                )
            )
        elif done.credits:
            self._feed(events.WorkerAsked(session.name, done.credits))

    def _unread(self, session: Session, entry: int) -> None:
        with self.lock:
            for held in self.table.held(session.name):
                if held.entry == entry:
                    session.send_entry_singly(held, self._calls.get(held.call))
                    return
        msg = f"entry {entry} is not held by the worker that asks for it again"
        raise WireError(msg)

    def _missing(self, session: Session, digest: bytes, *, cannot_map: bool) -> None:
        session.shares_memory = session.shares_memory and not cannot_map
        with self.lock:
            calls = (call for call in self._calls.values() if call.digest == digest)
            session.send_function(digest, next(calls, None))

    # -- commands of the table, under the lock

    def _release(self, call: Call) -> None:
        self._shared_functions.call_done(call, self._calls, self._sessions)

    def _feed(self, event: events.Event) -> None:
        now = time.monotonic()
        self._carry_out(self.table.handle(event, now))
        while self._resized:
            call = self._resized.popleft()
            observed = events.SizeObserved(call.number, call.item_bytes)
            self._carry_out(self.table.handle(observed, now))
        deadline = self.table.next_deadline()
        if deadline is not None:
            self._timer.set(deadline)

    def _carry_out(self, steps: Iterable[events.Command]) -> None:
        failure: BaseException | None = None
        for step in steps:
            try:
                self._handlers[type(step)](step)
            # an error must not keep the other commands from being carried out
            except BaseException as error:
                failure = error
        if failure is not None:
            raise failure

    def _tick(self) -> None:
        with self.lock:
            self._timer.expired()
            self._feed(events.Tick())

    def _dispatch(self, step: events.Dispatch) -> None:
        session, call = self._sessions[step.worker], self._calls[step.call]
        try:
            if call.on_dispatch is not None:
                call.on_dispatch(step.start, step.stop)
            size = session.send_entry(call, step)
            call.sent = session, step.entry
        except BaseException:
            # the worker waits for an entry that will not come; after it has reconnected both sides agree
            session.disconnect()
            raise
        if self.tracer is not None:
            self.tracer.dispatched(session.ident, step, call, size)
        if not call.item_bytes / _SIZE_CHANGE <= size <= call.item_bytes * _SIZE_CHANGE:
            call.item_bytes = size
            self._resized.append(call)

    def _revoke(self, step: events.Revoke) -> None:
        self._sessions[step.worker].revoke(step.entry)

    def _accept(self, step: events.Accept) -> None:
        call, received = self._calls.get(step.call), self._received
        if call is None or received is None:
            return
        values, errors = received.of(step.start, step.stop)
        if errors:
            self._failed(call, errors)
        call.forget(step.start, step.stop)
        call.sink.accept(step.start, values, errors)

    def _failed(self, call: Call, errors: Mapping[int, BaseException | None]) -> None:
        if self._keeper is not None:
            for index, error in errors.items():
                if error is not None:
                    self._keeper.keep(call, index, error)
        self.mishaps.failed(call.name, errors, self._reporter)
        if self.tracer is not None:
            self.tracer.failed(call, errors)

    def _abandon(self, step: events.Abandon) -> None:
        self._lost_counts[1] += step.stop - step.start
        call = self._calls.get(step.call)
        if call is None:
            return
        for index in range(step.start, step.stop):
            error = call.crash_error(index, step.attempts)
            self._failed(call, {index: error})
            call.sink.fail(index, index + 1, error)
        call.forget(step.start, step.stop)

    def _withdrawn(self, step: events.Withdraw) -> None:
        call = self._calls[step.call]
        call.sink.fail(step.start, step.stop, _cancelled())
        call.forget(step.start, step.stop)

    def _requeued(self, step: events.Requeue) -> None:
        self._lost_counts[0] += step.stop - step.start
        self.mishaps.retried += step.stop - step.start

    def _retire(self, step: events.Retire) -> None:
        session = self._sessions[step.worker]
        session.retire()
        self._observer.worker_retired(session.ident)

    def _call_done(self, step: events.CallDone) -> None:
        call = self._calls.pop(step.call, None)
        if call is not None:
            self._ended_items += call.count
            if self.tracer is not None:
                self.tracer.ended(call)
            call.sink.done()
            self._release(call)
            self._drained.notify_all()
