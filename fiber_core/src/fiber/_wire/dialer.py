"""Dialing side of a Unix socket between two processes of one host; has no thread of its own.

Apart from :mod:`~fiber._wire.link`, which chooses between this and nng, so that neither is imported
without need; apart from the listening side, which needs a reactor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence

from fiber._base.interpreter import unless_finalizing
from fiber._base.threads import Reactor
from fiber._wire import descriptors, fork, frames
from fiber._wire.identity import Credentials
from fiber.exceptions import PeerLostError, TransportError

#: how URLs of such sockets begin
SCHEME = "unix://"
_CHUNK = 64 * 2**10
_TIME = struct.Struct("@ll")
_FLAGS = (socket.MSG_NOSIGNAL,)


class _Unsent:
    """Rest of a frame that is being sent, with the counts of bytes that the kernel took since."""

    def __init__(self, buffers: Sequence[frames.Buffer], *, is_whole: bool = True) -> None:
        self.buffers = buffers
        self.counts: list[int] = []
        self._is_whole = is_whole

    @property
    def is_whole(self) -> bool:
        """True while no byte of the frame was sent."""
        return self._is_whole and not self.counts

    def rest(self) -> _Unsent:
        """The rest after what was sent."""
        if self.counts[0] == sum(map(len, self.buffers)):
            return _NOTHING
        return _Unsent(frames.unsent(self.buffers, self.counts[0]), is_whole=False)


_NOTHING = _Unsent(())


class UnixDialer:
    """One connection. One thread receives, any thread sends.

    A frame whose sender is interrupted midway is finished by the next sender.
    """

    #: True: what was sent is in the kernel and arrives even if this process ends at once
    survives_exit = True

    def __init__(self, *, max_frame: int = frames.MAX_FRAME) -> None:
        self._end: tuple[int, int] | None = None
        self._socket = descriptors.OwnedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(True)
        fork.check()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._deframer = frames.Deframer(max_frame)
        self._frames: deque[bytearray] = deque()
        self._order = threading.Lock()
        # the frame that is being sent
        self._unsent = _NOTHING
        # True while a read is under way, after which an interrupt leaves the position unknown
        self._reading = False
        #: True once sending or receiving has met the end of the connection, or this side was closed
        self.lost = False
        #: readable whenever :meth:`receive` has something or the peer is gone
        self.fd = self._socket.fileno()
        fork.register(self)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to wait for before :meth:`receive`."""
        return (self.fd,)

    @property
    def descriptors(self) -> descriptors.OwnedDescriptors:
        """Descriptors of this connection."""
        return self._socket.owned

    @property
    def end_fd(self) -> int:
        """Readable once :meth:`receive` has met the end of the stream."""
        if self._end is None:
            self._end = os.pipe()
            if self.lost:
                os.write(self._end[1], b"\0")
        return self._end[0]

    @property
    def buffered(self) -> bool:
        """True while :meth:`receive` has a frame for which no descriptor is readable."""
        return bool(self._frames)

    def reading(self, reactor: Reactor, read: Callable[[], None]) -> None:
        """None: an interrupt amidst a read ends the connection, so the handler thread alone reads."""

    def on_descriptors_lost(self, action: Callable[[], None]) -> None:
        """Does nothing: no thread watches the descriptors, and the listener notices at once."""

    def dial(self, url: str, credentials: Credentials, *, timeout: float) -> Credentials:
        """Connect; ``credentials`` are not used here but in the handshake, and returned for that.

        Raises:
            TransportError: no process listens there, or none accepts within ``timeout`` seconds.
        """
        # the kernel's limit: else connect() waits while a stopped listener's backlog is full
        limit = _TIME.pack(int(timeout), int(timeout % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        try:
            self._socket.connect(url[len(SCHEME) :])
        except OSError as error:
            self.lost = True
            if error.errno == errno.EAGAIN:
                msg = f"{url} did not answer within {timeout:g} s"
            else:
                msg = f"cannot reach {url}: {os.strerror(error.errno or 0).lower()}"
            raise TransportError(msg) from error
        self._socket.setblocking(False)
        return credentials

    def receive(self) -> tuple[int, bytearray] | None:
        """Receive the next frame, or None where there is none now; the number has no meaning here.

        Raises:
            WireError: the peer announces a frame that is too large.
        """
        fork.check()
        if self._reading:
            # an interrupt hit the read, so bytes may be lost
            self._frames.clear()
            self.close()
            return None
        while not self._frames:
            gap = self._deframer.gap
            self._reading = True
            try:
                count = self._socket.recv_into(self._chunk if gap is None else gap)
            except (BlockingIOError, InterruptedError):
                # there are none now
                count = -1
            except OSError:
                count = 0
            if count > 0:
                if gap is None:
                    self._frames.extend(self._deframer.feed(self._chunk[:count]))
                else:
                    frame = self._deframer.fill(count)
                    if frame is not None:
                        self._frames.append(frame)
            self._reading = False
            if count <= 0:
                if not count:
                    self._ended()
                return None
        return 0, self._frames.popleft()

    def send(self, head: Callable[[], bytes], pieces: Sequence[frames.Buffer] = ()) -> None:
        """Send one frame; waits while the listener does not read.

        Args:
            head: makes the header when the frame's turn has come.
            pieces: the body.

        Raises:
            PeerLostError: the peer is gone, or the socket closed.
        """
        fork.check()
        with self._order:
            if self._unsent.buffers:
                self._finish()
            buffers, _ = frames.stream_buffers(head(), pieces)
            try:
                self._unsent = _Unsent(buffers)
                self._finish()
            except BaseException:
                # interrupted before its first byte: the frame is dropped whole
                if self._unsent.is_whole:
                    self._unsent = _NOTHING
                raise

    def post(self, head: Callable[[], bytes]) -> None:
        """Does nothing: the listener has no window here, so it needs no acknowledgements."""

    def _finish(self) -> None:
        """Send the rest of the frame under way."""
        while self._unsent.buffers:
            unsent = self._unsent
            if unsent.counts:
                self._unsent = unsent.rest()
            elif not self._offer(unsent):
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                poll.poll()

    def _offer(self, unsent: _Unsent) -> bool:
        """Pass the kernel what it takes; False where that is nothing now."""
        if self.lost:
            self._unsent = _NOTHING
            msg = "the connection is gone"
            raise PeerLostError(msg)
        buffers = unsent.buffers
        try:
            # sent and counted in one call, so that no interrupt can come between the two
            if len(buffers) == 1:
                sends = map(self._socket.send, buffers, _FLAGS)
            else:
                sends = map(self._socket.sendmsg, (buffers,), ((),), _FLAGS)
            unsent.counts.extend(sends)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._unsent = _NOTHING
            # what the peer sent before its end can still be read
            self._ended()
            msg = "the connection is gone"
            raise PeerLostError(msg) from error
        return True

    def _ended(self) -> None:
        if not self.lost:
            self.lost = True
            if self._end is not None:
                os.write(self._end[1], b"\0")

    def close(self) -> None:
        """End the connection; idempotent. Its descriptors are closed when this object is collected."""
        if fork.is_forked_child():
            return
        if self._socket.owned.are_intact:
            with contextlib.suppress(OSError):
                # wakes threads that wait for it
                self._socket.shutdown(socket.SHUT_RDWR)
        self._ended()

    def abandon(self) -> None:
        """In a process forked by user code: close the descriptor without a shutdown."""
        self._order = threading.Lock()
        self.lost = True
        self._socket.close()

    @unless_finalizing
    def __del__(self) -> None:
        if self._end is not None:
            for fd in self._end:
                os.close(fd)
