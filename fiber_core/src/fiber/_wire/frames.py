"""Layout of frames and object bodies, and their framing on a stream; pure, no sockets.

A *message* is a header and a body of any size. It travels as one *frame* where it fits, else as
one frame and as many ``PART`` frames as it takes, so that no nng message is larger than
``max_frame``. Frames of several messages may be interleaved; those of one message keep their order.

Header, little-endian, 32 bytes::

    2s  magic    b"FB"
    B   version  of this layout
    B   kind     see Kind
    I   ack      frames received so far by the dialing side, modulo 2**32 (0 from the listener)
    Q   target   the object the message is for, 0 is the process itself
    Q   id       chosen by the sender; a REPLY or ERROR carries its CALL's
    Q   size     bytes of the whole body; in a PART, the offset of its bytes

Object bodies (``pack``/``unpack``): ``I`` count of out-of-band buffers, ``Q`` length of the pickle,
``Q`` length of each buffer, then the pickle and the buffers, each buffer after as many zeros as
bring it to a multiple of 16 bytes, where arrays expect to begin.

A frame is one nng message. On a stream (``stream_buffers``/``Deframer``) it follows its length, an
``I``.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from fiber._base import values
from fiber._base.interpreter import keep_free_memory
from fiber.exceptions import WireError

VERSION = 1
MAGIC = b"FB"
HEADER = struct.Struct("<2sBBIQQQ")
_HEADER_SIZE = HEADER.size

#: largest frame, and nng's receive limit; a setting may lower it for tests
MAX_FRAME = 4 * 2**20
#: bytes from which on the C library gives memory of its own to what is allocated
_LARGE = 128 * 2**10
#: largest frame from a peer that is not proven
MAX_UNPROVEN = 64 * 2**10
#: most bytes kept of a peer's messages that were begun and are not being continued
MAX_OTHERS = 64 * 2**20
#: most unacknowledged frames from the listener to a peer; nng drops replies beyond 64
WINDOW = 16

Buffer: TypeAlias = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """Kind of a frame: its meaning, as one byte of the header."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSE = 5
    CALL = 16
    REPLY = 17
    ERROR = 18
    CAST = 19
    PART = 20
    GRANT = 21
    BYE = 22
    # a pool and its workers
    ASK = 32
    TASKS = 33
    DONE = 34
    REVOKE = 35
    KEPT = 36
    RETIRE = 37
    FUNCTION = 38
    MISSING = 39
    BROKEN = 40
    UNREAD = 41
    LOOK = 42
    SEEN = 43


_KINDS = {int(kind): kind for kind in Kind}
#: kinds of the handshake
HANDSHAKE = frozenset({Kind.HELLO, Kind.CHALLENGE, Kind.PROOF, Kind.WELCOME, Kind.REFUSE})


@values.define
class Message:
    """A message as it was received, whole."""

    #: its kind
    kind: Kind
    #: the object it is for
    target: int
    #: the sender's number for it, or its CALL's
    id: int
    #: the body, a view that stays valid as long as it is referenced
    body: memoryview


@values.define
class Frame(Message):
    """One parsed frame; a message as well where it has the whole of it."""

    #: frames that its sender has received
    ack: int
    #: bytes of the whole message's body; in a PART, the offset of its bytes
    size: int
    #: True where it has a whole message
    is_whole: bool


