"""A stream of a tunnel: the run's handshake, and then frames with codes that only its ends can make.

The handshake is :mod:`fiber._wire.handshake`'s; the side that opened the stream dials. Its context is
the job for which the stream was opened, so that whoever passes the handshake on to another job is
found out. Every frame that follows is::

    I    length of what follows
         frame
    32s  HMAC(key of the direction, number of the frame on this stream, frame)

with keys that are derived from the handshake. So nobody in between can change, add, repeat or
reorder anything. That nothing is cut off at the end is the affair of :mod:`fiber._tunnel.mux`.
What a frame carries is encrypted, if at all, by the processes at its ends.
"""

from __future__ import annotations

import hmac
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator

from fiber._base.sockets import Buffered
from fiber._base.threads import Reactor
from fiber._tunnel.mux import MAX_DATA, Frame
from fiber._wire import frames
from fiber._wire.handshake import DialerHandshake, Hello, ListenerHandshake
from fiber._wire.identity import Credentials
from fiber.exceptions import HandshakeError, WireError

__all__ = ["Records", "TunnelStream", "dialer_handshake", "listener_handshake"]

#: version of the tunnel's frames; both ends are of one release of fiber-core
_CONTEXT = b" tunnel 3 into "
_CODE = 32
_NUMBER = struct.Struct("<Q")
_JOIN_BELOW = 4 * 2**10
#: bytes that the system takes beyond those that are on their way
_UNSENT = 128 * 2**10
_TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", None)
#: bytes of the largest frame, its head and code included
_MAX_RECORD = MAX_DATA + 256


def dialer_handshake(credentials: Credentials, hello: Hello, job: str) -> DialerHandshake:
    """Handshake of the side that opened a stream into a job."""
    return DialerHandshake(credentials, hello, context=_CONTEXT + job.encode())


def listener_handshake(credentials: Credentials, hello: Hello, job: str) -> ListenerHandshake:
    """Handshake of a job into which a stream was opened."""
    return ListenerHandshake(credentials, hello, context=_CONTEXT + job.encode())


class _Codes:
    """Codes of the frames of one direction, one after another."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._count = 0

    def next(self, *parts: bytes | memoryview) -> bytes:
        made = self._keyed.copy()
        made.update(_NUMBER.pack(self._count))
        self._count += 1
        for part in parts:
            made.update(part)
        return made.digest()


class Records:
    """Frames as they travel on a stream.

    Args:
        sent: key of what this side sends.
        received: key of what the other one sends.
    """

    def __init__(self, sent: bytes, received: bytes) -> None:
        self._sent = _Codes(sent)
        self._received = _Codes(received)
        self._deframer = frames.Deframer(_MAX_RECORD)

    def protect(self, sent: Iterable[Frame]) -> list[bytes]:
        """Bytes to write for frames."""
        found: list[bytes] = []
        for head, body in sent:
            length = frames.LENGTH.pack(len(head) + len(body) + _CODE)
            record = length + head, body, self._sent.next(head, body)
            # copying what is small costs less than gathering it
            found += record if len(body) > _JOIN_BELOW else (b"".join(record),)
        return found

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """Yield the frames that are complete with ``data``.

        Raises:
            WireError: it is not what the other side has sent.
        """
        for record in self._deframer.split(data):
            frame = memoryview(record)[:-_CODE]
            code = self._received.next(frame)
            if not hmac.compare_digest(code, bytes(record[-_CODE:])):
                msg = "a frame in a tunnel is not of the process that proved itself"
                raise WireError(msg)
            yield frame


class TunnelStream:
    """One stream; for the reactor's thread, and so are the callbacks.

    Args:
        reactor: that waits for it.
        sock: the stream; owned from now on.
        handshake: of this side.
        on_proven: called once the other side has proved that it is of the run and job.
        on_end: called once with the reason when it ends, unless it was closed here.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        handshake: DialerHandshake | ListenerHandshake,
        *,
        on_proven: Callable[[TunnelStream], None],
        on_end: Callable[[TunnelStream, str], None],
    ) -> None:
        #: called with each frame that follows the handshake
        self.on_frame: Callable[[memoryview], None] = lambda _: None
        self.on_end = on_end
        #: called when some of what waits to be written was taken
        self.on_room: Callable[[], None] = lambda: None
        #: time of the last byte from the other side, and of the last frame to it
        self.heard = self.spoke = self.began = time.monotonic()
        #: True once a byte has come, and once the other side has said of which run it is
        self.has_spoken = self.has_greeted = False
        self._on_proven = on_proven
        self._handshake = handshake
        self._deframer = frames.Deframer(frames.MAX_UNPROVEN)
        self._records: Records | None = None
        self._closed = False
        if sock.family != socket.AF_UNIX:
            # a small frame must not wait until the other side has acknowledged the one before
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if _TCP_NOTSENT_LOWAT is not None:
                # what the system holds back is in front of every message that comes later
                sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT)
        self._buffered = Buffered(
            reactor,
            sock,
            on_data=self._arrived,
            on_end=self._ended,
            on_room=self._has_room,
        )
        if isinstance(handshake, DialerHandshake):
            self._say(*handshake.hello())

    @property
    def waiting(self) -> int:
        """Bytes that were not taken yet."""
        return self._buffered.waiting

    def write(self, sent: Iterable[Frame]) -> None:
        """Send frames, once the other side has proved itself."""
        assert self._records is not None
        self.spoke = time.monotonic()
        self._buffered.write(self._records.protect(sent))

    def close(self) -> None:
        """Close it; nothing is called any more. Idempotent."""
        self._closed = True
        self._buffered.close()

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptor."""
        self._closed = True
        self._buffered.abandon()

    def _arrived(self, data: bytes) -> None:
        self.heard = time.monotonic()
        self.has_spoken = True
        try:
            if self._records is None:
                for frame in self._deframer.split(data):
                    self._greeted(frames.parse(frame))
                return
            for found in self._records.feed(data):
                if self._closed:
                    return
                self.on_frame(found)
        except (WireError, HandshakeError) as error:
            self._failed(str(error))
        except BaseException as error:
            # the rest of the data is lost with it; on another stream it comes again
            self._failed(str(error))
            raise

    def _greeted(self, frame: frames.Frame) -> None:
        if self._records is not None:
            # nothing follows before the other side has had an answer
            msg = "a frame in a tunnel that nobody has asked for"
            raise WireError(msg)
        answer = self._handshake.receive(frame)
        self.has_greeted = True
        if answer is not None:
            self._say(*answer)
        if self._handshake.peer is not None:
            keys = [self._handshake.derive(label) for label in (b"to listener", b"to dialer")]
            if isinstance(self._handshake, ListenerHandshake):
                keys.reverse()
            self._records = Records(*keys)
            self._on_proven(self)

    def _say(self, kind: frames.Kind, body: bytes) -> None:
        head = frames.header(kind, size=len(body))
        self._buffered.write([b"".join(frames.stream_buffers(head, [body])[0])])

    def _has_room(self) -> None:
        self.on_room()

    def _ended(self, error: OSError | None) -> None:
        self._failed("it ended" if error is None else str(error))

    def _failed(self, why: str) -> None:
        if not self._closed:
            self.close()
            self.on_end(self, why)
