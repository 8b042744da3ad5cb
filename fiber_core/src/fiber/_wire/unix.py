"""Unix sockets between two processes of one host; both sides.

The listening side runs on the handler thread; the dialing side has no thread of its own. Apart from
:mod:`~fiber._wire.endpoint` and :mod:`~fiber._wire.link`, which use this or nng for each address, so that
a process imports only the one it needs.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import math
import os
import select
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from fiber._base.interpreter import unless_finalizing
from fiber._base.sockets import NO_ROOM, accept_on
from fiber._base.threads import TURN, Reactor
from fiber._wire import descriptors, fork, frames
from fiber._wire.handshake import Credentials
from fiber._wire.reading import Reading
from fiber.exceptions import PeerLostError, TransportError, WireError

#: how URLs of such sockets begin
SCHEME = "unix://"
_CHUNK = 256 * 2**10
_DIALER_CHUNK = 64 * 2**10
#: most connections that threads that wait read: each takes three descriptors more, and what is asked for
#: one at a time is asked of few
_MOST_SHARED = 16
#: bytes that a thread that waits receives at once
_SIZES = (64 * 2**10,)
#: backlog of connections; the kernel has a limit of its own
_BACKLOG = 4096
# numbers of connections, above those of nng's pipes (up to 2**31)
_numbers = itertools.count(2**32)
_TIME = struct.Struct("@ll")
# for one call: the dialing side's socket itself is one that waits
_AT_ONCE = socket.MSG_DONTWAIT
_ONCE = (_AT_ONCE,)
_FLAGS = (socket.MSG_NOSIGNAL | _AT_ONCE,)


class _Source:
    """One side of a connection, whose frames are looked at before they are consumed, see :class:`~fiber._wire.reading.Source`."""

    def __init__(self, connection: socket.socket, number: int, limit: int) -> None:
        self.socket = connection
        self.number = number
        #: readable where there is something to receive, or the peer is gone
        self.fd = connection.fileno()
        self.deframer = frames.Deframer(limit)
        # what was received and not consumed
        self._held: deque[tuple[int, bytes]] = deque(maxlen=1)

    @property
    def held(self) -> tuple[int, bytes] | None:
        """What was looked at last and not consumed."""
        return self._held[0] if self._held else None

    def peek(self) -> tuple[int, frames.Buffer] | None:
        """The one frame that there is, with the connection's number; an empty one for several, and for a part."""
        if not self._held:
            # received and kept in one call, so that no interrupt can come between the two
            receives = zip((self.number,), map(self.socket.recv, _SIZES, _ONCE), strict=True)
            try:
                self._held.extend(receives)
            except (BlockingIOError, InterruptedError):
                return None
            except OSError:
                return self.number, b""
        frame = frames.sole(self._held[0][1]) if self.deframer.is_between else None
        return self.number, frame or b""

    def consume(self) -> None:
        """Let go what was looked at."""
        self._held.clear()


