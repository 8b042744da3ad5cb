"""Sockets that never block, on an event loop: :class:`Buffered` connections, and accepting them.

Needs the standard library alone, for it runs on hosts without Fiber too.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Callable, Iterable

from fiber._base.log import lazy_logger
from fiber._base.threads import Loop

__all__ = ["NO_ROOM", "Buffered", "accept_on", "warn_of_refusal"]

log = lazy_logger()

#: errors that pass: this process or the system has no room for another descriptor or connection
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: bytes read at once
_READ = 256 * 2**10
#: most pieces handed to the system at once
_PIECES = 64


class Buffered:
    """A connection: bytes in to a callback, bytes out when it takes them.

    All methods are for the loop's thread, and so are the callbacks.

    Args:
        loop: that waits for it.
        sock: a connected socket, or one whose connecting is under way; owned from now on.
        on_data: called with bytes that came.
        on_end: called once when no more come; with the error where it broke.
        on_room: called whenever some of what was written was taken.
    """

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        *,
        on_data: Callable[[bytes], None],
        on_end: Callable[[OSError | None], None],
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        sock.setblocking(False)
        self._loop = loop
        self._socket = sock
        self._on_data = on_data
        self._on_end = on_end
        self._on_room = on_room
        # a supervisor has thousands of these, and a deque takes 760 bytes
        self._out: list[memoryview] = []
        #: most bytes to read at once
        self.read_size = _READ
        #: bytes that were not taken yet
        self.waiting = 0
        self._reading = True
        self._ended = self._broken = False
        self._finishing = False
        self._closed = False
        self._watch()

    def write(self, pieces: Iterable[bytes]) -> None:
        """Have bytes sent; what has broken takes none."""
        if self._closed or self._broken:
            return
        for piece in pieces:
            if piece:
                self._out.append(memoryview(piece))
                self.waiting += len(piece)
        self.flush()

    def finish(self) -> None:
        """Say the end once everything written was taken."""
        self._finishing = True
        self.flush()

    def read(self, reading: bool) -> None:
        """Go on reading, or leave what comes where it is."""
        if reading is not self._reading:
            self._reading = reading
            self._watch()

    def close(self) -> None:
        """Close it; idempotent."""
        if not self._closed:
            self._closed = True
            self._loop.watch(self._socket.fileno(), None, None)
            self._socket.close()

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptor, and nothing else."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def _watch(self) -> None:
        if self._closed:
            return
        self._loop.watch(
            self._socket.fileno(),
            self.receive if self._reading and not self._ended else None,
            self.flush if self._out or self._finishing else None,
        )

    def receive(self) -> None:
        """Read what has come; the loop calls it too."""
        if self._closed or not self._reading:
            return
        try:
            data = self._socket.recv(self.read_size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._over(error)
            return
        if data:
            self._on_data(data)
        else:
            self._over(None)

    def flush(self) -> None:
        """Have the system take what it has room for; the loop calls it too."""
        if self._closed:
            return
        waiting = self.waiting
        try:
            while self._out:
                self._taken(self._socket.sendmsg(self._out[:_PIECES]))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._over(error)
            return
        if not self._out and self._finishing:
            self._finishing = False
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        self._watch()
        if self.waiting < waiting:
            self._on_room()

    def _taken(self, count: int) -> None:
        self.waiting -= count
        whole = 0
        for piece in self._out:
            if len(piece) > count:
                break
            count -= len(piece)
            whole += 1
        del self._out[:whole]
        if count:
            self._out[0] = self._out[0][count:]

    def _over(self, error: OSError | None) -> None:
        # it may end first, and break while we still write
        if self._closed or self._broken or (self._ended and error is None):
            return
        self._ended = True
        if error is not None:
            self._broken = True
            self._finishing = False
            self._out.clear()
            self.waiting = 0
        self._watch()
        self._on_end(error)


def accept_on(
    loop: Loop,
    listener: socket.socket,
    on_connection: Callable[[socket.socket], None],
    *,
    pause: float,
) -> None:
    """Accept connections until the listener is closed; on the loop's thread.

    Whoever closes the listener has the loop forget it before.

    Args:
        loop: that waits for them.
        listener: the listening socket, which does not block.
        on_connection: called with each, which does not block either.
        pause: seconds without accepting after the system refused a connection.
    """
    is_refused = False

    def begin() -> None:
        if listener.fileno() >= 0:
            loop.on_readable(listener.fileno(), accept)

    def accept() -> None:
        nonlocal is_refused
        # it may be closed by what is done with a connection
        while listener.fileno() >= 0:
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                # whatever it is, the descriptor stays readable: to try again at once would keep a CPU busy
                if not is_refused:
                    warn_of_refusal(error)
                is_refused = True
                loop.forget(listener.fileno())
                loop.call_later(pause, begin)
                return
            is_refused = False
            connection.setblocking(False)
            on_connection(connection)

    begin()


def warn_of_refusal(error: OSError) -> None:
    """Log that a connection waits since the system does not let this process accept it."""
    hint = (
        "see `ulimit -n`"
        if error.errno in NO_ROOM
        else "does a sandbox (seccomp) forbid accept4()?"
    )
    log.warning("fiber: a connection has to wait: %s; %s", error, hint)