def parse(data: Buffer) -> Frame:
    """Parse one frame.

    Raises:
        WireError: too short, another magic or version, an unknown kind, a body larger than its size.
    """
    if len(data) < _HEADER_SIZE:
        msg = f"frame of {len(data)} bytes is shorter than a header"
        raise WireError(msg)
    magic, version, kind, ack, target, number, size = HEADER.unpack_from(data)
    if magic != MAGIC:
        msg = f"frame begins with {magic!r}, expected {MAGIC!r}"
        raise WireError(msg)
    if version != VERSION:
        msg = f"frame of protocol version {version}, this fiber speaks {VERSION}"
        raise WireError(msg)
    known = _KINDS.get(kind)
    if known is None:
        msg = f"frame of unknown kind {kind}"
        raise WireError(msg)
    body = memoryview(data)[_HEADER_SIZE:]
    missing = size - len(body)
    if missing < 0 and known is not Kind.PART:
        msg = f"frame has {len(body)} bytes of body, its message {size}"
        raise WireError(msg)
    # as its __init__ has it, without the call: for each message
    frame = Frame.__new__(Frame)
    frame.kind, frame.target, frame.id, frame.body = known, target, number, body
    frame.ack, frame.size = ack, size
    frame.is_whole = not missing and known is not Kind.PART
    return frame


#: header by its first four bytes, which tell kind and layout, then ack, target, id and size
_SIGNED = struct.Struct("<4sIQQQ")
_WHOLE_CAST = MAGIC + bytes((VERSION, Kind.CAST))


def cast(data: Buffer, target: int) -> tuple[int, memoryview] | None:
    """Ack and body of a frame with a whole ``CAST`` for a target; None for any other, also if malformed.

    As :func:`parse` has it, without an object for the frame: a thread that waits for a small message looks so.
    """
    if len(data) < _HEADER_SIZE:
        return None
    sign, ack, to, _, size = _SIGNED.unpack_from(data)
    if sign != _WHOLE_CAST or to != target or size != len(data) - _HEADER_SIZE:
        return None
    return ack, memoryview(data)[_HEADER_SIZE:]


#: packs a header of kind, ack (modulo 2**32), target, id and size, without a call of Python's: for each message
pack_header = functools.partial(HEADER.pack, MAGIC, VERSION)


def header(kind: Kind, *, ack: int = 0, target: int = 0, id: int = 0, size: int = 0) -> bytes:  # noqa: A002 - the field's name
    """Pack the header of one frame."""
    return pack_header(kind, ack & 0xFFFFFFFF, target, id, size)


def split(
    kind: Kind, target: int, number: int, segments: Sequence[Buffer], *, max_frame: int = MAX_FRAME
) -> Iterator[tuple[Kind, int, int, int, list[Buffer]]]:
    """Cut a message into frames: ``(kind, target, id, size or offset, pieces)`` each.

    The pieces are views of the given segments; nothing is copied.
    """
    room = max_frame - HEADER.size
    total = sum(map(len, segments))
    if total <= room:
        yield kind, target, number, total, list(segments)
        return
    offset = 0
    pieces: list[Buffer] = []
    filled = 0
    for segment in segments:
        view = memoryview(segment)
        while view:
            taken = view[: room - filled]
            pieces.append(taken)
            filled += len(taken)
            view = view[len(taken) :]
            if filled == room:
                yield _part(kind, target, number, total, offset, pieces)
                offset, pieces, filled = offset + filled, [], 0
    if pieces:
        yield _part(kind, target, number, total, offset, pieces)


def _part(
    kind: Kind, target: int, number: int, total: int, offset: int, pieces: list[Buffer]
) -> tuple[Kind, int, int, int, list[Buffer]]:
    if offset == 0:
        return kind, target, number, total, pieces
    return Kind.PART, target, number, offset, pieces


