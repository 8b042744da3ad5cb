"""One map, apply or imap in the owner: its pickled function, its items and the sink of its results.

:class:`Session` sends entries and functions of calls to one worker and remembers which were sent;
:class:`SharedFunctions` has those functions in shared memory that are large. Which items of a call wait
or run is a :class:`fiber._tasks.pending.state.CallState`.
"""

from __future__ import annotations

import pickle
import threading
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fiber._tasks import protocol
from fiber._tasks.protocol import DIGEST, Mode, Tasks
from fiber._tasks.shared_payload import CACHE_BYTES, SHARE_THRESHOLD, RepeatedBuffers
from fiber._wire import codec, frames
from fiber._wire.frames import Kind
from fiber.exceptions import TerminatedError, WorkerCrashedError
from fiber.model.job import Attempt

if TYPE_CHECKING:
    from fiber._tasks.pending.events import Dispatch
    from fiber._tasks.pending.state import HeldView
    from fiber._tasks.shared_payload import PayloadStore, SharedPayload
    from fiber._wire.endpoint import Peer
    from fiber._wire.frames import Message
    from fiber._wire.reading import Action, Reading

#: exceptions that pickling user data may raise; SystemExit and GeneratorExit are included, since a
#: ``__reduce__`` that raises them must not end a thread of Fiber's
_OF_AN_ITEM = (Exception, SystemExit, GeneratorExit)
#: callables that multiprocessing pickles by name, or not at all
_STATELESS = (types.FunctionType, type)
#: digests that are remembered; with more, all are dropped and functions are sent anew
_KNOWN = 4096


class Sink(Protocol):
    """Receiver of a call's outcomes; called under the dispatcher's lock, so it must not wait."""

    def accept(
        self, start: int, values: Sequence[Any], errors: Mapping[int, BaseException | None]
    ) -> None:
        """Take the outcomes of the items from ``start`` on.

        ``errors`` has the failed ones by index; None where an error of the same unit before it
        kept the item from running.
        """

    def fail(self, start: int, stop: int, error: BaseException) -> None:
        """The items were given up."""

    def done(self) -> None:
        """Every item has its outcome."""

    def broken(self, error: BaseException) -> None:
        """The pool cannot go on; no more outcomes will come."""


class Unsendable:
    """Stand-in for an item that cannot be pickled; its error is the item's outcome."""

    def __init__(self, error: BaseException) -> None:
        # how pickling came to it tells nothing, but for a ``__reduce__`` of the user's
        error.with_traceback(codec.from_users_frames(error.__traceback__))
        #: wrapper that pickles to the error with its traceback
        self.error = codec.with_traceback(error)

    def pickled(self) -> bytearray:
        """The pickled stand-in."""
        return bytearray().join(codec.dumps(self))


class _ItemsEnvelope:
    """Envelope of some items of a call that grows; the objects they refer to are released with it."""

    refers = False

    def on_release(self, action: Any) -> None:
        """Note that there is an action; it is called when this object is collected."""
        self.refers = True


