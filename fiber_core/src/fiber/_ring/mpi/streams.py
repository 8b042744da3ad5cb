"""A command on this host: its streams as events, its processes ended with it.

A host name of its own for a thread and what it starts, where the system and its user may do that.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

__all__ = ["Command", "Execution", "rename"]

_PIECE = 64 * 1024
#: seconds that what a command left behind may keep its output open after its end
_LINGER = 1.0


class Execution(Protocol):
    """A command that runs somewhere."""

    def feed(self, data: bytes) -> None:
        """Write to its standard input; empty data ends that."""

    def signal(self, number: int) -> None:
        """Send a signal to its processes."""


class Command:
    """A command and its threads; every method may be called from any thread.

    Args:
        argv: program and arguments.
        env: its whole environment.
        out: called with 1 or 2 and what it wrote.
        ended: called once with its exit code, or minus its signal, after all of its output.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        out: Callable[[int, bytes], None],
        ended: Callable[[int], None],
    ) -> None:
        self._out, self._ended = out, ended
        self._process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # a group of its own, that signals go to
            start_new_session=True,
        )
        self._input_lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self._waiter: threading.Thread | None = None

    def begin(self) -> None:
        """From now on its output and its end are told."""
        streams = ((1, self._process.stdout), (2, self._process.stderr))
        self._readers = [self._start(self._read, number, stream) for number, stream in streams]
        self._waiter = self._start(self._wait)

    @property
    def pid(self) -> int:
        """Its process id, which is that of its group too."""
        return self._process.pid

    def feed(self, data: bytes) -> None:
        """Write to its standard input; empty data ends that."""
        stream = self._process.stdin
        assert stream is not None
        # one that ended, or closed its input, reads no more
        with self._input_lock, contextlib.suppress(OSError, ValueError):
            if not data:
                stream.close()
            while data:
                data = data[stream.write(data) :]

    def signal(self, number: int) -> None:
        """Send a signal to its group."""
        # of a group that has ended nothing is left, and nobody else's has its number while
        # its first process is not waited for
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL to its group."""
        self.signal(signal.SIGKILL)

    def join(self, timeout: float | None = None) -> None:
        """Wait until ``ended`` was called."""
        if self._waiter is not None:
            self._waiter.join(timeout)

    def _start(self, target: Callable[..., None], *args: object) -> threading.Thread:
        name = f"fiber-command-{self._process.pid}"
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def _read(self, number: int, stream: IO[bytes]) -> None:
        while data := os.read(stream.fileno(), _PIECE):
            self._out(number, data)

    def _wait(self) -> None:
        code = self._process.wait()
        self.feed(b"")
        for reader in self._readers:
            reader.join(_LINGER)
        self._ended(code)
        # what a process that lingers writes now goes nowhere
        for stream, reader in zip(
            (self._process.stdout, self._process.stderr), self._readers, strict=True
        ):
            reader.join()
            assert stream is not None
            stream.close()


_CLONE_NEWUTS = 0x04000000


if sys.platform == "linux":

    def rename(name: str) -> bool:
        """Give this thread, and the processes that it starts from now on, a host name of their own.

        Returns:
            False where that cannot be done; nothing has changed then.
        """
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        encoded = name.encode()
        if libc.unshare(_CLONE_NEWUTS) != 0:
            return False
        return bool(libc.sethostname(encoded, len(encoded)) == 0)

else:

    def rename(name: str) -> bool:  # noqa: ARG001 - as above
        """Give this thread a host name of its own: not here."""
        return False
