"""An accept loop on a thread of its own, for small services that need no reactor."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from fiber._base.sockets import NO_ROOM
from fiber.model.timing import Timing

__all__ = ["AcceptThread", "private_listener"]


class AcceptThread:
    """Thread that accepts connections and passes each to a function, until closed.

    Where there is no descriptor or thread for a connection it goes on with the next ones.

    Args:
        listener: the listening socket; closed with this.
        serve: called with each connection; must close it.
        name: name of the thread.
        thread_per_connection: call ``serve`` on a new thread for each connection, where it may take
            long; otherwise connections are served one after another.
        most: connections served at once, with a thread for each; the oldest is shut down where
            there is one more. None: any number.
        pause: seconds without accepting after there was no descriptor for a connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], None],
        *,
        name: str,
        thread_per_connection: bool = False,
        most: int | None = None,
        pause: float = Timing().accept_pause,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._name = name
        self._thread_per_connection = thread_per_connection
        self._most = most
        self._pause = pause
        self._closed = threading.Event()
        self._lock = threading.Lock()
        #: connections that threads serve, the oldest first
        self._served: dict[socket.socket, None] = {}
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting; connections being served go on. Idempotent."""
        self._closed.set()
        # wakes accept(), which close() alone does not
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
                connection.setblocking(True)
            except ConnectionAbortedError:
                # closed by the dialer before it was accepted
                continue
            except OSError as error:
                if error.errno not in NO_ROOM:
                    return
                self._closed.wait(self._pause)
                continue
            if self._thread_per_connection:
                self._start(connection)
            else:
                self._serve(connection)

    def _start(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._served) == self._most:
                oldest = next(iter(self._served))
                del self._served[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._served[connection] = None
        thread = threading.Thread(
            target=self._serve_one, args=(connection,), name=f"{self._name}-call", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # no more threads are started
            self._forget(connection)
            connection.close()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._served.pop(connection, None)


def private_listener(path: str, *, backlog: int = 128) -> socket.socket:
    """Listening Unix socket that only this user can connect to.

    Args:
        path: of the socket; must not exist yet.
        backlog: connections that may wait to be accepted.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(True)
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
