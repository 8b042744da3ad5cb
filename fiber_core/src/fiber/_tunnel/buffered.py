"""A socket that never blocks, on a reactor: bytes in to a callback, bytes out when it takes them."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable, Iterable

from fiber._tunnel.greeting import LONGEST, Records
from fiber._wire.reactor import Reactor
from fiber.exceptions import WireError

__all__ = ["Buffered", "Lines"]

#: bytes read at once
_READ = 256 * 2**10
#: most pieces handed to the system at once
_PIECES = 64


class Buffered:
    """All methods are for the reactor's thread, and so are the callbacks.

    Args:
        reactor: that waits for it.
        sock: a connected socket, or one whose connecting is under way; owned from now on.
        on_data: called with bytes that came.
        on_end: called once when no more come; with the error where it broke.
        on_room: called whenever everything written was taken.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        on_data: Callable[[bytes], None],
        on_end: Callable[[OSError | None], None],
        on_room: Callable[[], None] = lambda: None,
    ) -> None:
        sock.setblocking(False)
        self._reactor = reactor
        self._socket = sock
        self._on_data = on_data
        self._on_end = on_end
        self._on_room = on_room
        self._records: Records | None = None
        self._out: deque[memoryview] = deque()
        #: bytes that were not taken yet
        self.waiting = 0
        self._reading = True
        self._ended = self._broken = False
        self._finishing = False
        self._closed = False
        self._watch()

    def write(self, pieces: Iterable[bytes]) -> None:
        """Have bytes sent; what has broken takes none."""
        if self._closed or self._broken:
            return
        for piece in pieces if self._records is None else self._records.protect(pieces):
            if piece:
                self._out.append(memoryview(piece))
                self.waiting += len(piece)
        self._flush()

    def finish(self) -> None:
        """Say the end once everything written was taken."""
        self._finishing = True
        self._flush()

    def read(self, reading: bool) -> None:
        """Go on reading, or leave what comes where it is."""
        if reading is not self._reading:
            self._reading = reading
            self._watch()

    def protect(self, records: Records, rest: bytes) -> None:
        """From now on all bytes travel in records, both ways.

        Args:
            records: of this stream.
            rest: what was read of them already.
        """
        self._records = records
        if rest:
            # who is called with what is in them may be another one by then
            self._reactor.call_soon(lambda: self._arrived(rest))

    def hand_over(
        self,
        *,
        on_data: Callable[[bytes], None],
        on_end: Callable[[OSError | None], None],
        on_room: Callable[[], None],
    ) -> None:
        """It is somebody else's from now on, who is called."""
        self._on_data = on_data
        self._on_end = on_end
        self._on_room = on_room

    def close(self) -> None:
        """Close it; idempotent."""
        if not self._closed:
            self._closed = True
            self._reactor.watch(self._socket.fileno(), None, None)
            self._socket.close()

    def abandon(self) -> None:
        """In a process forked by the user: close the descriptor, and nothing else."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.close()

    def _watch(self) -> None:
        if self._closed:
            return
        self._reactor.watch(
            self._socket.fileno(),
            self._readable if self._reading and not self._ended else None,
            self._flush if self._out or self._finishing else None,
        )

    def _readable(self) -> None:
        if self._closed or not self._reading:
            return
        try:
            data = self._socket.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._over(error)
            return
        if data:
            self._arrived(data)
        else:
            self._over(None)

    def _arrived(self, data: bytes) -> None:
        if self._records is None:
            self._on_data(data)
            return
        try:
            for piece in self._records.feed(data):
                if self._closed:
                    return
                self._on_data(piece)
        except WireError as error:
            self._over(OSError(str(error)))

    def _flush(self) -> None:
        if self._closed:
            return
        wrote = bool(self._out)
        try:
            while self._out:
                pieces = [self._out[n] for n in range(min(_PIECES, len(self._out)))]
                self._taken(self._socket.sendmsg(pieces))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._over(error)
            return
        if not self._out and self._finishing:
            self._finishing = False
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
        self._watch()
        if wrote and not self._out:
            self._on_room()

    def _taken(self, count: int) -> None:
        self.waiting -= count
        while count:
            first = self._out[0]
            if len(first) > count:
                self._out[0] = first[count:]
                return
            count -= len(first)
            self._out.popleft()

    def _over(self, error: OSError | None) -> None:
        # it may end first, and break while we still write
        if self._closed or self._broken or (self._ended and error is None):
            return
        self._ended = True
        if error is not None:
            self._broken = True
            self._finishing = False
            self._out.clear()
            self.waiting = 0
        self._watch()
        self._on_end(error)


class Lines:
    """The first lines of a stream, until what follows is something else.

    Args:
        reactor: that waits for it.
        sock: the stream; owned from now on.
        on_line: called with each line.
        on_end: called once when the stream ended, or says what is no line.
    """

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        *,
        on_line: Callable[[str], None],
        on_end: Callable[[OSError | None], None],
    ) -> None:
        #: both may be others later
        self.on_line = on_line
        self.on_end = on_end
        self._partial = b""
        self._taken = False
        self._skipped = 0
        self._then: Callable[[], None] = lambda: None
        self._stream = Buffered(reactor, sock, on_data=self._data, on_end=self._over)

    def say(self, line: str) -> None:
        """Send a line."""
        self._stream.write([line.encode() + b"\n"])

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._stream.write([data])

    def skip(self, count: int, then: Callable[[], None]) -> None:
        """Of what comes next take no notice, and then do something."""
        self._skipped, self._then = count, then
        rest, self._partial = self._partial, b""
        self._data(rest)

    def protect(self, records: Records) -> None:
        """From now on all lines and bytes travel in records, both ways."""
        rest, self._partial = self._partial, b""
        self._stream.protect(records, rest)

    def take(self) -> tuple[Buffered, bytes]:
        """The stream, to be handed over, and what came behind the last line."""
        self._taken = True
        rest, self._partial = self._partial, b""
        return self._stream, rest

    def close(self) -> None:
        """Close the stream; nothing is called any more."""
        self._taken = True
        self._stream.close()

    def abandon(self) -> None:
        """In a process forked by the user."""
        self._stream.abandon()

    def _data(self, data: bytes) -> None:
        if self._skipped:
            count = min(self._skipped, len(data))
            self._skipped -= count
            data = data[count:]
            if not self._skipped:
                self._then()
                self._data(data)
            return
        self._partial += data
        while not self._taken and b"\n" in self._partial:
            line, _, self._partial = self._partial.partition(b"\n")
            self.on_line(line[:LONGEST].decode("ascii", "replace"))
        if len(self._partial) > LONGEST and not self._taken:
            self._over(OSError("no line, but bytes without an end"))

    def _over(self, error: OSError | None) -> None:
        if not self._taken:
            self.close()
            self.on_end(error)