class Assembler:
    """Joins the frames of one peer into messages.

    A message may be of any size, and our own senders have one large message under way at a time. So
    the one that grows is kept whole, and of the others, whose senders were interrupted, or whose
    peer is no friend, a few of at most :data:`MAX_OTHERS` bytes in all.

    Args:
        max_partial: most unfinished messages.
    """

    def __init__(self, *, max_partial: int = 8) -> None:
        self._max_partial = max_partial
        self._partial: dict[tuple[int, int], tuple[Kind, int, bytearray]] = {}

    def feed(self, frame: Frame) -> Message | None:
        """Add one frame; returns the message that it completes, if any.

        Raises:
            WireError: a part without its first frame, out of order, or beyond its message's size.

        A sender that was interrupted leaves a message unfinished: a new one with the same number
        replaces it, and of too many, or too large ones, the oldest is dropped.
        """
        key = frame.target, frame.id
        if frame.is_whole:
            return frame
        if frame.kind is not Kind.PART:
            if not frame.body:
                msg = f"message {frame.id} begins with an empty frame"
                raise WireError(msg)
            self._partial.pop(key, None)
            if len(self._partial) >= self._max_partial:
                del self._partial[next(iter(self._partial))]
            # grown as bytes come: an announced size alone costs no memory
            self._partial[key] = (frame.kind, frame.size, bytearray(frame.body))
            self._bound_others(key)
            return None
        entry = self._partial.get(key)
        if entry is None:
            msg = f"part of message {frame.id}, which never began"
            raise WireError(msg)
        kind, size, buffer = entry
        if frame.size != len(buffer) or len(buffer) + len(frame.body) > size or not frame.body:
            msg = f"part of message {frame.id} at {frame.size}, expected {len(buffer)} of {size}"
            raise WireError(msg)
        buffer += frame.body
        if len(buffer) < size:
            self._bound_others(key)
            return None
        del self._partial[key]
        return Message(kind, frame.target, frame.id, memoryview(buffer))

    def _bound_others(self, growing: tuple[int, int]) -> None:
        """Drop the oldest of the unfinished messages but one while they are too large in all."""
        others = {key: len(entry[2]) for key, entry in self._partial.items() if key != growing}
        held = sum(others.values())
        for key, size in others.items():
            if held <= MAX_OTHERS:
                return
            held -= size
            del self._partial[key]


#: head of a body without buffers: count 0, length of the pickle
NO_BUFFERS = struct.Struct("<IQ")
#: packs it for a length, without a call of Python's: for each task
pack_plain = functools.partial(NO_BUFFERS.pack, 0)
_COUNT = struct.Struct("<I")
_ALIGNMENT = 16
_ZEROS = bytes(_ALIGNMENT)


def pack(pickled: Buffer, buffers: Sequence[Buffer] = ()) -> list[Buffer]:
    """Make the segments of an object body from a pickle and its out-of-band buffers."""
    if not buffers:
        return [pack_plain(len(pickled)), pickled]
    lengths = struct.pack(
        f"<I{1 + len(buffers)}Q", len(buffers), len(pickled), *(len(b) for b in buffers)
    )
    segments: list[Buffer] = [lengths, pickled]
    end = len(lengths) + len(pickled)
    for buffer in buffers:
        gap = -end % _ALIGNMENT
        if gap:
            segments.append(_ZEROS[:gap])
        segments.append(buffer)
        end += gap + len(buffer)
    return segments