def name_of(function: Any) -> str:
    """Name of a function for people."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        # a partial has its function's
        inner = getattr(function, "func", function)
        name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return str(name)


def _has_state(function: Any) -> bool:
    """True where a task may change what the next one finds in the function, unless that is a copy."""
    if isinstance(function, types.BuiltinFunctionType):
        # methods of objects are of this type, too, as that of random.Random()
        return not isinstance(function.__self__, (types.ModuleType, type, type(None)))
    return not isinstance(function, _STATELESS)


class Call:
    """One call as the dispatcher keeps it until it is done."""

    def __init__(
        self,
        number: int,
        function: Any,
        mode: Mode,
        sink: Sink,
        *,
        items: Sequence[Any] | None,
        chunksize: int | None,
        retry: bool,
    ) -> None:
        self.number = number
        #: name of the function for people
        self.name = name_of(function)
        self.mode = mode
        # the mode that its items are sent in: an operation on a member of an enum is not for each entry
        self._sent_mode = mode
        self.sink = sink
        self.chunksize = chunksize
        self.retry = retry
        #: the caller's context of OpenTelemetry; empty where nobody wants spans
        self.context = b""
        #: called with start and stop of the items that are sent to a worker, each time they are
        self.on_dispatch: Callable[[int, int], None] | None = None
        #: True for tasks given one by one, see :class:`~fiber._tasks.pending.events.CallAdded`
        self.one_by_one = False
        #: actions to run when the call is done: they release objects that its pickles refer to
        self.releases: list[Any] = []
        try:
            with codec.pickling_into(self):
                #: segments of the pickled function
                self.function: list[frames.Buffer] = codec.dumps(function)
        except BaseException:
            self.release()
            raise
        if chunksize is not None and _has_state(function):
            size = sum(memoryview(segment).nbytes for segment in self.function)
            if size < SHARE_THRESHOLD:
                self._sent_mode = mode | Mode.COPIED
        #: the function in shared memory, where it is there
        self.shared_function: SharedPayload | None = None
        #: identifies the function in messages
        self.digest = protocol.digest(self.function)
        #: mean size of a pickled item; 0 until one was pickled
        self.item_bytes = 0.0
        self._all = items
        self._some: dict[int, Any] = {}
        # by item of a call that grows; it may be pickled more than once
        self._envelopes: defaultdict[int, list[_ItemsEnvelope]] = defaultdict(list)
        #: items known so far
        self.count = 0 if items is None else len(items)
        #: True once no more items are added
        self.closed = False
        #: who was sent items last, and in which entry
        self.sent: tuple[Session, int] | None = None
        #: its large arguments in shared memory; None where there is no store
        self.repeated_buffers: RepeatedBuffers | None = None

    @property
    def kind(self) -> str:
        """Key by which calls of the same function share their measured durations."""
        return self.digest.hex()

    @property
    def grows(self) -> bool:
        """True where items are still added."""
        return self._all is None and not self.closed

    def extend(self, items: Iterable[Any]) -> int:
        """Add items to a call that grows; returns how many."""
        before = self.count
        for item in items:
            self._some[self.count] = item
            self.count += 1
        return self.count - before

    def item(self, index: int) -> Any:
        """An item that has no outcome yet."""
        return self._slice(index, index + 1)[0]

    def forget(self, start: int, stop: int) -> None:
        """Drop items that have their outcomes."""
        if self._all is None:
            for index in range(start, stop):
                self._some.pop(index, None)
                self._envelopes.pop(index, None)

    def encode(
        self, start: int, stop: int, *, shares_memory: bool = False
    ) -> tuple[int, list[frames.Buffer]]:
        """Pickle the items; returns the mode to send them in and the segments.

        Args:
            start: first of the items.
            stop: behind the last of them.
            shares_memory: True for a worker that may map memory of this process.
        """
        items = self._slice(start, stop)
        envelope: Call | _ItemsEnvelope = self if self._all is not None else _ItemsEnvelope()
        # not as codec.pickling_into(), which takes as long as pickling a small item
        before = codec.set_envelope(envelope)
        try:
            locate = (
                self.repeated_buffers.locate
                if shares_memory and self.repeated_buffers is not None
                else None
            )
            units = [items] if len(items) == 1 else self._units(items, start)
            apart, segments = protocol.encode_arguments(units, locate)
            if envelope is not self:
                self._keep(envelope, start, stop)
            mode = self._sent_mode
            return mode | Mode.APART if apart else mode, segments
        except _OF_AN_ITEM:
            # one item is to blame: each is pickled by itself, and its error has no other one for its context
            pass
        finally:
            codec.set_envelope(before)
        return self._encode_singly(items, start)

    def _units(self, items: list[Any], start: int) -> list[list[Any]]:
        """The items by unit; tasks of one unit share what its items share."""
        chunk = self.chunksize or 1
        first = chunk - start % chunk
        if len(items) <= first or protocol.are_constant(items):
            return [items]
        return [items[:first], *(items[at : at + chunk] for at in range(first, len(items), chunk))]

    def encode_singly(self, start: int, stop: int) -> tuple[int, list[frames.Buffer]]:
        """As :meth:`encode`, each item pickled by itself, for a worker that could not unpickle them."""
        return self._encode_singly(self._slice(start, stop), start)

    def _encode_singly(self, items: Sequence[Any], start: int) -> tuple[int, list[frames.Buffer]]:
        pickles = [
            pickle.PickleBuffer(self._pickled(item, index))
            for index, item in enumerate(items, start)
        ]
        return self._sent_mode | Mode.SINGLY, codec.dumps(pickles)

    def _envelope(self) -> Call | _ItemsEnvelope:
        """Envelope of items: the call, or one that goes with the items where others follow."""
        return self if self._all is not None else _ItemsEnvelope()

    def _keep(self, envelope: Call | _ItemsEnvelope, start: int, stop: int) -> None:
        if isinstance(envelope, _ItemsEnvelope) and envelope.refers:
            for index in range(start, stop):
                self._envelopes[index].append(envelope)

    def _pickled(self, item: Any, index: int) -> bytearray:
        try:
            envelope = self._envelope()
            with codec.pickling_into(envelope):
                # a bytearray, since arrays that are unpickled from bytes are read-only
                pickled = bytearray().join(codec.dumps(item))
        except _OF_AN_ITEM as error:
            return Unsendable(error).pickled()
        self._keep(envelope, index, index + 1)
        return pickled

    def crash_error(self, index: int, attempts: Sequence[Attempt]) -> WorkerCrashedError:
        """The error of an item that was given up."""
        times = f"{len(attempts)} times" if len(attempts) != 1 else "once"
        text = f"task {index} was given up: its worker died {times} while it ran alone"
        if not self.retry:
            text = f"task {index} may have begun on a worker that died, and must not run twice"
        lines = [text, *(f"  {number}. {one}" for number, one in enumerate(attempts, 1))]
        return WorkerCrashedError("\n".join(lines), attempts=attempts)

    def on_release(self, action: Any) -> None:
        """Have ``action`` called when the call is done."""
        self.releases.append(action)

    def release(self) -> bool:
        """Run the actions of :meth:`on_release`; True where there were any."""
        releases, self.releases = self.releases, []
        for action in releases:
            action()
        return bool(releases)

    def _slice(self, start: int, stop: int) -> list[Any]:
        if self._all is not None:
            return list(self._all[start:stop])
        if stop - start == 1:
            return [self._some[start]]
        return [self._some[index] for index in range(start, stop)]


class Session:
    """Sends to one worker; a worker that reconnects gets a new session.

    Args:
        name: its name in the pending table, never used twice.
        peer: its connection.
        target: number of the pool in messages.
        look: what a thread that waits for an entry does with a message.
    """

    def __init__(
        self,
        name: str,
        peer: Peer,
        target: int,
        look: Callable[[Session, int, Message], Action | None],
    ) -> None:
        self.name = name
        #: identity of the worker's process within the run
        self.ident = peer.ident
        #: True once it asked for work, so its initializer has returned
        self.is_up = False
        self._peer = peer
        self._look = look
        self._target = target
        self._sent: set[bytes] = set()
        # bodies of entries that are sent with the next one
        self._together: list[list[frames.Buffer]] = []
        #: bytes of its resident memory as it told last, and when it was asked
        self.memory: int | None = None
        self._asked: float | None = None
        #: True where its process may map memory of this one
        self.shares_memory = peer.is_same_host

    def send_entry(self, call: Call, step: Dispatch) -> float:
        """Send an entry, or keep it for the next one; returns the mean size of an item.

        Its function is sent before it, where that is new.
        """
        mode, segments = call.encode(step.start, step.stop, shares_memory=self.shares_memory)
        if call.digest not in self._sent:
            # the worker is woken once for both
            self.send_function(call.digest, call, more=True)
        start, stop = step.start, step.stop
        fields = (step.entry, step.call, start, stop, step.chunk, mode, call.digest, step.more)
        context = call.context
        head = Tasks(*fields, context).encode() if context else protocol.pack_tasks(*fields)
        size = sum(map(len, segments)) / (stop - start)
        body, number = [head, *segments], step.entry
        if step.more or self._together:
            self._together.append(body)
            if step.more:
                return size
            body, number = protocol.together(self._together), 0
            self._together.clear()
        self._peer.send(Kind.TASKS, self._target, number, body)
        return size

    def send_entry_singly(self, held: HeldView, call: Call | None) -> None:
        """Send the items of an entry each pickled by itself; with call=None, stand-ins that fail."""
        start, stop = held.start, held.stop
        if call is None:
            none = Unsendable(TerminatedError("the call of this task is over")).pickled()
            head = Tasks(held.entry, held.call, start, stop, 1, Mode.SINGLY, bytes(DIGEST))
            segments = codec.dumps([none] * (stop - start))
        else:
            mode, segments = call.encode_singly(start, stop)
            chunk = call.chunksize or 1
            # where the next entry went with the one that it stands in for, the worker knows
            head = Tasks(
                held.entry, held.call, start, stop, chunk, mode, call.digest, context=call.context
            )
        self._peer.send(Kind.TASKS, self._target, held.entry, [head.encode(), *segments])

    def send_function(self, digest: bytes, call: Call | None, *, more: bool = False) -> None:
        """Send a pickled function, with the next message where ``more``; with call=None tell the worker to forget it."""
        if call is None:
            self._sent.discard(digest)
        else:
            if len(self._sent) >= _KNOWN:
                self._sent.clear()
            self._sent.add(digest)
        if call is not None and call.shared_function is not None and self.shares_memory:
            body = protocol.function(digest, [call.shared_function.locator])
            self._peer.send(Kind.FUNCTION, self._target, protocol.SHARED, body, more=more)
            return
        body = protocol.function(digest, call.function if call is not None else ())
        self._peer.send(Kind.FUNCTION, self._target, 0, body, more=more)

    def forget(self, digest: bytes) -> None:
        """Tell the worker to forget a function, where it was sent."""
        if digest in self._sent:
            self.send_function(digest, None)

    def revoke(self, entry: int) -> None:
        """Send REVOKE: the worker is to hand back what it has not begun of an entry."""
        self._peer.send(Kind.REVOKE, self._target, 0, [protocol.entry(entry)])

    def ask_memory(self, now: float, interval: float) -> None:
        """Send LOOK, unless that was done less than ``interval`` seconds ago: the worker tells of itself."""
        if self._asked is None or now - self._asked >= interval:
            self._asked = now
            self._peer.send(Kind.LOOK, self._target, 0)

    def retire(self) -> None:
        """Send RETIRE: the worker is to exit."""
        self._peer.send(Kind.RETIRE, self._target, 0)

    @property
    def reading(self) -> Reading | None:
        """What reads the worker's messages, where threads that wait take part in it."""
        return self._peer.reading

    def look(self, entry: int, data: frames.Buffer) -> Action | None:
        """What a thread that waits for an entry does with a frame, see :class:`~fiber._wire.reading.Reading`."""
        message = self._peer.look(data, self._target)
        return None if message is None else self._look(self, entry, message)

    def disconnect(self) -> None:
        """Close the connection; the worker dials again, and others run what it held."""
        self._peer.close()