class _Connection(_Source):
    """An accepted connection and what waits to be sent on it."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        super().__init__(connection, number, frames.MAX_UNPROVEN)
        self.lock = threading.Lock()
        #: buffers that the socket had no room for
        self.unsent: deque[memoryview] = deque()
        #: a frame that is sent with the next one
        self.ahead: frames.Buffer = b""
        self.is_closed = False
        #: its reading, once a thread has waited for one of its frames
        self.reading: Reading | None = None


class UnixListener:
    """Listening sockets and their connections; every callback runs on the handler thread.

    What a peer's socket has no room for is queued here, so there is no window.

    Args:
        on_opened: called with the number of a new connection.
        on_frame: called with a frame and the number of its connection.
        on_broken: called with a number and the error in what was received.
        on_closed: called with the number of a connection that has ended.
        pause: seconds without accepting after there was no descriptor for a connection.
    """

    window = math.inf
    #: each connection has its own
    reading: None = None

    def __init__(
        self,
        reactor: Reactor,
        *,
        on_opened: Callable[[int], None],
        on_frame: Callable[[int, bytearray], None],
        on_broken: Callable[[int, Exception], None],
        on_closed: Callable[[int], None],
        max_frame: int = frames.MAX_FRAME,
        pause: float,
    ) -> None:
        fork.check()
        self._reactor = reactor
        self._on_opened = on_opened
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._on_closed = on_closed
        self._max_frame = max_frame
        self._pause = pause
        self._listeners: list[tuple[socket.socket, str]] = []
        self._connections: dict[int, _Connection] = {}
        # those of them that have a reading
        self._shared = 0
        self._chunk = memoryview(bytearray(_CHUNK))
        self._closed = False
        fork.register(self)

    def listen(self, url: str, credentials: Credentials) -> str:
        """Listen on one more address; returns it. Peers prove themselves later, in the handshake.

        Raises:
            TransportError: the address cannot be bound.
        """
        path = url[len(SCHEME) :]
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            msg = f"cannot listen on {url}: {os.strerror(error.errno or 0).lower()}"
            raise TransportError(msg) from error
        self._listeners.append((listener, path))
        self._reactor.call_soon(
            lambda: accept_on(self._reactor, listener, self._accepted, pause=self._pause)
        )
        return url

    def trust(self, number: int) -> None:
        """Allow large frames from a peer that has proved itself."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.deframer.limit = self._max_frame

    def send(
        self, number: int, head: bytes, pieces: Sequence[frames.Buffer], *, more: bool = False
    ) -> None:
        """Send one frame, now or when the peer has room; nothing where it is gone.

        Args:
            number: the connection's.
            head: the frame's header.
            pieces: its body.
            more: True where another frame follows at once, with which this one is sent if it is small.
        """
        if fork.in_child:
            fork.check()
        connection = self._connections.get(number)
        if connection is None:
            return
        buffers, size = frames.stream_buffers(head, pieces)
        with connection.lock:
            if connection.is_closed:
                return
            if connection.unsent:
                connection.unsent.extend(frames.unsent(buffers, 0))
                return
            if connection.ahead:
                # taken first: interrupted amidst this, the frame is lost, and none is sent twice
                ahead, connection.ahead = connection.ahead, b""
                buffers.insert(0, ahead)
                size += len(ahead)
            elif more and len(buffers) == 1:
                connection.ahead = buffers[0]
                return
            sent = _offer(connection, buffers)
            if sent < size:
                connection.unsent.extend(frames.unsent(buffers, sent))
                self._reactor.call_soon(lambda: self._watch(connection))

    def peer_address(self, number: int) -> tuple[str, int] | str:
        """Return an empty string: the peer is on this host."""
        return ""

    def reading_of(self, number: int) -> Reading | None:
        """The reading of one connection; none at first, where many have one, on other systems than Linux, and at its end."""
        connection = self._connections.get(number)
        if connection is None:
            return None
        has_room = self._shared < _MOST_SHARED
        if connection.reading is None and has_room:
            self._reactor.call_soon(lambda: self._share(connection))
        return connection.reading

    def close_pipe(self, number: int) -> None:
        """Close one connection."""
        connection = self._connections.get(number)
        if connection is not None:
            self._reactor.call_soon(lambda: self._end(connection))

    def close(self) -> None:
        """End every connection and every listener; idempotent."""
        if self._closed or fork.is_forked_child():
            return
        self._closed = True
        self._reactor.call_and_wait(self._close_all)

    def abandon(self) -> None:
        """In a process forked by user code: close the descriptors without a shutdown."""
        self._closed = True
        for listener, _ in self._listeners:
            listener.close()
        for connection in list(self._connections.values()):
            connection.socket.close()

    # -- on the handler thread

    def _accepted(self, accepted: socket.socket) -> None:
        if self._closed:
            accepted.close()
            return
        connection = _Connection(accepted, next(_numbers))
        self._connections[connection.number] = connection
        self._on_opened(connection.number)
        self._reactor.add_reader(connection.fd, functools.partial(self._readable, connection))

    def _share(self, connection: _Connection) -> None:
        """Have threads that wait take part in the reading of a connection."""
        is_shared = connection.is_closed or connection.reading is not None
        if is_shared or self._shared >= _MOST_SHARED:
            return
        read = functools.partial(self._read_shared, connection)
        connection.reading = _reading(connection, self._reactor, read)
        if connection.reading is None:
            return
        self._shared += 1
        self._reactor.on_readable(connection.fd, None)

    def _read_shared(self, connection: _Connection) -> None:
        assert connection.reading is not None
        with connection.reading.lock:
            self._readable(connection)

    def _readable(self, connection: _Connection) -> None:
        if connection.is_closed:
            return
        deframer, gap = connection.deframer, connection.deframer.gap
        held = None if connection.reading is None else connection.held
        if held is not None:
            connection.consume()
            count = len(held[1])
        else:
            try:
                count = connection.socket.recv_into(self._chunk if gap is None else gap)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                count = 0
        if not count:
            self._end(connection)
            return
        try:
            if held is not None:
                received = list(deframer.split(held[1]))
            elif gap is None:
                received = deframer.feed(self._chunk[:count])
            else:
                frame = deframer.fill(count)
                received = [] if frame is None else [frame]
        except (WireError, MemoryError, OSError) as error:
            # the start of the next frame is unknown: stop reading
            if connection.reading is not None:
                connection.reading.stop()
            self._reactor.remove_reader(connection.fd)
            self._on_broken(connection.number, error)
            return
        for one in received:
            self._on_frame(connection.number, one)

    def _watch(self, connection: _Connection) -> None:
        # on the thread that closes connections: the descriptor's number may be reused after that
        if not connection.is_closed:
            self._reactor.on_writable(connection.fd, lambda: self._writable(connection))

    def _writable(self, connection: _Connection) -> None:
        with connection.lock:
            if connection.is_closed:
                return
            buffers = list(connection.unsent)[:64]
            left = frames.unsent(buffers, _offer(connection, buffers))
            for _ in buffers:
                connection.unsent.popleft()
            connection.unsent.extendleft(reversed(left))
            if not connection.unsent:
                self._reactor.on_writable(connection.fd, None)

    def _end(self, connection: _Connection) -> None:
        if connection.is_closed:
            return
        self._reactor.remove_reader(connection.fd)
        if connection.reading is not None:
            connection.reading.stop()
            self._shared -= 1
        with connection.lock:
            connection.is_closed = True
            connection.unsent.clear()
            connection.socket.close()
        del self._connections[connection.number]
        self._on_closed(connection.number)

    def _close_all(self) -> None:
        for listener, path in self._listeners:
            self._reactor.remove_reader(listener.fileno())
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - no need of another object
        self._listeners.clear()
        for connection in list(self._connections.values()):
            self._end(connection)


