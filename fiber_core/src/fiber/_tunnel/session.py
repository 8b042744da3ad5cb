"""A connection's bytes in order and once, over streams that break; pure, no sockets.

Each side keeps what the other has not acknowledged. When a stream broke, both say on the next one how
much they have, and send what the other lacks::

    session.put(data)       bytes from the connection     -> frames for the stream
    session.feed(data)      bytes from the stream         -> what is new for the connection
    session.resume(theirs)  on another stream             -> frames that were lost with the last one
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

from fiber.exceptions import WireError

__all__ = ["ABORT", "PING", "WINDOW", "Session"]

#: bytes that may be on their way in one direction
WINDOW = 4 * 2**20
#: bytes taken in before the other side is told of it
_ACK_AFTER = 256 * 2**10
#: largest body of a frame
_MOST = 2**20

_HEAD = struct.Struct("<BI")
_OFFSET = struct.Struct("<Q")
_DATA, _ACK, _FIN, _ABORT, _PING = range(1, 6)

#: a sign of life
PING = _HEAD.pack(_PING, 0)
#: the connection is broken for good
ABORT = _HEAD.pack(_ABORT, 0)


class Session:
    """One side of one connection."""

    def __init__(self) -> None:
        #: bytes of the other side that arrived, its end among them
        self.received = 0
        #: True once the other side has said all it had to say
        self.ended = False
        #: True once the connection is broken for good
        self.aborted = False
        self._told = 0
        self._finished = False
        # what was not acknowledged: bytes, or b"" for the end, which counts as one
        self._kept: deque[bytes] = deque()
        self._first = 0
        self._next = 0
        self._partial = bytearray()

    @property
    def room(self) -> int:
        """Bytes that may be put in now."""
        return max(0, WINDOW - (self._next - self._first))

    @property
    def is_over(self) -> bool:
        """True once both sides have said all and know that it has arrived."""
        return self.aborted or (self.ended and self._finished and not self._kept)

    def put(self, data: bytes) -> list[bytes]:
        """Bytes of the connection, not empty; the frame for the stream."""
        return self._keep(data)

    def finish(self) -> list[bytes]:
        """The connection has no more to say; the frame for the stream. Once."""
        if self._finished:
            return []
        self._finished = True
        return self._keep(b"")

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Bytes of the stream; yields what is new for the connection.

        Raises:
            WireError: the other side talks nonsense.
        """
        self._partial += data
        position = 0
        while len(self._partial) - position >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._partial, position)
            if size > _MOST:
                msg = f"a frame of {size} bytes on a stream"
                raise WireError(msg)
            begin, end = position + _HEAD.size, position + _HEAD.size + size
            if len(self._partial) < end:
                break
            body = bytes(memoryview(self._partial)[begin:end])
            position = end
            if self._take(kind, body):
                yield body
        del self._partial[:position]

    def acknowledgement(self) -> list[bytes]:
        """The frame that tells what has arrived, where it is time to."""
        if self.received - self._told < _ACK_AFTER and not (
            self.ended and self._told < self.received
        ):
            return []
        return [self._acknowledge()]

    def resume(self, theirs: int) -> list[bytes]:
        """Go on over another stream, of which this is the first that is sent.

        Args:
            theirs: what the other side has received.

        Raises:
            WireError: it cannot have that.
        """
        if not self._first <= theirs <= self._next:
            msg = f"{theirs} bytes arrived of {self._first} to {self._next}"
            raise WireError(msg)
        self._partial.clear()
        self._forget(theirs)
        return [frame for data in self._kept for frame in _frame(data)]

    def _keep(self, data: bytes) -> list[bytes]:
        self._kept.append(data)
        self._next += len(data) or 1
        return _frame(data)

    def _acknowledge(self) -> bytes:
        self._told = self.received
        return _HEAD.pack(_ACK, _OFFSET.size) + _OFFSET.pack(self.received)

    def _take(self, kind: int, body: bytes) -> bool:
        if kind == _DATA and body and not self.ended:
            self.received += len(body)
            return True
        if kind == _ACK and len(body) == _OFFSET.size:
            (theirs,) = _OFFSET.unpack(body)
            if not self._first <= theirs <= self._next:
                msg = f"{theirs} bytes acknowledged of {self._first} to {self._next}"
                raise WireError(msg)
            self._forget(theirs)
        elif kind == _FIN and not body and not self.ended:
            self.received += 1
            self.ended = True
        elif kind == _ABORT:
            self.aborted = True
        elif kind != _PING:
            msg = f"a frame of kind {kind} with {len(body)} bytes on a stream"
            raise WireError(msg)
        return False

    def _forget(self, theirs: int) -> None:
        while self._kept and self._first < theirs:
            data = self._kept.popleft()
            size = len(data) or 1
            if self._first + size > theirs:
                self._kept.appendleft(data[theirs - self._first :])
                size = theirs - self._first
            self._first += size


def _frame(data: bytes) -> list[bytes]:
    # apart, so that nothing large is copied
    return [_HEAD.pack(_DATA, len(data)), data] if data else [_HEAD.pack(_FIN, 0)]
