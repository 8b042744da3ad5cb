"""Both ends of a pool without sockets: peers, links, observers and sinks that note what happens."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from fiber._base.threads import CallbackThread, Timer
from fiber._tasks import protocol
from fiber._tasks.dispatcher import Dispatcher
from fiber._tasks.protocol import Mode, Outcomes, Tasks, pack_done
from fiber._wire import codec, frames
from fiber._wire.frames import Kind, Message
from fiber.exceptions import BackendUnavailableError, PeerLostError
from fiber.model import JobState, JobStatus, Reason, ReasonKind

TARGET = 7
#: how long a test waits for what must come; never how long anything takes
PATIENCE = 60.0


def message(kind: Kind, segments: Sequence[frames.Buffer] = (), number: int = 0) -> Message:
    """A message as it arrives."""
    return Message(kind, TARGET, number, memoryview(frames.joined(segments)))


def outcomes_of(values: Sequence[Any]) -> Outcomes:
    """Outcomes of items that have returned these values; an exception is that of an item which failed."""
    outcomes = Outcomes()
    for value in values:
        if isinstance(value, Exception):
            outcomes.fail(value)
        else:
            outcomes.add(value)
    return outcomes


class FakePeer:
    """Owner side of a worker's connection."""

    def __init__(self, ident: str) -> None:
        self.ident = ident
        self.state: dict[int, object] = {}
        self.sent: list[Message] = []
        self.closed = False
        self.is_same_host = False

    def send(
        self,
        kind: Kind,
        target: int,
        number: int,
        segments: Sequence[frames.Buffer] = (),
        *,
        more: bool = False,
    ) -> None:
        assert target == TARGET
        self.sent.append(message(kind, segments, number))

    def close(self) -> None:
        self.closed = True

    def of_kind(self, kind: Kind) -> list[Message]:
        """The messages of one kind."""
        return [sent for sent in self.sent if sent.kind is kind]

    def tasks(self) -> list[tuple[Tasks, Any]]:
        """The entries that were sent, with their items."""
        bodies: list[memoryview] = []
        for sent in self.of_kind(Kind.TASKS):
            bodies += [sent.body] if sent.id else [body for _, body in protocol.split(sent.body)]
        heads = [protocol.read_tasks(body) for body in bodies]
        return [(head, _items(head, codec.loads(body))) for head, body in heads]


def _items(head: Tasks, items: Any) -> Any:
    if head.mode & Mode.SINGLY:
        return [codec.loads(memoryview(item)) for item in items]
    return items


