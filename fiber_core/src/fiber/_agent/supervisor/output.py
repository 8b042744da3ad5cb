"""Output of processes: from their pipes to the terminal, the job's log and the last lines.

:class:`OutputRelay` reads one pipe. :class:`Sink` writes to the terminal, pipe or file that the
supervisor inherited, and never blocks. The line classes are pure.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import stat
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fiber._base.threads import Loop, Timer
from fiber._wire.descriptors import Descriptors, borrowed_socket

#: bytes in one write: a pipe that polls as writable takes this many without blocking
_PIECE = 4096
#: buffered bytes above which writers are to be held back, and below which they may go on
_HIGH, _LOW = 1 << 20, 1 << 19


class OutputTarget(Protocol):
    """Where a relay writes what it reads, apart from the job's log."""

    @property
    def is_full(self) -> bool:
        """True while nothing more is to be read."""

    def write(self, data: bytes) -> None:
        """Take bytes; never blocks."""


class Sink:
    """Queue of bytes before an inherited descriptor.

    The descriptor's flags are shared with its other holders, so it is never made non-blocking:
    a pipe or terminal is opened anew where the system can do that, a socket gets a flag with each
    call, and all else is written a little at a time once it polls as writable.

    Args:
        descriptor: 1 or 2.
        loop: event loop that watches the descriptor.
        descriptors: owner of descriptors that are opened here.
        on_room: called when writers that were held back may go on.
    """

    def __init__(
        self,
        descriptor: int,
        loop: Loop,
        descriptors: Descriptors,
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._on_room = on_room
        self._pending: deque[bytes] = deque()
        self._size = 0
        self._watching = False
        self._gone = False
        self._held = False
        self._socket: socket.socket | None = None
        self._target = descriptor
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            self._gone = True
            return
        if stat.S_ISSOCK(mode):
            self._target = descriptors.own(os.dup(descriptor))
            self._socket = borrowed_socket(self._target)
        elif sys.platform == "linux" and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            with contextlib.suppress(OSError):
                self._target = descriptors.own(os.open(f"/proc/self/fd/{descriptor}", flags))

    @property
    def is_full(self) -> bool:
        """True while writers are to be held back; ``on_room`` is called when that is over."""
        self._held = self._held or self._size > _HIGH
        return self._held

    def write(self, data: bytes) -> None:
        """Queue bytes, and write as many as the descriptor takes now."""
        if not data or self._gone:
            return
        self._pending.append(data)
        self._size += len(data)
        if not self._watching:
            self._push()

    def detach(self) -> None:
        """Leave the descriptors to their owner, at the end."""
        if self._socket is not None:
            self._socket.detach()

    def drain(self, timeout: float) -> None:
        """Write all that is queued; give up when nothing is taken for ``timeout`` seconds."""
        poll = select.poll()
        poll.register(self._target, select.POLLOUT)
        last = time.monotonic()
        while self._pending and not self._gone:
            left = timeout - (time.monotonic() - last)
            if left <= 0 or not poll.poll(left * 1000):
                return
            before = self._size
            self._push()
            if self._size < before:
                last = time.monotonic()

    def _push(self) -> None:
        while self._pending and not self._gone:
            chunk = self._pending[0]
            piece = chunk[:_PIECE]
            try:
                if self._must_wait():
                    break
                written = self._put(piece)
            except BlockingIOError:
                break
            except OSError:
                # the reader has gone (EPIPE, EIO): what is written to it goes nowhere, as it would
                # for any program
                self._gone = True
                self._pending.clear()
                self._size = 0
                break
            self._size -= written
            if written == len(chunk):
                self._pending.popleft()
            else:
                self._pending[0] = chunk[written:]
        self._watch(bool(self._pending))
        if self._held and self._size < _LOW:
            self._held = False
            self._on_room()

    def _must_wait(self) -> bool:
        if self._target > 2 or self._socket is not None:
            return False
        poll = select.poll()
        poll.register(self._target, select.POLLOUT)
        return not poll.poll(0)

    def _put(self, piece: bytes) -> int:
        if self._socket is not None:
            return self._socket.send(piece, socket.MSG_DONTWAIT)
        return os.write(self._target, piece)

    def _watch(self, active: bool) -> None:
        if active == self._watching:
            return
        self._watching = active
        try:
            self._loop.on_writable(self._target, self._push if active else None)
        except PermissionError:
            # a file that cannot be polled can always be written
            self._watching = False


#: a line longer than this is passed on in pieces
LONGEST_LINE = 1 << 16


class LineBuffer:
    """Passes whole lines on and keeps a partial line back until :meth:`flush`."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._rest = b""
        self._longest = longest

    @property
    def partial(self) -> bool:
        """True while the beginning of a line is kept back."""
        return bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """Add bytes; returns those that can be passed on."""
        end = data.rfind(b"\n") + 1
        if end:
            ready, self._rest = self._rest + data[:end], data[end:]
        else:
            ready, self._rest = b"", self._rest + data
        if len(self._rest) > self._longest:
            ready, self._rest = ready + self._rest, b""
        return ready

    def flush(self) -> bytes:
        """The beginning of a line that was kept back."""
        rest, self._rest = self._rest, b""
        return rest


class LinePrefix:
    """Puts a text before each line of a stream."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._at_start = True

    def feed(self, data: bytes) -> bytes:
        """The same bytes with the prefix at the start of each line."""
        if not data or not self._prefix:
            return data
        pieces = []
        for line in _lines(data):
            pieces.append(self._prefix + line if self._at_start else line)
            self._at_start = line.endswith(b"\n")
        return b"".join(pieces)


class LineTail:
    """Remembers the last lines of a stream.

    Args:
        count: how many lines.
        width: characters that are kept of each.
    """

    def __init__(self, count: int, width: int = 2000) -> None:
        # there are many that never get one, and a deque takes 760 bytes
        self._lines: list[bytes] = []
        self._count = count
        self._width = width
        self._open = False

    def feed(self, data: bytes) -> None:
        """Add bytes as they were written, in any pieces."""
        for line in _lines(data):
            if self._open and self._lines:
                if len(self._lines[-1]) < self._width:
                    self._lines[-1] += line
            else:
                self._lines.append(line)
            self._open = not line.endswith(b"\n")
        del self._lines[: max(0, len(self._lines) - self._count)]

    def lines(self) -> tuple[str, ...]:
        """The lines as text, without their newlines."""
        return tuple(
            line[: self._width].rstrip(b"\r\n").decode("utf-8", "replace") for line in self._lines
        )


def _lines(data: bytes) -> list[bytes]:
    # bytes.splitlines() would also split at carriage returns, which redraw a line
    pieces = data.split(b"\n")
    last = pieces.pop()
    lines = [piece + b"\n" for piece in pieces]
    return [*lines, last] if last else lines


_READ = 1 << 16
#: bytes drained at a process's end: more than a pipe holds, and bounded where others write on
_MAX_AT_END = 1 << 20


class LogFile:
    """The log of one job, made when its first byte is written.

    Args:
        path: where it is; None where none is kept.
        descriptors: owns its descriptor.
        on_failure: called once with a sentence when something could not be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        descriptors: Descriptors,
        on_failure: Callable[[str], None],
    ) -> None:
        self._path = path
        self._descriptors = descriptors
        self._on_failure: Callable[[str], None] | None = on_failure
        self._descriptor: int | None = None
        self._size = 0
        self._closed = False

    def write(self, data: bytes) -> None:
        """Append bytes, all or none of them: a full disk loses what there is no room for, and no more."""
        if not data or self._closed or self._path is None:
            return
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._descriptor = self._descriptors.own(os.open(self._path, flags, 0o600))
                self._size = os.fstat(self._descriptor).st_size
            view = memoryview(data)
            while view:
                view = view[os.write(self._descriptor, view) :]
            self._size += len(data)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self._descriptor is not None:
            # what is no file has no size
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
        report, self._on_failure = self._on_failure, None
        if report is not None:
            report(f"the log {self._path} is incomplete: {error}")

    def close(self) -> None:
        """Release the descriptor; later bytes are dropped. Idempotent."""
        self._closed = True
        if self._descriptor is not None:
            self._descriptors.close(self._descriptor)
            self._descriptor = None


class OutputRelay:
    """Reader of one output pipe of one process.

    Args:
        descriptor: the pipe's read end, non-blocking, owned by ``descriptors``.
        loop: event loop that watches the pipe.
        descriptors: owner of the pipe.
        sink: the terminal; None for jobs that write to their log only.
        log: the job's log.
        tail: the process's last lines.
        partial_line: seconds for which the beginning of a line is kept back.
        prefix: put before each line on the terminal.
        on_end: called when the pipe has ended.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        loop: Loop,
        descriptors: Descriptors,
        sink: OutputTarget | None,
        log: LogFile,
        tail: LineTail,
        partial_line: float,
        prefix: bytes = b"",
        on_end: Callable[[OutputRelay], None] = lambda _: None,
    ) -> None:
        self._descriptor = descriptor
        self._loop = loop
        self._descriptors = descriptors
        self._sink = sink
        self._log = log
        self._tail = tail
        self._partial_line = partial_line
        self._prefix = LinePrefix(prefix)
        self._on_end = on_end
        self._terminal_lines = LineBuffer()
        self._log_lines = LineBuffer()
        self._timer: Timer | None = None
        self._open = True
        self.resume()

    def resume(self) -> None:
        """Read on, after the terminal had no room."""
        if self._open:
            self._loop.on_readable(self._descriptor, self._on_readable)

    def finish(self) -> None:
        """Pass on all that is in the pipe, partial lines too; called at the end of the process.

        The pipe stays open where another process still holds it; what that one writes reaches
        the terminal as it comes.
        """
        budget = _MAX_AT_END
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
        self._log.write(self._log_lines.feed(data))
        self._show(self._terminal_lines.feed(data))
        if not self._terminal_lines.partial:
            self._cancel()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._partial_line, self._show_partial_line)
        return len(data)

    def _show(self, data: bytes) -> None:
        if self._sink is not None:
            self._sink.write(self._prefix.feed(data))

    def _show_partial_line(self) -> None:
        self._timer = None
        self._show(self._terminal_lines.flush())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._cancel()
        self._show(self._terminal_lines.flush())
        with contextlib.suppress(OSError):
            self._log.write(self._log_lines.flush())
