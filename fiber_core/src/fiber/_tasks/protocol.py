"""Bodies of the messages between a pool and its workers.

======== ========= ==================================================================
kind     direction body
======== ========= ==================================================================
ASK      up        ``Ask``: the worker can take so many more entries
TASKS    down      ``Tasks`` and the arguments of its items, pickled as one list, or as
                   below where the mode is ``APART``; between the two
                   the caller's context of OpenTelemetry, where the mode is ``CONTEXT``;
                   in a message of number 0, else that of the entry, several of these, each behind
                   its size and filled up to a multiple of 16 bytes
DONE     up        ``Done`` and the outcomes of its items, see below; the number of the message is how
                   many more ``Done`` of other entries follow the first, whose outcomes are behind its own
REVOKE   down      ``Entry``: the worker hands back what it has not begun of it
KEPT     up        ``Kept``: the items from ``stop`` on are handed back
FUNCTION down      digest and the pickled function that ``Tasks`` name by it; in a message of
                   number ``SHARED`` digest and the locator of the function in shared memory
                   of this host; the digest alone to have it dropped: no call needs it
UNREAD   up        ``Entry``: its items could not be unpickled, send each pickled by itself
MISSING  up        digest of a function that the worker has not, or no longer; in a message of
                   number ``SHARED`` from a worker that cannot map shared memory
RETIRE   down      empty: the worker is to exit
LOOK     down      empty: the worker is to tell of itself, since somebody looks
SEEN     up        ``Seen``: bytes of its resident memory; 0 where it cannot tell
BROKEN   up        the pickled exception of a failed initializer
======== ========= ==================================================================

**Arguments.** One pickle of many items would unpickle an object that several of them hold as one, and a
task that changes it would change it for the next: ``multiprocessing`` does so within a chunk, and nowhere
else. So each unit has a pickle of its own, unless its items hold nothing mutable.

Layout of the body, little-endian: ``I`` count of references to out-of-band buffers, ``I`` each, as
many zeros as bring it to a multiple of 16 bytes, then an object body (:mod:`fiber._wire.frames`)
whose pickle is that of each unit, one behind the other, and whose buffers are there once each. The
references are the buffers in the order in which the pickles need them; one with ``LOCATOR`` added
refers to a buffer that has a locator in place of the bytes (:mod:`fiber._tasks.shared_payload`).

The same holds for the object of a bound method, or what a partial has, where the program says what a chunk
is: the worker unpickles it anew for each unit (mode ``COPIED``).

**Outcomes.** Results of short tasks travel together, and arrive as if each had been sent alone. A result
that its function goes on changing (a buffer that an environment returns again and again) is pickled
before the next task runs. A result that cannot be unpickled fails alone. Both cost nothing where results
are numbers, strings or tuples of them, which cannot change and can always be unpickled.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import pickle
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fiber._base import values
from fiber._tasks.shared_payload import SHARE_THRESHOLD
from fiber._wire import codec, frames
from fiber.exceptions import WireError


class Mode(enum.IntFlag):
    """How a function is called with an item."""

    #: ``function(item)``
    MAP = 0
    #: ``function(*item)``
    STARMAP = 1
    #: ``function(*item[0], **item[1])``
    APPLY = 2
    #: a flag: each unit has a copy of the function, since what its tasks change in it is not for others
    COPIED = 16
    #: a flag: the caller's context follows the head, see :attr:`Tasks.context`
    CONTEXT = 32
    #: a flag: each item is pickled by itself, since not all could be pickled or read together
    SINGLY = 64
    #: a flag: each unit has a pickle of its own, see :mod:`fiber._tasks.call`
    APART = 128


# both multiples of 16 bytes, so that the arrays behind them keep their alignment
_TASKS = struct.Struct("<QQQQQB16s?6x")
_DONE = struct.Struct("<QQQdB15x")
_KEPT = struct.Struct("<QQ")
_SEEN = struct.Struct("<Q")
_ENTRY = struct.Struct("<Q")
_ASK = struct.Struct("<B")
# the size of one of several entries
_PART = struct.Struct("<Q8x")
_CONTEXT = struct.Struct("<H")

#: packs the fields of a :class:`Tasks` without a context, without a call of Python's: for each task
pack_tasks = _TASKS.pack
#: of what follows a head
_TASKS_ALIGNMENT = 16
#: bytes of a digest
DIGEST = 16
#: number of messages about functions in shared memory
SHARED = 1
#: entries that a worker may hold: one running, one behind it
CREDITS = 2


_MODES = frozenset(
    int(how | flag | copied)
    for how in (0, 1, 2)
    for flag in (0, Mode.SINGLY, Mode.APART)
    for copied in (0, Mode.COPIED)
)
_WITH_CONTEXT = int(Mode.CONTEXT)


@values.define
class Tasks:
    """Head of a TASKS body: the index range of one call that is one entry."""

    entry: int
    call: int
    start: int
    stop: int
    chunk: int
    #: a :class:`Mode`; as a number, since an entry is read in a few microseconds
    mode: int
    digest: bytes
    #: True where the next entry goes with it: its outcomes may wait for those, and it gives no credit
    more: bool = False
    #: the caller's context of OpenTelemetry, as JSON of its fields; empty where nobody wants spans
    context: bytes = b""

    def encode(self) -> bytes:
        """As bytes."""
        mode = self.mode | _WITH_CONTEXT if self.context else self.mode
        head = pack_tasks(
            self.entry, self.call, self.start, self.stop, self.chunk, mode, self.digest, self.more
        )
        if not self.context:
            return head
        context = _CONTEXT.pack(len(self.context)) + self.context
        return head + context + bytes(-len(context) % _TASKS_ALIGNMENT)


@values.define
class Done:
    """Head of a DONE body: items [start, stop) of an entry took ``seconds`` in all."""

    entry: int
    start: int
    stop: int
    seconds: float
    credits: int


#: packs the fields of a :class:`Done`, without a call of Python's: for each task
pack_done = _DONE.pack


def digest(segments: Sequence[frames.Buffer]) -> bytes:
    """Digest by which messages name a pickled function: the first 16 bytes of its SHA-256."""
    # processors have instructions for it: half the time of others for a large function
    whole = hashlib.sha256()
    for segment in segments:
        whole.update(segment)
    return whole.digest()[:DIGEST]


def read_tasks(body: memoryview) -> tuple[Tasks, memoryview]:
    """Head and items of a TASKS body."""
    try:
        tasks = Tasks(*_TASKS.unpack_from(body))
    except struct.error as error:
        msg = "a TASKS body is cut short"
        raise WireError(msg) from error
    body = body[_TASKS.size :]
    if tasks.mode & _WITH_CONTEXT:
        body = _read_context(tasks, body)
    if not tasks.start < tasks.stop or not tasks.chunk or tasks.mode not in _MODES:
        msg = f"a TASKS body makes no sense: {tasks}"
        raise WireError(msg)
    return tasks, body


def _read_context(tasks: Tasks, body: memoryview) -> memoryview:
    """Take the context off what follows a head; returns the rest."""
    tasks.mode &= ~_WITH_CONTEXT
    size = _CONTEXT.unpack_from(body)[0] if len(body) >= _CONTEXT.size else 0
    stop = _CONTEXT.size + size
    tasks.context = bytes(body[_CONTEXT.size : stop])
    stop += -stop % _TASKS_ALIGNMENT
    if not size or len(body) < stop:
        msg = "the context of a TASKS body is cut short"
        raise WireError(msg)
    return body[stop:]


def together(bodies: Sequence[Sequence[frames.Buffer]]) -> list[frames.Buffer]:
    """The body of a TASKS message of several entries, of what each would have for its body."""
    segments: list[frames.Buffer] = []
    for body in bodies:
        size = sum(map(len, body))
        segments.append(_PART.pack(size))
        segments += body
        segments.append(bytes(-size % _TASKS_ALIGNMENT))
    return segments


def split(body: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and body of each entry of a TASKS message of several."""
    while body:
        try:
            (size,) = _PART.unpack_from(body)
            part, body = body[_PART.size : _PART.size + size], body[_PART.size + size :]
            (number,) = _ENTRY.unpack_from(part)
        except struct.error as error:
            msg = "a TASKS body of several entries is cut short"
            raise WireError(msg) from error
        body = body[-size % _TASKS_ALIGNMENT :]
        yield number, part