def _reading(source: _Source, reactor: Reactor, read: Callable[[], None]) -> Reading | None:
    """A reading; None on other systems than Linux, and where there is no descriptor for it."""
    is_possible = sys.platform == "linux"
    try:
        return Reading(source, reactor, read) if is_possible else None
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return None


def _offer(connection: _Connection, buffers: Sequence[frames.Buffer]) -> int:
    """Send buffers; returns the bytes that the kernel took. A lost peer is noticed by reading."""
    try:
        if len(buffers) == 1:
            return connection.socket.send(buffers[0], socket.MSG_NOSIGNAL)
        return connection.socket.sendmsg(buffers, (), socket.MSG_NOSIGNAL)
    except (BlockingIOError, InterruptedError):
        return 0
    except OSError:
        # the peer is gone: drop the data
        return sum(map(len, buffers))


#: a frame that is being sent: what is left of it, the counts of bytes that the kernel took since, and whether
#: no byte of it was sent before
_Unsent: TypeAlias = tuple[Sequence[frames.Buffer], list[int], bool]
_NOTHING: _Unsent = ((), [], True)


class UnixDialer(_Source):
    """One connection. One thread at a time receives, any thread sends.

    A frame whose sender is interrupted midway is finished by the next sender.
    """

    #: True: what was sent is in the kernel and arrives even if this process ends at once
    survives_exit = True
    #: True: :meth:`receive` can wait
    can_wait = True
    #: False: the listener has no window, so a header need not say what has come
    acknowledges = False

    def __init__(self, *, max_frame: int = frames.MAX_FRAME) -> None:
        self._end: tuple[int, int] | None = None
        self._socket = descriptors.OwnedSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(True)
        super().__init__(self._socket, 0, max_frame)
        fork.check()
        self._chunk = memoryview(bytearray(_DIALER_CHUNK))
        #: frames that :meth:`receive` has, for which no descriptor is readable
        self.arrived: deque[bytearray] = deque()
        # True where the last read left no room, so that more may have come
        self._is_full = False
        #: True where the last :meth:`receive` took all that had come
        self.is_drained = True
        self._order = threading.Lock()
        self._unsent = _NOTHING
        # True while a read is under way, after which an interrupt leaves the position unknown
        self._reading = False
        #: True once sending or receiving has met the end of the connection, or this side was closed
        self.lost = False
        fork.register(self)

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to wait for before :meth:`receive`."""
        return (self.fd,)

    @property
    def descriptors(self) -> descriptors.Owned:
        """Descriptors of this connection."""
        return self._socket

    @property
    def end_fd(self) -> int:
        """Readable once :meth:`receive` has met the end of the stream."""
        if self._end is None:
            self._end = os.pipe()
            if self.lost:
                os.write(self._end[1], b"\0")
        return self._end[0]

    def reading(self, reactor: Reactor, read: Callable[[], None]) -> Reading | None:
        """Have ``read`` called on a reactor, and threads that wait read themselves; None where they cannot."""
        return _reading(self, reactor, read)

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
        # longest wait of receive(), as of every call that a signal may come just before
        turn = _TIME.pack(int(TURN), int(TURN % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, turn)
        return credentials

    def receive(self, waits: bool = False) -> tuple[int, bytearray] | None:
        """Receive the next frame; the number has no meaning here.

        Args:
            waits: True to wait for it for up to a turn. An interrupt amidst that ends the connection.

        Returns:
            None where there is none now.

        Raises:
            WireError: the peer announces a frame that is too large.
            ForkedError: this process was forked by user code.
        """
        arrived, deframer = self.arrived, self.deframer
        if self._reading:
            # an interrupt hit the read, so bytes may be lost
            arrived.clear()
            self.close()
            return None
        while not arrived:
            gap = deframer.gap
            if self._held:
                # by a thread that waited for something else; nothing at the end, which comes once more
                arrived.extend(deframer.split(self._held.pop()[1]))
                gap, self._is_full = deframer.gap, True
                if arrived:
                    break
            into = self._chunk if gap is None else gap
            self._reading = True
            try:
                count = self._socket.recv_into(into, 0, 0 if waits else _AT_ONCE)
            except (BlockingIOError, InterruptedError):
                # there are none now
                count = -1
            except OSError:
                count = 0
            if count > 0:
                self._is_full = count == len(into)
                if gap is None:
                    arrived.extend(deframer.feed(into[:count]))
                else:
                    frame = deframer.fill(count)
                    if frame is not None:
                        arrived.append(frame)
            self._reading = False
            if count <= 0:
                if not count:
                    fork.check()
                    self._ended()
                return None
        frame = arrived.popleft()
        self.is_drained = not (arrived or self._is_full)
        return 0, frame

    def send(self, head: Callable[[], bytes], pieces: Sequence[frames.Buffer] = ()) -> None:
        """Send one frame; waits while the listener does not read.

        Args:
            head: makes the header when the frame's turn has come.
            pieces: the body.

        Raises:
            PeerLostError: the peer is gone, or the socket closed.
        """
        with self._order:
            if self._unsent is not _NOTHING:
                self._finish()
            buffers, size = frames.stream_buffers(head(), pieces)
            counts: list[int] = []
            try:
                self._unsent = buffers, counts, True
                if len(buffers) == 1 and not self.lost:
                    # as _finish() has it, which does the rest, and all where there is no room now
                    try:
                        counts.extend(map(self._socket.send, buffers, _FLAGS))
                    except OSError:
                        # met once more there
                        counts.clear()
                    if counts == [size]:
                        self._unsent = _NOTHING
                        return
                self._finish()
            except BaseException:
                _, counts, is_whole = self._unsent
                # interrupted before its first byte: the frame is dropped whole
                if is_whole and not counts:
                    self._unsent = _NOTHING
                raise

    def post(self, head: Callable[[], bytes]) -> None:
        """Does nothing: the listener has no window here, so it needs no acknowledgements."""

    def _finish(self) -> None:
        """Send the rest of the frame under way."""
        while True:
            buffers, counts, _ = self._unsent
            if counts:
                if counts[0] == sum(map(len, buffers)):
                    self._unsent = _NOTHING
                    return
                self._unsent = frames.unsent(buffers, counts[0]), [], False
                continue
            if self.lost:
                fork.check()
                self._unsent = _NOTHING
                msg = "the connection is gone"
                raise PeerLostError(msg)
            try:
                # sent and counted in one call, so that no interrupt can come between the two
                if len(buffers) == 1:
                    counts.extend(map(self._socket.send, buffers, _FLAGS))
                else:
                    counts.extend(map(self._socket.sendmsg, (buffers,), ((),), _FLAGS))
            except (BlockingIOError, InterruptedError):
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                poll.poll()
            except OSError as error:
                self._unsent = _NOTHING
                # what the peer sent before its end can still be read
                self._ended()
                msg = "the connection is gone"
                raise PeerLostError(msg) from error

    def _ended(self) -> None:
        if not self.lost:
            self.lost = True
            if self._end is not None:
                os.write(self._end[1], b"\0")

    def close(self) -> None:
        """End the connection; idempotent. Its descriptors are closed when this object is collected."""
        if fork.is_forked_child():
            return
        if self._socket.are_intact:
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
