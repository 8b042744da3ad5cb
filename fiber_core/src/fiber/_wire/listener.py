"""Listening side of Unix sockets between processes of one host, on the handler thread.

Apart from :mod:`~fiber._wire.endpoint`, which uses this or nng for each address, so that a process
imports only the one it needs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

from fiber._base.sockets import accept_on
from fiber._base.threads import Reactor
from fiber._wire import fork, frames
from fiber._wire.dialer import SCHEME
from fiber._wire.identity import Credentials
from fiber._wire.reading import Action, Look, Reading
from fiber.exceptions import TransportError, WireError

_CHUNK = 256 * 2**10
#: bytes that a thread that waits receives at once
_SIZES = (64 * 2**10,)
#: backlog of connections; the kernel has a limit of its own
_BACKLOG = 4096
# numbers of connections, above those of nng's pipes (up to 2**31)
_numbers = itertools.count(2**32)


class _Connection:
    """An accepted connection and what waits to be sent on it."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self.fd = connection.fileno()
        self.deframer = frames.Deframer(frames.MAX_UNPROVEN)
        self.lock = threading.Lock()
        #: buffers that the socket had no room for
        self.waiting: deque[memoryview] = deque()
        self.is_closed = False
        #: its reading, once a thread has waited for one of its frames
        self.reading: Reading | None = None
        # what was received and not consumed
        self._held: deque[tuple[int, bytes]] = deque(maxlen=1)

    # -- source of its reading

    @property
    def held(self) -> tuple[int, bytes] | None:
        """What was looked at last and not consumed."""
        return self._held[0] if self._held else None

    def peek(self) -> tuple[int, bytes] | None:
        """What there is to receive now, empty at the end, with the connection's number; None for nothing."""
        if not self._held:
            # received and kept in one call, so that no interrupt can come between the two
            receives = zip((self.number,), map(self.socket.recv, _SIZES), strict=True)
            try:
                self._held.extend(receives)
            except (BlockingIOError, InterruptedError):
                return None
            except OSError:
                return self.number, b""
        return self._held[0]

    def consume(self) -> None:
        """Let go what was looked at."""
        self._held.clear()


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
        on_broken: Callable[[int, WireError], None],
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

    def send(self, number: int, head: bytes, pieces: Sequence[frames.Buffer]) -> None:
        """Send one frame, now or when the peer has room; nothing where it is gone."""
        fork.check()
        connection = self._connections.get(number)
        if connection is None:
            return
        buffers, size = frames.stream_buffers(head, pieces)
        with connection.lock:
            if connection.is_closed:
                return
            if connection.waiting:
                connection.waiting.extend(frames.unsent(buffers, 0))
                return
            sent = _offer(connection, buffers)
            if sent < size:
                connection.waiting.extend(frames.unsent(buffers, sent))
                self._reactor.call_soon(lambda: self._watch(connection))

    def peer_address(self, number: int) -> tuple[str, int] | str:
        """Return an empty string: the peer is on this host."""
        return ""

    def wait(self, number: int, look: Look, is_over: Callable[[], bool], timeout: float) -> bool:
        """Read one connection in the handler thread's place, see :meth:`~fiber._wire.reading.Reading.wait`."""
        connection = self._connections.get(number)
        if connection is None:
            return False
        reading, deframer = connection.reading, connection.deframer
        if reading is None:
            if sys.platform == "linux":
                self._reactor.call_soon(lambda: self._share(connection))
            return False

        def look_at(number: int, data: bytes) -> Action | None:
            # of several frames, or of a large one, the handler thread takes up all
            frame = frames.sole(data) if deframer.is_between else None
            return None if frame is None else look(number, frame)

        return reading.wait(look_at, is_over, timeout)

    def wake(self, number: int) -> None:
        """Have the thread in :meth:`wait` look whether it is over."""
        connection = self._connections.get(number)
        if connection is not None and connection.reading is not None:
            connection.reading.wake()

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
        if connection.is_closed or connection.reading is not None:
            return
        self._reactor.on_readable(connection.fd, None)
        connection.reading = Reading(
            connection, self._reactor, functools.partial(self._read_shared, connection)
        )

    def _read_shared(self, connection: _Connection) -> None:
        assert connection.reading is not None
        with connection.reading.lock:
            self._readable(connection)

    def _readable(self, connection: _Connection) -> None:
        if connection.is_closed:
            return
        deframer, gap, held = connection.deframer, connection.deframer.gap, connection.held
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
        except WireError as error:
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
            buffers = list(connection.waiting)[:64]
            left = frames.unsent(buffers, _offer(connection, buffers))
            for _ in buffers:
                connection.waiting.popleft()
            connection.waiting.extendleft(reversed(left))
            if not connection.waiting:
                self._reactor.on_writable(connection.fd, None)

    def _end(self, connection: _Connection) -> None:
        if connection.is_closed:
            return
        self._reactor.remove_reader(connection.fd)
        if connection.reading is not None:
            connection.reading.stop()
        with connection.lock:
            connection.is_closed = True
            connection.waiting.clear()
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
