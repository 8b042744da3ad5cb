"""Writes to the terminal, pipe or file that a supervisor inherited, without ever blocking."""

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

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.loop import Loop
from fiber._wire.descriptors import borrowed

__all__ = ["Sink"]

#: bytes in one write: a pipe that polls as writable takes this many without blocking
_PIECE = 4096
#: buffered bytes above which writers are to be held back, and below which they may go on
_HIGH, _LOW = 1 << 20, 1 << 19


class Sink:
    """A queue of bytes before a descriptor of the starter's.

    The descriptor's flags are shared with its other holders, so it is never made non-blocking:
    a pipe or terminal is opened anew where the system can do that, a socket is told with each
    call, and all else is written a little at a time once it polls as writable.

    Args:
        descriptor: 1 or 2.
        loop: tells when it can be written.
        descriptors: owns what is opened here.
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
            self._socket = borrowed(self._target)
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
        """Queue bytes and write what can be written now."""
        if not data or self._gone:
            return
        self._pending.append(data)
        self._size += len(data)
        if not self._watching:
            self._push()

    def detach(self) -> None:
        """Leave the descriptors to their owner, in a forked child or at the end."""
        if self._socket is not None:
            self._socket.detach()

    def drain(self, patience: float) -> None:
        """Write all that is queued; give up when nothing is taken for ``patience`` seconds."""
        poll = select.poll()
        poll.register(self._target, select.POLLOUT)
        last = time.monotonic()
        while self._pending and not self._gone:
            left = patience - (time.monotonic() - last)
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

    def _watch(self, wanted: bool) -> None:
        if wanted == self._watching:
            return
        self._watching = wanted
        try:
            self._loop.on_writable(self._target, self._push if wanted else None)
        except PermissionError:
            # a file that cannot be polled can always be written
            self._watching = False