class FakeReactor:
    """Timers that a test lets go off: all of them, or those due by a clock that it advances."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.timers: list[Timer] = []
        self.is_current = False

    def call_soon(self, action: Callable[[], Any]) -> None:
        action()

    def call_later(self, delay: float, action: Callable[[], Any]) -> Timer:
        timer = Timer(self.now + delay, action)
        self.timers.append(timer)
        return timer

    def go_off(self) -> None:
        """Let every timer go off now."""
        self._run(list(self.timers))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self._run([timer for timer in self.timers if timer.when <= self.now])

    def _run(self, due: Sequence[Timer]) -> None:
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            action, timer.callback = timer.callback, None
            if action is not None:
                action()


class OutOfBand(bytearray):
    """Is pickled with its content out of band, as arrays are."""

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return memoryview, (pickle.PickleBuffer(self),)


class Tied:
    """Is held alive by what carries it, until that is released."""

    #: how many are
    held = 0

    def __reduce__(self) -> tuple[Any, ...]:
        Tied.held += 1
        codec.envelope().on_release(self._let_go)
        return int, ()

    def _let_go(self) -> None:
        Tied.held -= 1


class FakePayload:
    """A payload in memory of the test."""

    def __init__(self, locator: bytes, content: bytes) -> None:
        self.locator = locator
        self.size = len(content)
        self.closed = False
        self._content = content

    def view(self) -> memoryview:
        return memoryview(self._content)

    def private(self) -> memoryview:
        return memoryview(bytearray(self._content))

    def close(self) -> None:
        self.closed = True


class FakePayloadStore:
    """Store that several ends of a test share; without room where ``room`` is False."""

    def __init__(self) -> None:
        self.payloads: list[FakePayload] = []
        self.room = True

    def write(self, segments: Sequence[frames.Buffer]) -> FakePayload | None:
        if not self.room:
            return None
        self.payloads.append(FakePayload(b"place %d" % len(self.payloads), frames.joined(segments)))
        return self.payloads[-1]

    def find(self, locator: bytes) -> FakePayload | None:
        return next(
            (one for one in self.payloads if one.locator == locator and not one.closed), None
        )


def ended(code: int = 0) -> JobStatus:
    """The status of a job that has ended by itself."""
    state = JobState.FAILED if code else JobState.SUCCEEDED
    return JobStatus(state=state, reason=Reason(ReasonKind.EXIT, code), exit_code=code)


RUNNING = JobStatus(state=JobState.RUNNING)
STOPPED = JobStatus(state=JobState.SUSPENDED, reason=Reason(ReasonKind.SIGNAL, 19))
LEFT = ended()
KILLED = JobStatus(
    state=JobState.FAILED, exit_code=-9, reason=Reason(ReasonKind.SIGNAL, 9), message="killed"
)


class FakeJob:
    """A job of workers that ends when a test says so."""

    host, failure = "here", ""

    def __init__(
        self, ident: str, processes: int, on_status: Callable[[FakeJob, JobStatus], None]
    ) -> None:
        self.ident, self.processes, self.name = ident, processes, f"worker {ident}"
        self._on_status = on_status
        self._exit_code: int | None = None
        self.kills = 0
        #: how often its platform is not reached when it is to be killed
        self.unreachable = 0

    def poll(self) -> int | None:
        return self._exit_code

    def report(self, status: JobStatus) -> None:
        self._exit_code = status.exit_code
        self._on_status(self, status)

    def kill(self) -> None:
        self.signal(None, signal.SIGKILL)

    def signal(self, index: int | None, signum: int) -> None:
        self.kills += 1
        if self.unreachable:
            self.unreachable -= 1
            raise BackendUnavailableError("nobody answers")
        self.report(KILLED)


class FakeObserver:
    """Notes the events of workers."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.ended: set[str] = set()
        self.events: list[tuple[str, str]] = []
        self.errors: list[BaseException] = []

    def accepts(self, ident: str) -> bool:
        return ident in self.known

    def has_ended(self, ident: str) -> bool:
        return ident in self.ended

    def worker_ready(self, ident: str) -> None:
        self.events.append(("up", ident))

    def initializer_failed(self, ident: str, error: BaseException) -> None:
        self.events.append(("broken", ident))
        self.errors.append(error)

    def worker_disconnected(self, ident: str) -> None:
        self.events.append(("cut", ident))

    def worker_retired(self, ident: str) -> None:
        self.events.append(("retired", ident))