def unpack(body: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return the pickle and the buffers of an object body, as views.

    Raises:
        WireError: the lengths do not add up.
    """
    try:
        (count,) = _COUNT.unpack_from(body)
        if count > len(body) // 8:
            msg = f"object body announces {count} buffers in {len(body)} bytes"
            raise WireError(msg)
        lengths = struct.unpack_from(f"<{1 + count}Q", body, _COUNT.size)
    except struct.error as error:
        msg = f"object body of {len(body)} bytes is cut short"
        raise WireError(msg) from error
    start = _COUNT.size + 8 * (1 + count)
    end = start + lengths[0]
    spans = []
    for length in lengths[1:]:
        begin = end + -end % _ALIGNMENT
        end = begin + length
        spans.append((begin, end))
    if end != len(body):
        msg = f"object body of {len(body)} bytes, its parts need {end}"
        raise WireError(msg)
    return body[start : start + lengths[0]], [body[begin:end] for begin, end in spans]


def joined(segments: Iterable[Buffer]) -> bytes:
    """Concatenate segments."""
    return b"".join(segments)


#: length prefix of a frame on a stream
LENGTH = struct.Struct("<I")
#: frames up to this size are copied into one buffer, which costs less than gathering or appending
JOIN_BELOW = 16 * 2**10
# most buffers for one sendmsg(); IOV_MAX is 1024
_MAX_GATHERED = 512


def sole(data: Buffer) -> bytearray | None:
    """The frame of a stream's bytes that are one whole frame; None where they are not."""
    if len(data) < LENGTH.size or LENGTH.unpack_from(data)[0] != len(data) - LENGTH.size:
        return None
    # writable and aligned, since arrays are made of it without another copy
    return bytearray(memoryview(data)[LENGTH.size :])


class Deframer:
    """Splits a byte stream into frames.

    A large frame is read in place: while :attr:`gap` is not None, read into it and call
    :meth:`fill`, else pass what was read to :meth:`feed`.

    Args:
        limit: bytes of the largest accepted frame; may be changed between frames.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._length = b""
        self._frame = bytearray()
        #: buffer for the rest of the frame that has begun; None where none has
        self.gap: memoryview | None = None

    @property
    def is_between(self) -> bool:
        """True where no frame has begun."""
        return self.gap is None and not self._length

    def fill(self, count: int) -> bytearray | None:
        """Note that ``count`` bytes were written to :attr:`gap`; returns the frame once complete."""
        assert self.gap is not None
        self.gap = self.gap[count:]
        if self.gap:
            return None
        self.gap = None
        frame, self._frame = self._frame, bytearray()
        return frame

    def feed(self, data: memoryview) -> list[bytearray]:
        """Add bytes while :attr:`gap` is None; returns the frames that are complete now.

        Raises:
            WireError: a frame is larger than the limit.
        """
        frames: list[bytearray] = []
        at, end = 0, len(data)
        while at < end:
            start = at + LENGTH.size - len(self._length)
            if start > end:
                self._length += bytes(data[at:end])
                break
            if self._length:
                (size,) = LENGTH.unpack(self._length + bytes(data[at:start]))
                self._length = b""
            else:
                (size,) = LENGTH.unpack_from(data, at)
            if size > self.limit:
                msg = f"a frame of {size} bytes is announced, {self.limit} are the most"
                raise WireError(msg)
            at = start + size
            if at > end:
                # allocated whole, and filled from the stream without another copy
                if size >= _LARGE:
                    keep_free_memory()
                self._frame = bytearray(size)
                self._frame[: end - start] = data[start:end]
                self.gap = memoryview(self._frame)[end - start :]
                break
            frames.append(bytearray(data[start:at]))
        return frames

    def split(self, data: Buffer) -> Iterator[bytearray]:
        """Yield the frames that are complete with ``data``, whether or not one has begun.

        Raises:
            WireError: as :meth:`feed`.
        """
        rest = memoryview(data)
        while (gap := self.gap) is not None and rest:
            count = min(len(gap), len(rest))
            gap[:count] = rest[:count]
            frame = self.fill(count)
            rest = rest[count:]
            if frame is not None:
                yield frame
        if rest:
            yield from self.feed(rest)


def stream_buffers(head: bytes, pieces: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """Return the buffers to write to a stream for a frame, and their bytes in all."""
    size = len(head) + sum(map(len, pieces))
    length = LENGTH.pack(size)
    if size <= JOIN_BELOW:
        return [b"".join((length, head, *pieces))], LENGTH.size + size
    if len(pieces) > _MAX_GATHERED:
        return [length + head, b"".join(pieces)], LENGTH.size + size
    return [length + head, *pieces], LENGTH.size + size


def unsent(buffers: Sequence[Buffer], sent: int) -> list[memoryview]:
    """Return what is left of buffers after their first ``sent`` bytes."""
    left = []
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if sent >= len(view):
            sent -= len(view)
            continue
        left.append(view[sent:] if sent else view)
        sent = 0
    return left