class SharedFunctions:
    """Large functions of one pool in shared memory; some are kept for later calls. Thread-safe.

    Args:
        store: writes them; None for no sharing.
        kept: bytes of functions without a call that are kept.
    """

    def __init__(self, store: PayloadStore | None, kept: int = CACHE_BYTES) -> None:
        self._store = store
        self._kept = kept
        self._lock = threading.Lock()
        self._used: dict[bytes, tuple[SharedPayload, int]] = {}
        self._idle: OrderedDict[bytes, SharedPayload] = OrderedDict()
        self._closed = False

    def share(self, call: Call, sessions: Mapping[str, Session]) -> None:
        """Share a call's function if it is large and a worker may map it; prepare for its arguments.

        Args:
            call: the call; its function is the shared one from now on.
            sessions: the workers so far.
        """
        if self._store is None:
            return
        if call.count > 1:
            call.repeated_buffers = RepeatedBuffers(self._store)
        size = sum(map(len, call.function))
        if size < SHARE_THRESHOLD:
            return
        known = list(sessions.values())
        if known and not any(session.shares_memory for session in known):
            return
        with self._lock:
            if self._closed:
                return
            payload, calls = self._used.get(call.digest, (None, 0))
            payload = (
                payload or self._idle.pop(call.digest, None) or self._store.write(call.function)
            )
            if payload is not None:
                self._used[call.digest] = payload, calls + 1
                call.shared_function, call.function = payload, [payload.view()]

    def call_done(
        self, call: Call, calls: Mapping[int, Call], sessions: Mapping[str, Session]
    ) -> None:
        """Release the memory of a call that is done; workers are told to forget dropped functions.

        Args:
            call: the call.
            calls: the calls that are left.
            sessions: the workers.
        """
        if call.repeated_buffers is not None:
            call.repeated_buffers.close()
        # objects that the function refers to are held by each worker that has it
        refers = call.release()
        if call.shared_function is None and not refers:
            return
        gone = self._release(call, keep=not refers)
        if refers:
            gone.append(call.digest)
        for digest in set(gone):
            if all(other.digest != digest for other in calls.values()):
                for session in sessions.values():
                    session.forget(digest)

    def _release(self, call: Call, *, keep: bool) -> list[bytes]:
        """Take the function from a call; returns the digests of functions that were dropped."""
        with self._lock:
            payload, call.shared_function = call.shared_function, None
            if payload is None:
                return []
            found, count = self._used.pop(call.digest)
            if count > 1:
                self._used[call.digest] = found, count - 1
                return []
            if self._closed or not keep:
                found.close()
                return [call.digest]
            self._idle[call.digest] = found
            gone = []
            while self._is_over():
                digest, idle = self._idle.popitem(last=False)
                idle.close()
                gone.append(digest)
            return gone

    def _is_over(self) -> bool:
        return len(self._idle) > 1 and sum(one.size for one in self._idle.values()) > self._kept

    def close(self) -> None:
        """Release everything; idempotent."""
        with self._lock:
            self._closed = True
            payloads = [*self._idle.values(), *(one for one, _ in self._used.values())]
            self._idle.clear()
            for one in payloads:
                one.close()
