"""A thread that waits for plain connections, where a selector would be more than is needed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

__all__ = ["Accepting", "private_listener"]


class Accepting:
    """Hands each connection on until it is closed.

    Args:
        listener: where others connect; closed with it.
        serve: gets each connection, and closes it.
        name: of the thread.
        at_once: True where each connection is served on a thread of its own, since serving one may
            take long; False where it does not, and others may wait.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], None],
        *,
        name: str,
        at_once: bool = False,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._name = name
        self._at_once = at_once
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more; what is being served goes on. Idempotent."""
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
                # who dialled has changed its mind
                continue
            except OSError:
                return
            if self._at_once:
                threading.Thread(
                    target=self._serve, args=(connection,), name=f"{self._name}-call", daemon=True
                ).start()
            else:
                self._serve(connection)


def private_listener(path: str, *, backlog: int = 128) -> socket.socket:
    """A Unix socket that only this user can connect to.

    Args:
        path: where; nothing is there yet.
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