def done(entries: Sequence[tuple[bytes, Outcomes]]) -> list[frames.Buffer]:
    """The body of a DONE message: of each entry the head, and its outcomes."""
    if len(entries) == 1:
        head, outcomes = entries[0]
        return [head, *outcomes.encode()]
    together = Outcomes()
    for _, outcomes in entries:
        together.join(outcomes)
    return [*(head for head, _ in entries), *together.encode()]


def read_done(body: memoryview) -> tuple[Done, memoryview]:
    """Head of a DONE body, and what follows it: the outcomes, or the head of the next entry."""
    try:
        done = Done(*_DONE.unpack_from(body))
    except struct.error as error:
        msg = "a DONE body is cut short"
        raise WireError(msg) from error
    if done.stop < done.start or not done.seconds >= 0 or done.credits > CREDITS:
        msg = f"a DONE body makes no sense: {done}"
        raise WireError(msg)
    return done, body[_DONE.size :]


def read_all_done(number: int, body: memoryview) -> tuple[list[Done], ReceivedOutcomes]:
    """Heads and outcomes of a DONE message with its number: that of entries behind the first one."""
    done, rest = read_done(body)
    if not number:
        return [done], ReceivedOutcomes(rest, done.start, done.stop)
    all_done, count = [done], done.stop - done.start
    for _ in range(number):
        done, rest = read_done(rest)
        all_done.append(done)
        count += done.stop - done.start
    return all_done, ReceivedOutcomes(rest, 0, count)


