"""Commands on this host, with callbacks for output and end; and host names of their own for them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol

__all__ = ["Command", "Execution", "set_hostname"]

_CHUNK_SIZE = 64 * 1024


class Execution(Protocol):
    """Interface of a running command, on this host or another."""

    def feed(self, data: bytes) -> None:
        """Write to its standard input; empty data closes it."""

    def signal(self, number: int) -> None:
        """Send a signal to its processes."""


class Command:
    """A command on this host and the threads that read its output; thread-safe.

    Args:
        argv: program and arguments.
        env: the whole environment.
        out: called with 1 or 2 and a piece of output.
        ended: called once with the exit code, or minus the signal, after all output.
        linger: seconds after its end for which its descendants may keep its output open.

    Raises:
        OSError: the command cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        out: Callable[[int, bytes], None],
        ended: Callable[[int], None],
        linger: float,
    ) -> None:
        self._out, self._ended, self._linger = out, ended, linger
        self._process = subprocess.Popen(
            argv,
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # a process group of its own, for signals
            start_new_session=True,
        )
        self._input_lock = threading.Lock()
        self._readers: list[threading.Thread] = []
        self._waiter: threading.Thread | None = None

    def begin(self) -> None:
        """Start the threads that call ``out`` and ``ended``."""
        streams = ((1, self._process.stdout), (2, self._process.stderr))
        self._readers = [self._start(self._read, number, stream) for number, stream in streams]
        self._waiter = self._start(self._wait)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group."""
        return self._process.pid

    def feed(self, data: bytes) -> None:
        """Write to its standard input; empty data closes it."""
        stream = self._process.stdin
        assert stream is not None
        # a command that has ended or closed its input reads no more
        with self._input_lock, contextlib.suppress(OSError, ValueError):
            if not data:
                stream.close()
            while data:
                data = data[stream.write(data) :]

    def signal(self, number: int) -> None:
        """Send a signal to the process group."""
        # the number of a group is not used again until its first process is waited for
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the process group."""
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
        while data := os.read(stream.fileno(), _CHUNK_SIZE):
            self._out(number, data)

    def _wait(self) -> None:
        code = self._process.wait()
        self.feed(b"")
        for reader in self._readers:
            reader.join(self._linger)
        self._ended(code)
        # later output of lingering descendants is discarded
        for stream, reader in zip(
            (self._process.stdout, self._process.stderr), self._readers, strict=True
        ):
            reader.join()
            assert stream is not None
            stream.close()


_CLONE_NEWUTS = 0x04000000


if sys.platform == "linux":

    def set_hostname(name: str) -> bool:
        """Set the host name of this thread and the processes that it starts from now on.

        Returns:
            False where the system or its user does not allow it; nothing has changed then.
        """
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        encoded = name.encode()
        if libc.unshare(_CLONE_NEWUTS) != 0:
            return False
        return bool(libc.sethostname(encoded, len(encoded)) == 0)

else:

    def set_hostname(name: str) -> bool:  # noqa: ARG001 - as above
        """Return False: this system has no UTS namespaces."""
        return False
