"""Joins a connection on this host to its session, and that to the stream of the moment."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from fiber._tunnel.buffered import Buffered
from fiber._tunnel.session import ABORT, PING, Session
from fiber._wire.reactor import Reactor
from fiber.exceptions import WireError

__all__ = ["BEAT", "SILENCE", "Crossing"]

#: bytes for the connection that it did not take, from which on the stream is not read
_FULL = 2**20
#: seconds without a word after which a sign of life is sent
BEAT = 5.0
#: seconds without a word after which a stream is taken for broken
SILENCE = 15.0


class Crossing:
    """One connection; for the reactor's thread alone.

    Args:
        reactor: that waits for its sockets.
        sid: its name.
        local: the connection; owned from now on.
        on_broken: called when its stream broke and it is not over.
        on_over: called once, when both ends have said all, or it is given up.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sid = sid
        #: when its stream broke, or it began without one; None while it has one
        self.since: float | None = clock()
        self._clock = clock
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
        if now - self._spoke >= BEAT and not stream.waiting:
            self._spoke = now
            stream.write([PING])
        if self._local.waiting >= _FULL:
            # it is we who do not listen
            self._heard = now
        if now - self._heard > SILENCE:
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
