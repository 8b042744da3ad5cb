"""Output of a job on its way to the parent, beside the job's own log.

Apart from ``server``, so that the queue between the two threads has a file and tests of its own.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from fiber._agent.supervisor import messages
from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.output import LinePrefix, Sink
from fiber._base.threads import Loop

__all__ = ["ForwardingSink", "OutputForwarder", "open_sinks"]

#: bytes in one message
_PIECE = 1 << 16
#: bytes on their way above which writers are held back, and below which they may go on
_HIGH, _LOW = 1 << 20, 1 << 19


class OutputForwarder:
    """Queue of output for the parent, from the event loop to the parent link's thread.

    While there is no connection the latest are kept: writers are not held back for a parent that may
    never come back, and the job's log has everything.

    Args:
        wake: wakes the thread of the parent link.
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
        """True while writers are to be held back, because the parent reads more slowly."""
        if self._connected and self._size > _HIGH:
            self._held = True
        return self._held

    @property
    def may_resume(self) -> bool:
        """True where writers were held back and need not be any more."""
        return self._held and (not self._connected or self._size < _LOW)

    def resume(self) -> None:
        """Note that writers go on."""
        self._held = False

    def put(self, stream: int, data: bytes) -> None:
        """Add output of stream 1 or 2."""
        with self._lock:
            for start in range(0, len(data), _PIECE):
                self._pieces.append((stream, data[start : start + _PIECE]))
            self._size += len(data)
            while not self._connected and self._size > _HIGH and len(self._pieces) > 1:
                _, dropped = self._pieces.popleft()
                self._size -= len(dropped)
                self._lost += len(dropped)
        self._wake()

    def set_connected(self, connected: bool) -> None:
        """Note whether there is a connection to the parent."""
        with self._lock:
            self._connected = connected

    def take(self) -> messages.Output | None:
        """Remove and return the next message to send; None where there is none."""
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


class ForwardingSink(Sink):
    """A sink that writes to the job's own output and to the parent.

    Args:
        descriptor: 1 or 2.
        loop: event loop that watches the descriptor.
        descriptors: owner of descriptors that are opened here.
        on_room: called when writers that were held back may go on.
        forwarder: queue of output for the parent.
        prefix: text before each line that the parent gets.
    """

    def __init__(
        self,
        descriptor: int,
        loop: Loop,
        descriptors: Descriptors,
        on_room: Callable[[], None],
        forwarder: OutputForwarder,
        prefix: bytes,
    ) -> None:
        super().__init__(descriptor, loop, descriptors, on_room)
        self._stream = descriptor
        self._forwarder = forwarder
        self._prefix = LinePrefix(prefix)

    @property
    def is_full(self) -> bool:
        """True while writers are to be held back, for either reader."""
        return super().is_full or self._forwarder.is_full

    def write(self, data: bytes) -> None:
        """Queue bytes for the job's own output and for the parent."""
        if data:
            self._forwarder.put(self._stream, self._prefix.feed(data))
        super().write(data)


def open_sinks(
    loop: Loop,
    descriptors: Descriptors,
    on_room: Callable[[], None],
    forwarder: OutputForwarder | None,
    prefix: bytes,
) -> tuple[Sink, ...]:
    """Sinks of standard output and error; with a forwarder the parent gets their bytes too."""
    if forwarder is None:
        return tuple(Sink(number, loop, descriptors, on_room) for number in (1, 2))
    return tuple(
        ForwardingSink(number, loop, descriptors, on_room, forwarder, prefix) for number in (1, 2)
    )
