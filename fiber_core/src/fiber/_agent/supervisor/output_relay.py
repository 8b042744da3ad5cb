"""From the pipe of a process to the terminal, the job's log file and the memory of last lines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.loop import Loop, Timer
from fiber._agent.supervisor.output import LineBuffer, LinePrefix, LineTail
from fiber._agent.supervisor.sink import Sink

__all__ = ["LogFile", "Relay"]

_READ = 1 << 16
#: bytes drained at a process's end: more than a pipe holds, and bounded where others write on
_LAST_WORDS = 1 << 20
#: seconds that the beginning of a line is kept back
_PATIENCE = 0.1


class LogFile:
    """The log of one job, made when its first byte is written.

    Args:
        path: where it is; None where none is kept.
        descriptors: owns its descriptor.
        on_failure: called once with a sentence when it cannot be written.
    """

    def __init__(
        self, path: Path | None, descriptors: Descriptors, on_failure: Callable[[str], None]
    ) -> None:
        self._path = path
        self._descriptors = descriptors
        self._on_failure = on_failure
        self._descriptor: int | None = None
        self._broken = False

    def write(self, data: bytes) -> None:
        """Append bytes; a failure stops this file and nothing else."""
        if not data or self._broken or self._path is None:
            return
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = self._descriptors.own(os.open(self._path, flags, 0o600))
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self._broken = True
            self._on_failure(f"the log {self._path} is incomplete from here: {error}")

    def close(self) -> None:
        """Release the descriptor; later bytes are dropped. Idempotent."""
        self._broken = True
        if self._descriptor is not None:
            self._descriptors.close(self._descriptor)
            self._descriptor = None


class Relay:
    """One pipe of one process.

    Args:
        descriptor: the pipe's read end, non-blocking, owned by ``descriptors``.
        loop: tells when it can be read.
        descriptors: owner of the pipe.
        sink: the terminal; None for jobs that write to their log only.
        log: the job's log.
        tail: the process's last lines.
        prefix: put before each line on the terminal.
        on_end: called when nobody can write to the pipe any more.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        loop: Loop,
        descriptors: Descriptors,
        sink: Sink | None,
        log: LogFile,
        tail: LineTail,
        prefix: bytes = b"",
        on_end: Callable[[Relay], None] = lambda _: None,
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._descriptors = descriptors
        self._sink = sink
        self._log = log
        self._tail = tail
        self._prefix = LinePrefix(prefix)
        self._on_end = on_end
        self._shown = LineBuffer()
        self._logged = LineBuffer()
        self._timer: Timer | None = None
        self._open = True
        self.resume()

    def resume(self) -> None:
        """Read on, after the terminal had no room."""
        if self._open:
            self._loop.on_readable(self._descriptor, self._on_readable)

    def finish(self) -> None:
        """At the end of the process: pass on what is in the pipe, beginnings of lines too.

        The pipe stays open where another process still holds it; what that one writes reaches
        the terminal as it comes.
        """
        budget = _LAST_WORDS
        while self._open and budget > 0:
            size = self._read()
            if size is None:
                break
            budget -= size
        self._flush()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._open:
            self._open = False
            self._flush()
            self._loop.forget(self._descriptor)
            self._descriptors.close(self._descriptor)
            self._on_end(self)

    def _on_readable(self) -> None:
        if self._sink is not None and self._sink.is_full:
            # the process now waits in its own write, as it would on the terminal itself
            self._loop.on_readable(self._descriptor, None)
            return
        self._read()

    def _read(self) -> int | None:
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self.close()
            return None
        self._tail.feed(data)
        self._log.write(self._logged.feed(data))
        self._show(self._shown.feed(data))
        if not self._shown.partial:
            self._cancel()
        elif self._timer is None:
            self._timer = self._loop.call_later(_PATIENCE, self._on_patience_end)
        return len(data)

    def _show(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.write(self._prefix.feed(data))

    def _on_patience_end(self) -> None:
        self._timer = None
        self._show(self._shown.flush())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._cancel()
        self._show(self._shown.flush())
        with contextlib.suppress(OSError):
            self._log.write(self._logged.flush())
