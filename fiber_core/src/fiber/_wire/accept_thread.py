"""An accept loop on a thread of its own, for small services that need no reactor."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["AcceptThread", "private_listener"]


class AcceptThread:
    """Thread that accepts connections and passes each to a function, until closed.

    Args:
        listener: the listening socket; closed with this.
        serve: called with each connection; must close it.
        name: name of the thread.
        thread_per_connection: call ``serve`` on a new thread for each connection, where it may take
            long; otherwise connections are served one after another.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], None],
        *,
        name: str,
        thread_per_connection: bool = False,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._name = name
        self._thread_per_connection = thread_per_connection
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting; connections being served go on. Idempotent."""
        # wakes accept(), which close() alone does not
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                connection.setblocking(True)
            except ConnectionAbortedError:
                # closed by the dialer before it was accepted
                continue
            except OSError:
                return
            if self._thread_per_connection:
                threading.Thread(
                    target=self._serve, args=(connection,), name=f"{self._name}-call", daemon=True
                ).start()
            else:
                self._serve(connection)


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