def kept(entry: int, stop: int) -> bytes:
    """A KEPT body."""
    return _KEPT.pack(entry, stop)


def read_kept(body: memoryview) -> tuple[int, int]:
    """Entry and stop of a KEPT body."""
    if len(body) != _KEPT.size:
        msg = "a KEPT body makes no sense"
        raise WireError(msg)
    entry, stop = _KEPT.unpack(body)
    return entry, stop


def seen(memory: int | None) -> bytes:
    """A SEEN body."""
    return _SEEN.pack(memory or 0)


def read_seen(body: memoryview) -> int | None:
    """Bytes of resident memory of a SEEN body; None where they cannot be told."""
    if len(body) != _SEEN.size:
        msg = "a SEEN body makes no sense"
        raise WireError(msg)
    return int(_SEEN.unpack(body)[0]) or None


def function(name: bytes, pickled: Sequence[frames.Buffer] = ()) -> list[frames.Buffer]:
    """A FUNCTION body; the digest alone tells the worker to forget the function."""
    return [name, *pickled]


def read_function(body: memoryview) -> tuple[bytes, memoryview]:
    """Digest and pickle of a FUNCTION body."""
    if len(body) < DIGEST:
        msg = "a FUNCTION body is cut short"
        raise WireError(msg)
    return bytes(body[:DIGEST]), body[DIGEST:]


def entry(number: int) -> bytes:
    """The body of a REVOKE or UNREAD."""
    return _ENTRY.pack(number)


def read_entry(body: memoryview) -> int:
    """The entry of a REVOKE or UNREAD."""
    if len(body) != _ENTRY.size:
        msg = "the number of an entry makes no sense"
        raise WireError(msg)
    return int(_ENTRY.unpack(body)[0])


def ask(credits_: int) -> bytes:
    """An ASK body."""
    return _ASK.pack(credits_)


def read_ask(body: memoryview) -> int:
    """The credits of an ASK body."""
    if len(body) != _ASK.size or body[0] > CREDITS:
        msg = "an ASK body makes no sense"
        raise WireError(msg)
    return int(body[0])


#: types of results that cannot change, and can be unpickled; and tuples of them
PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})