class Sink:
    """Keeps outcomes by index; an item's outcome must come once."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Any] = {}
        self.is_done = False
        self.error: BaseException | None = None

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        for index, value in enumerate(values, start):
            self._put(index, errors.get(index, value))

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        for index in range(start, stop):
            self._put(index, error)

    def done(self) -> None:
        self.is_done = True

    def broken(self, error: BaseException) -> None:
        self.error = error

    def _put(self, index: int, outcome: Any) -> None:
        assert index not in self.outcomes, f"item {index} has two outcomes"
        assert not self.is_done
        self.outcomes[index] = outcome


class Master:
    """A dispatcher with workers played by a test."""

    def __init__(self, *workers: str, store: FakePayloadStore | None = None) -> None:
        self.reactor = FakeReactor()
        self.observer = FakeObserver(*workers)
        self.dispatcher = Dispatcher(
            TARGET,
            cast("Any", self.reactor),
            max_attempts=3,
            maxtasksperchild=None,
            observer=self.observer,
            store=store,
        )
        self.peers = {name: self.connect(name) for name in workers}

    def connect(self, ident: str) -> Any:
        """A connection of a worker."""
        peer: Any = FakePeer(ident)
        return peer

    def call(
        self, function: Any, items: list[Any] | None, *, mode: Mode = Mode.MAP, **options: Any
    ) -> tuple[Any, Sink]:
        """Add a call; its sink."""
        sink = Sink()
        call = self.dispatcher.prepare(function, mode, sink, items=items, **options)
        self.dispatcher.add(call)
        return call, sink

    def begin(self, function: Any, items: list[Any] | None, **options: Any) -> tuple[Any, Sink]:
        """As :meth:`call`, for which the first worker asks."""
        added = self.call(function, items, **options)
        self.ask(next(iter(self.peers.values())))
        return added

    def ask(self, peer: Any, credits_: int = 1) -> None:
        """A worker asks for work."""
        self.send(peer, Kind.ASK, [protocol.ask(credits_)])

    def send(
        self, peer: Any, kind: Kind, segments: Sequence[frames.Buffer] = (), *, number: int = 0
    ) -> None:
        """Send a message as a worker."""
        self.dispatcher.on_message(peer, message(kind, segments, number))

    def finish(self, peer: Any, head: Tasks, values: Sequence[Any], *, credits_: int = 1) -> None:
        """A worker is done with an entry."""
        done = pack_done(head.entry, head.start, head.stop, 0.001, credits_)
        self.send(peer, Kind.DONE, [done, *outcomes_of(values).encode()])

    def serve(self, name: str, function: Callable[[Any], Any]) -> int:
        """A worker asks for work and does all that it gets; how many entries it has had."""
        self.ask(self.peers[name])
        return self.work(self.peers[name], function)

    def work(self, peer: Any, function: Callable[[Any], Any], *, seen: int = 0) -> int:
        """A worker does all it was sent and gets from then on; how many entries it has had."""
        while True:
            entries = peer.tasks()
            if len(entries) == seen:
                return seen
            head, items = entries[seen]
            self.finish(peer, head, [function(item) for item in items])
            seen += 1


class PlayedGroups:
    """Stands in for worker groups: one dispatcher, with a worker played by the test."""

    def __init__(self) -> None:
        self.master = Master("a")
        self.peer = self.master.peers["a"]
        self.callbacks = CallbackThread("test-callbacks")

    def prepare(
        self,
        func: Any,
        mode: Mode,
        sink: Any,
        items: list[Any] | None,
        *,
        one_by_one: bool,
        on_dispatch: Any,
    ) -> tuple[Any, Any]:
        dispatcher = self.master.dispatcher
        call = dispatcher.prepare(
            func, mode, sink, items=items, one_by_one=one_by_one, on_dispatch=on_dispatch
        )
        return SimpleNamespace(dispatcher=dispatcher), call

    def work(self) -> None:
        """A worker does all there is: each task's result is its first argument."""
        self.master.ask(self.peer)
        self.master.work(self.peer, lambda item: item[0])


class FakeLink:
    """Worker side of a worker's connection; closed when its test is over."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe()
        self.end_fd, self._never = os.pipe()
        self.fds = (self.fd, self.end_fd)
        self.buffered = self.is_drained = False
        self.lost = False
        self.is_intact = True
        self.sent: queue.Queue[Message] = queue.Queue()
        self._coming: list[Message] = []
        self._changed = threading.Condition()

    def send(
        self,
        kind: Kind,
        target: int = 0,
        number: int = 0,
        segments: Sequence[frames.Buffer] = (),
        *,
        checks: bool = False,
    ) -> None:
        assert target == TARGET
        if self.lost or (checks and not self.is_intact):
            raise PeerLostError("gone")
        self.sent.put(message(kind, segments, number))

    def receive(self, timeout: float | None = None, *, checks: bool = False) -> Message | None:
        if checks and not self.is_intact:
            raise PeerLostError("gone")
        with self._changed:
            if timeout is None:
                assert self._changed.wait_for(lambda: self._coming or self.lost, PATIENCE)
            if self._coming:
                os.read(self.fd, 1)
                return self._coming.pop(0)
            if self.lost:
                raise PeerLostError("gone")
            return None

    def close(self) -> None:
        self.lose()

    # -- what the test does as the pool

    def deliver(self, kind: Kind, segments: Sequence[frames.Buffer] = (), number: int = 0) -> None:
        """Send a message as the pool."""
        with self._changed:
            self._coming.append(message(kind, segments, number))
            os.write(self._end, b"x")
            self._changed.notify_all()

    def lose(self) -> None:
        """The connection ends."""
        with self._changed:
            self.lost = True
            self._changed.notify_all()

    def next(self, kind: Kind) -> Message:
        """The worker's next message, which must be of this kind."""
        found = self.sent.get(timeout=PATIENCE)
        assert found.kind is kind, f"{found.kind.name} came, {kind.name} was expected"
        return found

    def release(self) -> None:
        """Close the descriptors."""
        for fd in (self.fd, self._end, self.end_fd, self._never):
            os.close(fd)
