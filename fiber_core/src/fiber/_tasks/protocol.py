"""Bodies of the messages between a pool and its workers; pure.

======== ========= ==================================================================
kind     direction body
======== ========= ==================================================================
ASK      up        ``Ask``: the worker can take so many more entries
TASKS    down      ``Tasks`` and the arguments of its items, pickled as one list, or as
                   :mod:`fiber._tasks.arguments` says where the mode is ``APART``; between the two
                   the caller's context of OpenTelemetry, where the mode is ``CONTEXT``
DONE     up        ``Done`` and the outcomes of its items, see :mod:`fiber._tasks.outcomes`
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
"""

from __future__ import annotations

import enum
import hashlib
import struct
from collections.abc import Sequence

from fiber._base import values
from fiber._wire import frames
from fiber.exceptions import WireError


class Mode(enum.IntFlag):
    """How a function is called with an item."""

    #: ``function(item)``
    MAP = 0
    #: ``function(*item)``
    STARMAP = 1
    #: ``function(*item[0], **item[1])``
    APPLY = 2
    #: a flag: the caller's context follows the head, see :attr:`Tasks.context`
    CONTEXT = 32
    #: a flag: each item is pickled by itself, since not all could be pickled or read together
    SINGLY = 64
    #: a flag: each unit has a pickle of its own, see :mod:`fiber._tasks.arguments`
    APART = 128


# both multiples of 16 bytes, so that the arrays behind them keep their alignment
_TASKS = struct.Struct("<QQQQQB16s7x")
_DONE = struct.Struct("<QQQdB15x")
_KEPT = struct.Struct("<QQ")
_SEEN = struct.Struct("<Q")
_ENTRY = struct.Struct("<Q")
_ASK = struct.Struct("<B")
_CONTEXT = struct.Struct("<H")

#: of what follows a head
_TASKS_ALIGNMENT = 16
#: bytes of a digest
DIGEST = 16
#: number of messages about functions in shared memory
SHARED = 1
#: entries that a worker may hold: one running, one behind it
CREDITS = 2


_MODES = frozenset(int(how | flag) for how in (0, 1, 2) for flag in (0, Mode.SINGLY, Mode.APART))
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
    #: the caller's context of OpenTelemetry, as JSON of its fields; empty where nobody wants spans
    context: bytes = b""

    def encode(self) -> bytes:
        """As bytes."""
        if not self.context:
            return _TASKS.pack(
                self.entry, self.call, self.start, self.stop, self.chunk, self.mode, self.digest
            )
        mode = self.mode | _WITH_CONTEXT
        head = _TASKS.pack(
            self.entry, self.call, self.start, self.stop, self.chunk, mode, self.digest
        )
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

    def encode(self) -> bytes:
        """As bytes."""
        return _DONE.pack(self.entry, self.start, self.stop, self.seconds, self.credits)


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


def read_done(body: memoryview) -> tuple[Done, memoryview]:
    """Head and outcomes of a DONE body."""
    try:
        done = Done(*_DONE.unpack_from(body))
    except struct.error as error:
        msg = "a DONE body is cut short"
        raise WireError(msg) from error
    if done.stop < done.start or not done.seconds >= 0 or done.credits > CREDITS:
        msg = f"a DONE body makes no sense: {done}"
        raise WireError(msg)
    return done, body[_DONE.size :]


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