class Outcomes(list[Any]):
    """Worker side: results of consecutive items, and their errors, until they are sent.

    A list without an ``__init__``, since one is made for each entry: a result of a type of
    :data:`PLAIN` is appended.
    """

    #: size of the results that were pickled by themselves
    packed_bytes = 0
    # errors by position; positions of results that may still change, or that may fail to unpickle;
    # positions of results that were pickled by themselves. Made when there is one
    _errors: dict[int, Any] | None = None
    _mutable: list[int] | None = None
    _packed: list[int] | None = None

    def add(self, value: Any) -> None:
        """The next item has a result."""
        kind = type(value)
        if kind not in PLAIN and not (kind is tuple and PLAIN.issuperset(map(type, value))):
            if self._mutable is None:
                self._mutable = []
            self._mutable.append(len(self))
        self.append(value)

    def fail(self, error: BaseException, count: int = 1) -> None:
        """The next item raised; or that many have this error as their outcome."""
        carried, position = codec.with_traceback(error), len(self)
        self._note_errors(dict.fromkeys(range(position, position + count), carried))
        self.extend([None] * count)

    def skip(self) -> None:
        """The next item did not run, since one of its unit before it raised."""
        self._note_errors({len(self): None})
        self.append(None)

    def pickle_mutable(self) -> None:
        """Pickle, each by itself, the results that the next task may change."""
        mutable, self._mutable = self._mutable or (), None
        for position in mutable:
            value = self[position]
            try:
                # a bytearray, since arrays that are unpickled from bytes are read-only
                pickled = bytearray().join(_dumps(value))
            except Exception as failure:
                self[position] = None
                self._note_errors({position: _unsendable(failure, value)})
            else:
                self[position] = pickle.PickleBuffer(pickled)
                if self._packed is None:
                    self._packed = []
                self._packed.append(position)
                self.packed_bytes += len(pickled)

    def join(self, others: Outcomes) -> None:
        """The next items have the outcomes of an entry behind the others."""
        others.pickle_mutable()
        before = len(self)
        self += others
        if others._errors:
            self._note_errors({before + at: error for at, error in others._errors.items()})
        if others._packed:
            self._packed = [*(self._packed or ()), *(before + at for at in others._packed)]

    def encode(self) -> list[frames.Buffer]:
        """All of it as segments."""
        if len(self) == 1 and self._mutable:
            try:
                # alone, a result affects no other, and its large buffers need not be copied
                return _dumps((self[:], {}, []))
            except Exception as failure:
                self._note_errors({0: _unsendable(failure, self[0])})
                self[0] = self._mutable = None
        if self._mutable:
            self.pickle_mutable()
        # of built-in types alone, which have no buffers and need no cloudpickle
        pickled = pickle.dumps((self[:], self._errors or {}, self._packed or []), 5)
        return [frames.pack_plain(len(pickled)), pickled]

    def _note_errors(self, errors: dict[int, Any]) -> None:
        if self._errors is None:
            self._errors = {}
        self._errors.update(errors)


def _dumps(value: Any) -> list[frames.Buffer]:
    # references in a result are held for its receiver, not for as long as this process lives
    envelope = codec.MessageEnvelope()
    before = codec.set_envelope(envelope)
    try:
        return codec.dumps(value)
    except BaseException:
        envelope.void()
        raise
    finally:
        codec.set_envelope(before)


def _unsendable(failure: Exception, value: Any) -> Any:
    return codec.with_traceback(codec.encoding_error(failure, value))


class ReceivedOutcomes:
    """Owner side: the outcomes of the items from ``first`` up to ``stop``; for others see :meth:`turn_to`."""

    __slots__ = ("_errors", "_failure", "_first", "_values", "size")

    def __init__(self, body: memoryview, first: int, stop: int) -> None:
        #: bytes of them
        self.size = len(body)
        self._first = first
        self._failure: BaseException | None = None
        self._values: list[Any] = []
        self._errors: dict[int, BaseException | None] = {}
        try:
            self._values, self._errors, packed = codec.loads(body)
            if len(self._values) != stop - first:
                msg = f"{len(self._values)} results for {stop - first} items"
                raise WireError(msg)
        # a result's own code may raise anything, and must not end the thread that serves all
        except BaseException as failure:
            if isinstance(failure, KeyboardInterrupt) and _is_main_thread():
                # of the thread that waits for it
                raise
            self._failure = _unreadable(failure)
            return
        for position in packed:
            try:
                self._values[position] = codec.loads(memoryview(self._values[position]))
            except BaseException as failure:
                if isinstance(failure, KeyboardInterrupt) and _is_main_thread():
                    raise
                self._values[position] = None
                self._errors[position] = _unreadable(failure)

    def turn_to(self, first: int, position: int) -> None:
        """Let the items of one of several entries be meant: its ``first`` has the outcome at a position."""
        self._first = first - position

    def of(self, start: int, stop: int) -> tuple[Sequence[Any], Mapping[int, BaseException | None]]:
        """Values of the items from ``start`` up to ``stop``, and errors by item."""
        if self._failure is not None:
            return [None] * (stop - start), dict.fromkeys(range(start, stop), self._failure)
        first = self._first
        errors: dict[int, BaseException | None] = {}
        for position, error in self._errors.items():
            if start <= first + position < stop:
                errors[first + position] = error
        return self._values[start - first : stop - first], errors


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _unreadable(failure: BaseException) -> BaseException:
    message = f"a result could not be read: {type(failure).__name__}: {failure}"
    return codec.encoding_error(failure, message)


