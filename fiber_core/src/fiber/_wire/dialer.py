"""The dialler's end of a stream between two processes of one host, without a thread of its own."""

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

from fiber._wire import descriptors, fork, frames
from fiber._wire import frames as framing
from fiber._wire.identity import Credentials
from fiber.exceptions import PeerLostError, TransportError

#: how URLs of such sockets begin
SCHEME = "unix://"
_CHUNK = 64 * 2**10
_TIME = struct.Struct("@ll")
_FLAGS = (socket.MSG_NOSIGNAL,)


class _Unsent:
    """What is left of a frame, and what of that the kernel has taken since."""

    def __init__(self, buffers: Sequence[frames.Buffer], *, is_whole: bool = True) -> None:
        self.buffers = buffers
        self.counts: list[int] = []
        self._is_whole = is_whole

    @property
    def is_whole(self) -> bool:
        """True while nothing of the frame is on its way."""
        return self._is_whole and not self.counts

    def rest(self) -> _Unsent:
        """What is left now."""
        return _Unsent(framing.after(self.buffers, self.counts[0]), is_whole=False)


class UnixDialling:
    """One connection. One thread receives, any thread sends.

    What a sender that is interrupted has begun is finished by the next one.
    """

    #: what was sent arrives, whatever becomes of this process: the kernel has it
    keeps = True

    def __init__(self, *, max_frame: int = frames.MAX_FRAME) -> None:
        self._end: tuple[int, int] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._held = descriptors.Held((self._socket.fileno(),))
        self._socket.setblocking(True)
        fork.check()
        self._chunk = memoryview(bytearray(_CHUNK))
        self._deframer = framing.Deframer(max_frame)
        self._frames: deque[bytearray] = deque()
        self._order = threading.Lock()
        # the frame that is being sent
        self._unsent = _Unsent(())
        # True while nobody could say how much of a frame was read
        self._reading = False
        #: True once the peer is known to be gone, which sending and receiving show, or we closed
        self.lost = False
        #: readable whenever :meth:`receive` has something or the peer is gone
        self.fd = self._socket.fileno()
        fork.register(self)

    @property
    def fds(self) -> tuple[int, ...]:
        """What to wait for before :meth:`receive`."""
        return (self.fd,)

    @property
    def held(self) -> descriptors.Held:
        """The connection's own."""
        return self._held

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
        """True while :meth:`receive` has something that no descriptor tells of."""
        return bool(self._frames)

    def on_taken(self, action: Callable[[], None]) -> None:
        """Nothing: no thread of its own would notice, and the listener does at once."""

    def dial(self, url: str, credentials: Credentials, *, timeout: float = 10.0) -> None:
        """Connect; ``credentials`` are shown later, by the handshake.

        Raises:
            TransportError: nobody listens there, or takes us in within ``timeout`` seconds.
        """
        # a limit of the kernel's: without it, a full queue of a stopped listener lets us wait
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

    def receive(self) -> tuple[int, bytearray] | None:
        """The next frame, or None where there is none now; the number says nothing.

        Raises:
            WireError: the peer announces a frame that is too large.
        """
        fork.check()
        if self._reading:
            # an interrupt came in the very moment, and bytes are missing
            self._frames.clear()
            self.close()
            return None
        while not self._frames:
            gap = self._deframer.gap
            self._reading = True
            count = self._read(self._chunk if gap is None else gap)
            if count > 0:
                if gap is None:
                    self._frames.extend(self._deframer.feed(self._chunk[:count]))
                else:
                    frame = self._deframer.fill(count)
                    if frame is not None:
                        self._frames.append(frame)
            self._reading = False
            if count <= 0:
                return None
        return 0, self._frames.popleft()

    def _read(self, place: memoryview) -> int:
        """Bytes read; 0 at the end, -1 where there are none now."""
        try:
            count = self._socket.recv_into(place)
        except (BlockingIOError, InterruptedError):
            return -1
        except OSError:
            count = 0
        if not count:
            self._ended()
        return count

    def send(self, head: Callable[[], bytes], pieces: Sequence[frames.Buffer] = ()) -> None:
        """Send one frame; waits while the listener does not read.

        Args:
            head: makes the header, when it is this frame's turn.
            pieces: the body.

        Raises:
            PeerLostError: the peer is gone, or the socket closed.
        """
        fork.check()
        with self._order:
            self._finish()
            buffers, _ = framing.parts(head(), pieces)
            try:
                self._unsent = _Unsent(buffers)
                self._finish()
            except BaseException:
                # of what was interrupted before its first byte nobody is to hear
                if self._unsent.is_whole:
                    self._unsent = _Unsent(())
                raise

    def post(self, head: Callable[[], bytes]) -> None:
        """Nothing: on a stream none is lost, so the listener need not hear what was taken in."""

    def _finish(self) -> None:
        """Send what is left of a frame."""
        while self._unsent.buffers:
            unsent = self._unsent
            if unsent.counts:
                self._unsent = unsent.rest()
            elif not self._offer(unsent):
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                poll.poll()

    def _offer(self, unsent: _Unsent) -> bool:
        """Hand the kernel what it takes; False where that is nothing now."""
        if self.lost:
            self._unsent = _Unsent(())
            msg = "the connection is gone"
            raise PeerLostError(msg)
        buffers = unsent.buffers
        try:
            # sent and counted in one call, between which and the next an interrupt may come
            if len(buffers) == 1:
                sends = map(self._socket.send, buffers, _FLAGS)
            else:
                sends = map(self._socket.sendmsg, (buffers,), ((),), _FLAGS)
            unsent.counts.extend(sends)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._unsent = _Unsent(())
            # what the peer said before it went is still to be read
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
        """End the connection; idempotent. Descriptors stay until nobody can look at them."""
        if fork.is_stranger():
            return
        if self._held.are_ours:
            with contextlib.suppress(OSError):
                # wakes whoever waits for it
                self._socket.shutdown(socket.SHUT_RDWR)
        self._ended()

    def abandon(self) -> None:
        """In a process forked by the user: let go of the descriptor, and tell nobody."""
        self._order = threading.Lock()
        self.lost = True
        self._socket.close()

    def __del__(self) -> None:
        if self._held.are_ours:
            self._socket.close()
        else:
            # that number is somebody else's by now, or nobody's
            self._socket.detach()
        if self._end is not None:
            for fd in self._end:
                os.close(fd)
