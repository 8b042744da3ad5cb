"""Streams into jobs: programs beside them, whose standard input and output are a socket."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Sequence

from fiber.backend_parts.batch.system import READY
from fiber.exceptions import BackendUnavailableError

__all__ = ["Streams"]


class Streams:
    """The streams of this program; thread-safe.

    Args:
        title: the system's name, for errors.
        timeout: seconds for a stream to be opened.
    """

    def __init__(self, title: str, timeout: float) -> None:
        self._title = title
        self._timeout = timeout
        self._lock = threading.Lock()
        self._open: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def open(self, command: Sequence[str], job: str) -> socket.socket:
        """Run a command whose streams are those of a job; the socket is the caller's.

        Args:
            command: see :meth:`~fiber.backend_parts.batch.system.BatchSystem.stream`.
            job: the job's name, for errors.

        Raises:
            BackendUnavailableError: it does not come up in time.
        """
        ours, theirs = socket.socketpair()
        theirs.setblocking(True)
        with theirs, self._lock:
            self._reap()
            if not self._closed:
                process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                )
                self._open.append(process)
        ours.settimeout(self._timeout)
        try:
            said = b""
            while len(said) < len(READY):
                data = ours.recv(len(READY) - len(said))
                if not data:
                    break
                said += data
        except OSError as error:
            said = str(error).encode()
        if said != READY:
            ours.close()
            reason = said.decode("utf-8", "replace") or "it ended"
            msg = f"no stream into {job} can be opened by {self._title}: {reason}"
            raise BackendUnavailableError(msg)
        ours.setblocking(True)
        return ours

    def close(self) -> None:
        """End all streams. Idempotent."""
        with self._lock:
            self._closed = True
            streams, self._open = self._open, []
        for process in streams:
            process.terminate()
        for process in streams:
            process.wait()

    def _reap(self) -> None:
        self._open = [process for process in self._open if process.poll() is None]
