"""Joins a connection on this host to its session, and that to the stream of the moment.

A connection's bytes in order and once, over streams that break; pure, no sockets.

Each side keeps what the other has not acknowledged. When a stream broke, both say on the next one how
much they have, and send what the other lacks::

    session.put(data)       bytes from the connection     -> frames for the stream
    session.feed(data)      bytes from the stream         -> what is new for the connection
    session.resume(theirs)  on another stream             -> frames that were lost with the last one
"""

from __future__ import annotations

import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator

from fiber._tunnel.buffered import Buffered
from fiber._wire.reactor import Reactor
from fiber.exceptions import WireError
from fiber.model.timing import Timing

__all__ = ["ABORT", "PING", "WINDOW", "Crossing", "Session"]

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


#: bytes for the connection that it did not take, from which on the stream is not read
_FULL = 2**20


class Crossing:
    """One connection; for the reactor's thread alone.

    Args:
        reactor: that waits for its sockets.
        sid: its name.
        local: the connection; owned from now on.
        on_broken: called when its stream broke and it is not over.
        on_over: called once, when both ends have said all, or it is given up.
        timing: durations of the run.
        clock: tells the time.
    """

    def __init__(
        self,
        reactor: Reactor,
        sid: str,
        local: socket.socket,
        *,
        on_broken: Callable[[Crossing], None],
        on_over: Callable[[Crossing], None],
        timing: Timing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sid = sid
        #: when its stream broke, or it began without one; None while it has one
        self.since: float | None = clock()
        self._clock = clock
        self._timing = timing
        self._reactor = reactor
        self._on_broken = on_broken
        self._on_over = on_over
        self._session = Session()
        self._stream: Buffered | None = None
        self._over = False
        self._heard = self._spoke = 0.0
        self._local = Buffered(
            reactor,
            local,
            on_data=self._from_local,
            on_end=self._local_ended,
            on_room=self._regulate,
        )

    @property
    def received(self) -> int:
        """What the other side is told when the next stream begins."""
        return self._session.received

    @property
    def is_over(self) -> bool:
        """True once nothing more is to be done."""
        return self._over

    def attach(self, stream: Buffered, rest: bytes, theirs: int) -> None:
        """Go on over a stream, of which some bytes were read already.

        Args:
            stream: owned from now on.
            rest: what was read of it.
            theirs: what the other side has received.
        """
        if self._over:
            stream.hand_over(on_data=lambda _: None, on_end=lambda _: None, on_room=lambda: None)
            stream.write([ABORT])
            stream.close()
            return
        if self._stream is not None:
            self._stream.close()
        self.since = None
        self._heard = self._spoke = self._clock()
        self._stream = stream
        stream.hand_over(
            on_data=self._from_stream, on_end=lambda _: self.broken(), on_room=self._check
        )
        try:
            frames = self._session.resume(theirs)
        except WireError:
            self.abort()
            return
        self._send(frames)
        if rest:
            self._from_stream(rest)
        self._regulate()

    def look(self) -> None:
        """Once in a while: say that we are alive, and notice who is not."""
        now = self._clock()
        stream = self._stream
        if stream is None or self._over:
            return
        if now - self._spoke >= self._timing.stream_heartbeat and not stream.waiting:
            self._spoke = now
            stream.write([PING])
        if self._local.waiting >= _FULL:
            # it is we who do not listen
            self._heard = now
        if now - self._heard > self._timing.stream_silence:
            self.broken()

    def broken(self) -> None:
        """Its stream is of no use any more."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.close()
        self.since = self._clock()
        if not self._over:
            self._on_broken(self)

    def abort(self) -> None:
        """Give it up, and tell the other side where that can be."""
        if self._stream is not None and not self._session.aborted:
            self._stream.write([ABORT])
        self._end()

    def abandon(self) -> None:
        """In a process forked by the user."""
        self._over = True
        self._local.abandon()
        if self._stream is not None:
            self._stream.abandon()

    # -- bytes

    def _from_local(self, data: bytes) -> None:
        self._send(self._session.put(data))
        self._regulate()

    def _local_ended(self, error: OSError | None) -> None:
        if error is not None:
            self.abort()
            return
        self._send(self._session.finish())
        self._check()

    def _from_stream(self, data: bytes) -> None:
        self._heard = self._clock()
        session = self._session
        ended = session.ended
        try:
            self._local.write(session.feed(data))
        except WireError:
            self.abort()
            return
        if self._over:
            # the connection broke while it was written
            return
        if session.aborted:
            self._end()
            return
        if session.ended and not ended:
            self._local.finish()
        self._send(session.acknowledgement())
        self._regulate()
        self._check()

    def _send(self, frames: list[bytes]) -> None:
        if self._stream is not None and frames:
            self._spoke = self._clock()
            self._stream.write(frames)

    def _regulate(self) -> None:
        """Read neither side faster than the other one takes."""
        self._local.read(self._session.room > 0)
        if self._stream is not None:
            self._stream.read(self._local.waiting < _FULL)
        self._check()

    def _check(self) -> None:
        if self._over or not self._session.is_over or self._local.waiting:
            return
        if self._stream is None or not self._stream.waiting:
            self._end()

    def _end(self) -> None:
        if self._over:
            return
        self._over = True
        self._local.close()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._on_over(self)
