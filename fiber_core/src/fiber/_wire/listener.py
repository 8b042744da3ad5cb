"""The listener's end of streams between processes of one host, on the handler thread."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence

from fiber._wire import fork
from fiber._wire import frames as framing
from fiber._wire import frames as wire
from fiber._wire.dialer import SCHEME
from fiber._wire.identity import Credentials
from fiber._wire.reactor import Reactor
from fiber.exceptions import TransportError, WireError

log = logging.getLogger("fiber")

_CHUNK = 256 * 2**10
#: seconds until connections are taken in again after there was no descriptor for one
_PAUSE = 0.1
#: connections that may wait to be taken in; the kernel has a limit of its own
_BACKLOG = 4096
# numbers of pipes, which nng gives out up to 2**31
_numbers = itertools.count(2**32)


class _Line:
    """One connection."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number
        self.fd = connection.fileno()
        self.deframer = framing.Deframer(wire.MAX_UNPROVEN)
        self.lock = threading.Lock()
        #: what the peer had no room for
        self.waiting: deque[memoryview] = deque()
        self.is_closed = False


class UnixListening:
    """Any number of addresses and peers; every callback runs on the handler thread.

    What a peer has no room for waits here, so there is no window.

    Args:
        on_opened: called with the number of a new connection.
        on_frame: called with a frame and the number of its connection.
        on_broken: called with a number and what is wrong with what came.
        on_closed: called with the number of a connection that has ended.
    """

    window: int | None = None

    def __init__(
        self,
        reactor: Reactor,
        *,
        on_opened: Callable[[int], None],
        on_frame: Callable[[int, bytearray], None],
        on_broken: Callable[[int, WireError], None],
        on_closed: Callable[[int], None],
        max_frame: int = wire.MAX_FRAME,
    ) -> None:
        fork.check()
        self._reactor = reactor
        self._on_opened = on_opened
        self._on_frame = on_frame
        self._on_broken = on_broken
        self._on_closed = on_closed
        self._max_frame = max_frame
        self._listeners: list[tuple[socket.socket, str]] = []
        self._lines: dict[int, _Line] = {}
        self._chunk = memoryview(bytearray(_CHUNK))
        self._closed = False
        fork.register(self)

    def listen(self, url: str, credentials: Credentials) -> str:
        """Listen on one more address; returns it. Who dials is proved later, by the handshake.

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
        self._reactor.add_reader(listener.fileno(), lambda: self._accept(listener))
        return url

    def trust(self, number: int) -> None:
        """A peer has proved who it is: its frames may be large."""
        line = self._lines.get(number)
        if line is not None:
            line.deframer.limit = self._max_frame

    def send(self, number: int, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
        """Send one frame, now or when the peer has room; nothing where it is gone."""
        fork.check()
        line = self._lines.get(number)
        if line is None:
            return
        buffers, size = framing.parts(head, pieces)
        with line.lock:
            if line.is_closed:
                return
            if line.waiting:
                line.waiting.extend(framing.after(buffers, 0))
                return
            sent = _offer(line, buffers)
            if sent < size:
                line.waiting.extend(framing.after(buffers, sent))
                self._reactor.call_soon(lambda: self._watch(line))

    def peer_address(self, number: int) -> tuple[str, int] | str:
        """Nothing: it is on this host."""
        return ""

    def close_pipe(self, number: int) -> None:
        """Cut one peer off."""
        line = self._lines.get(number)
        if line is not None:
            self._reactor.call_soon(lambda: self._end(line))

    def close(self) -> None:
        """End every connection and every listener; idempotent."""
        if self._closed or fork.is_stranger():
            return
        self._closed = True
        self._reactor.call_and_wait(self._close_all)

    def abandon(self) -> None:
        """In a process forked by the user: let go of the descriptors, and tell nobody."""
        self._closed = True
        for listener, _ in self._listeners:
            listener.close()
        for line in list(self._lines.values()):
            line.socket.close()

    # -- on the handler thread

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.warning("fiber: a connection has to wait: %s; see `ulimit -n`", error)
                fd = listener.fileno()
                self._reactor.remove_reader(fd)
                self._reactor.call_later(_PAUSE, lambda: self._again(listener))
                return
            connection.setblocking(False)
            line = _Line(connection, next(_numbers))
            self._lines[line.number] = line
            self._on_opened(line.number)
            self._reactor.add_reader(line.fd, lambda line=line: self._readable(line))  # type: ignore[misc]

    def _again(self, listener: socket.socket) -> None:
        if not self._closed:
            self._reactor.add_reader(listener.fileno(), lambda: self._accept(listener))

    def _readable(self, line: _Line) -> None:
        if line.is_closed:
            return
        gap = line.deframer.gap
        try:
            count = line.socket.recv_into(self._chunk if gap is None else gap)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self._end(line)
            return
        try:
            if gap is None:
                frames = line.deframer.feed(self._chunk[:count])
            else:
                frame = line.deframer.fill(count)
                frames = [] if frame is None else [frame]
        except WireError as error:
            # where its next frame begins is unknown
            self._reactor.remove_reader(line.fd)
            self._on_broken(line.number, error)
            return
        for frame in frames:
            self._on_frame(line.number, frame)

    def _watch(self, line: _Line) -> None:
        # here only, where lines are closed: another may have the descriptor's number by now
        if not line.is_closed:
            self._reactor.add_writer(line.fd, lambda: self._writable(line))

    def _writable(self, line: _Line) -> None:
        with line.lock:
            if line.is_closed:
                return
            buffers = list(line.waiting)[:64]
            left = framing.after(buffers, _offer(line, buffers))
            for _ in buffers:
                line.waiting.popleft()
            line.waiting.extendleft(reversed(left))
            if not line.waiting:
                self._reactor.remove_writer(line.fd)

    def _end(self, line: _Line) -> None:
        if line.is_closed:
            return
        self._reactor.remove_reader(line.fd)
        with line.lock:
            line.is_closed = True
            line.waiting.clear()
            line.socket.close()
        del self._lines[line.number]
        self._on_closed(line.number)

    def _close_all(self) -> None:
        for listener, path in self._listeners:
            self._reactor.remove_reader(listener.fileno())
            listener.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - no need of another object
        self._listeners.clear()
        for line in list(self._lines.values()):
            self._end(line)


def _offer(line: _Line, buffers: Sequence[wire.Buffer]) -> int:
    """Bytes that the kernel took; the end of a peer shows when it is read."""
    try:
        if len(buffers) == 1:
            return line.socket.send(buffers[0], socket.MSG_NOSIGNAL)
        return line.socket.sendmsg(buffers, (), socket.MSG_NOSIGNAL)
    except (BlockingIOError, InterruptedError):
        return 0
    except OSError:
        # nobody reads it: what is sent may go
        return sum(map(len, buffers))