def read_error(body: memoryview) -> BaseException:
    """The error that a worker reports of itself."""
    try:
        error = codec.loads(body)
    except Exception as failure:
        return failure
    return error if isinstance(error, BaseException) else WireError(repr(error))


#: added to the number of a buffer that is a locator
LOCATOR = 2**31
_ALIGNMENT = 16
#: types whose objects cannot be changed; exact types only, no subclasses
_CONSTANT = frozenset({bool, bytes, complex, float, int, str, type(None)})
_TUPLES = frozenset({tuple})


def are_constant(items: Sequence[Any]) -> bool:
    """True where all items are of immutable types, or all are tuples of such."""
    types = set(map(type, items))
    if types <= _CONSTANT:
        return True
    if types != _TUPLES:
        return False
    return set(map(type, itertools.chain.from_iterable(items))) <= _CONSTANT


def encode_arguments(
    units: Sequence[Sequence[Any]],
    locate: Callable[[memoryview], bytes | None] | None = None,
) -> tuple[bool, list[frames.Buffer]]:
    """Pickle units of items; returns whether the body is one for :func:`read_arguments`, and its segments.

    Args:
        units: items that stay together.
        locate: returns the locator of a buffer of a whole object, or None; None to send all bytes.

    Raises:
        Exception: whatever pickling an item raised.
    """
    raws: list[memoryview] = []
    if len(units) == 1:
        pickled = codec.split(units[0], raws)
        if not raws:
            return False, [frames.pack_plain(len(pickled)), pickled]
        if locate is None or not any(raw.nbytes >= SHARE_THRESHOLD for raw in raws):
            return False, frames.pack(pickled, raws)
    else:
        pickled = b"".join([codec.split(unit, raws) for unit in units])
    references, buffers = _referring(raws, locate)
    header = struct.pack(f"<{1 + len(references)}I", len(references), *references)
    return True, [header + bytes(-len(header) % _ALIGNMENT), *frames.pack(pickled, buffers)]


def _referring(
    raws: Sequence[memoryview], locate: Callable[[memoryview], bytes | None] | None
) -> tuple[list[int], list[frames.Buffer]]:
    buffers: list[frames.Buffer] = []
    references: list[int] = []
    known: dict[int, int] = {}
    for raw in raws:
        # a buffer of part of an object does not tell which part
        is_whole = memoryview(raw.obj).nbytes == raw.nbytes
        # the views keep their objects alive, so ids are not reused
        number = known.get(id(raw.obj)) if is_whole else None
        if number is None:
            locator = locate(raw) if is_whole and locate is not None else None
            number = len(buffers) if locator is None else len(buffers) + LOCATOR
            buffers.append(raw if locator is None else locator)
            if is_whole:
                known[id(raw.obj)] = number
        references.append(number)
    return references, buffers


def read_arguments(body: memoryview, find: Callable[[bytes], memoryview]) -> list[Any]:
    """The items of a body.

    Args:
        body: the body.
        find: returns a private view of the bytes of a locator.

    Raises:
        WireError: it makes no sense.
        Exception: whatever unpickling raised, or ``find``.
    """
    references, rest = _references(body)
    pickled, buffers = frames.unpack(rest)
    units = codec.loads_all(pickled, _opened(references, buffers, find))
    return list(itertools.chain.from_iterable(units))


def _references(body: memoryview) -> tuple[tuple[int, ...], memoryview]:
    try:
        (count,) = struct.unpack_from("<I", body)
        if count > len(body) // 4:
            msg = f"arguments announce {count} buffers in {len(body)} bytes"
            raise WireError(msg)
        references = struct.unpack_from(f"<{count}I", body, 4)
    except struct.error as error:
        msg = "arguments are cut short"
        raise WireError(msg) from error
    size = 4 * (1 + count)
    return references, body[size + -size % _ALIGNMENT :]


def _opened(
    references: Sequence[int],
    buffers: Sequence[memoryview],
    find: Callable[[bytes], memoryview],
) -> Iterator[frames.Buffer]:
    used = set()
    for reference in references:
        number = reference % LOCATOR
        if number >= len(buffers):
            msg = f"arguments refer to buffer {number} of {len(buffers)}"
            raise WireError(msg)
        if reference >= LOCATOR:
            yield find(bytes(buffers[number]))
        elif number in used:
            # a copy: the task that has the first may write to it
            yield bytearray(buffers[number])
        else:
            used.add(number)
            yield buffers[number]
