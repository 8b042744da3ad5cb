"""What a job writes, for its own log and for its parent, over their connection."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from fiber._agent.supervisor import messages
from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.loop import Loop
from fiber._agent.supervisor.output import LinePrefix, Sink

__all__ = ["EchoSink", "Echoes", "open_sinks"]

#: bytes in one message
_PIECE = 1 << 16
#: bytes on their way above which writers are held back, and below which they may go on
_HIGH, _LOW = 1 << 20, 1 << 19


class Echoes:
    """Bytes on their way to the parent; the line takes them on its own thread.

    While there is no connection the latest are kept: writers are not held back for a parent that may
    never come back, and the job's log has everything.

    Args:
        wake: has the line look for more.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._lost = 0
        self._held = False
        self._connected = False

    @property
    def is_full(self) -> bool:
        """True while writers are to be held back, for the parent takes less than is written."""
        if self._connected and self._size > _HIGH:
            self._held = True
        return self._held

    @property
    def may_let_go(self) -> bool:
        """True where writers were held back and need not be any more."""
        return self._held and (not self._connected or self._size < _LOW)

    def let_go(self) -> None:
        """Writers go on."""
        self._held = False

    def put(self, stream: int, data: bytes) -> None:
        """Add what was written."""
        with self._lock:
            for start in range(0, len(data), _PIECE):
                self._pieces.append((stream, data[start : start + _PIECE]))
            self._size += len(data)
            while not self._connected and self._size > _HIGH and len(self._pieces) > 1:
                _, dropped = self._pieces.popleft()
                self._size -= len(dropped)
                self._lost += len(dropped)
        self._wake()

    def connected(self, is_so: bool) -> None:
        """The parent is there, or is not."""
        with self._lock:
            self._connected = is_so

    def take(self) -> messages.Output | None:
        """The next to send."""
        with self._lock:
            if self._lost:
                lost, self._lost = self._lost, 0
                words = f"fiber: {lost} bytes of output are in the job's log alone\n"
                return messages.Output(2, words.encode())
            if not self._pieces:
                return None
            stream, data = self._pieces.popleft()
            self._size -= len(data)
            return messages.Output(stream, data)


class EchoSink(Sink):
    """A sink whose bytes go to the parent besides.

    Args:
        descriptor: 1 or 2.
        loop: tells when it can be written.
        descriptors: owns what is opened here.
        on_room: called when writers that were held back may go on.
        echoes: on their way to the parent.
        prefix: put before each line there.
    """

    def __init__(
        self,
        descriptor: int,
        loop: Loop,
        descriptors: Descriptors,
        on_room: Callable[[], None],
        echoes: Echoes,
        prefix: bytes,
    ) -> None:
        super().__init__(descriptor, loop, descriptors, on_room)
        self._stream = descriptor
        self._echoes = echoes
        self._prefix = LinePrefix(prefix)

    @property
    def is_full(self) -> bool:
        """True while writers are to be held back, for either reader."""
        return super().is_full or self._echoes.is_full

    def write(self, data: bytes) -> None:
        """Queue bytes for both."""
        if data:
            self._echoes.put(self._stream, self._prefix.feed(data))
        super().write(data)


def open_sinks(
    loop: Loop,
    descriptors: Descriptors,
    on_room: Callable[[], None],
    echoes: Echoes | None,
    prefix: bytes,
) -> tuple[Sink, ...]:
    """Standard output and error, whose bytes go to the parent besides where there are echoes."""
    if echoes is None:
        return tuple(Sink(number, loop, descriptors, on_room) for number in (1, 2))
    return tuple(EchoSink(number, loop, descriptors, on_room, echoes, prefix) for number in (1, 2))
