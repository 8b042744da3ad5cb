"""Listening side of Unix sockets between processes of one host, on the handler thread.

Apart from :mod:`~fiber._wire.endpoint`, which uses this or nng for each address, so that a process
imports only the one it needs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from fiber._base.sockets import accept_on
from fiber._base.threads import Reactor
from fiber._wire import fork, frames
from fiber._wire.dialer import SCHEME
from fiber._wire.identity import Credentials
from fiber.exceptions import TransportError, WireError

_CHUNK = 256 * 2**10
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

    window: int | None = None
    #: the handler thread alone reads
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

    def _readable(self, connection: _Connection) -> None:
        if connection.is_closed:
            return
        gap = connection.deframer.gap
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
            if gap is None:
                received = connection.deframer.feed(self._chunk[:count])
            else:
                frame = connection.deframer.fill(count)
                received = [] if frame is None else [frame]
        except WireError as error:
            # the start of the next frame is unknown: stop reading
            self._reactor.remove_reader(connection.fd)
            self._on_broken(connection.number, error)
            return
        for frame in received:
            self._on_frame(connection.number, frame)

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
