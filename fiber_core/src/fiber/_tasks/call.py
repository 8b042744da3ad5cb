"""One map, apply or imap in the owner: its pickled function, its items and the sink of its results.

Which of its items wait or run is a :class:`fiber._tasks.pending.state.CallState`.
"""

from __future__ import annotations

import pickle
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fiber._tasks import protocol
from fiber._tasks.protocol import Mode
from fiber._tasks.shared_payload import SHARE_THRESHOLD
from fiber._wire import codec, frames
from fiber.exceptions import WorkerCrashedError
from fiber.model.job import Attempt

if TYPE_CHECKING:
    from fiber._tasks.dispatcher import Session
    from fiber._tasks.shared_payload import RepeatedBuffers, SharedPayload

#: exceptions that pickling user data may raise; SystemExit and GeneratorExit are included, since a
#: ``__reduce__`` that raises them must not end a thread of Fiber's
_OF_AN_ITEM = (Exception, SystemExit, GeneratorExit)
#: callables that multiprocessing pickles by name, or not at all
_STATELESS = (types.FunctionType, type)


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
