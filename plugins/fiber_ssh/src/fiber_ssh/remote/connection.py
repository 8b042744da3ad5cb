"""One program that talks to an agent: what it is told, and output that it follows."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

from fiber._base.loop import Loop
from fiber_ssh.remote.job import Job
from fiber_ssh.remote.logfile import LogReader, offset_of_tail
from fiber_ssh.remote.wire import Decoder, Message, pack, pack_data

__all__ = ["Connection", "Follower"]

#: output that is on its way to a program that has not said that it took it
_WINDOW = 512 * 1024
_ENOUGH = 256 * 1024


class Follower:
    """Reads one job's output for one program.

    Args:
        number: what the program calls it.
        job: whose output.
        offset: where to begin.
        tail: only the last so many lines of those there are.
        follow: go on until the job has ended.
    """

    def __init__(
        self, number: int, job: Job, *, offset: int, tail: int | None, follow: bool
    ) -> None:
        self.number = number
        self.job = job
        self.follow = follow
        #: bytes that may be sent
        self.credit = _WINDOW
        self._skip = 0
        if tail is not None and os.path.exists(job.log):
            offset, self._skip = offset_of_tail(job.log, tail)
        self._reader: LogReader | None = None
        self._offset = offset

    def next(self) -> tuple[int, bytes, int] | None:
        """Stream, bytes and the offset behind them; None where there is nothing yet."""
        if self._reader is None:
            if not os.path.exists(self.job.log):
                return None
            self._reader = LogReader(self.job.log, self._offset)
        found = self._reader.read()
        if found is None:
            return None
        stream, data = found
        data, self._skip = data[self._skip :], 0
        return stream, data, self._reader.offset

    @property
    def is_over(self) -> bool:
        """True where nothing more will come, once :meth:`next` has nothing."""
        return not self.follow or self.job.has_ended

    def close(self) -> None:
        """Let go of the file."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class Connection:
    """The agent's end of a connection.

    Args:
        sock: it, non-blocking.
        loop: where it is watched while it is open.
        hear: called with each message.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: Loop,
        hear: Callable[[Connection, Message], None],
    ) -> None:
        # whoever is answered so was accepted by an agent that goes on
        sock.send(b"+")
        self.sock = sock
        self.is_open = True
        #: the run whose owner it is, if it is one's
        self.owns: str | None = None
        #: runs of which it wants to know
        self.watches: set[str] = set()
        self.followers: dict[int, Follower] = {}
        self._loop = loop
        self._hear = hear
        self._decoder = Decoder()
        self._out = bytearray()
        loop.on_readable(sock.fileno(), self._receive)

    def _receive(self) -> None:
        try:
            data = self.sock.recv(256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        try:
            for found in self._decoder.feed(data):
                if isinstance(found, dict) and self.is_open:
                    self._hear(self, found)
        except ValueError:
            # it makes no sense
            self.close()

    def send(self, message: Message) -> None:
        """Send a message, as soon as there is room."""
        self._out += pack(message)
        self.flush()

    def flush(self) -> None:
        """Write what can be written."""
        if not self.is_open:
            return
        self._pump()
        while self._out:
            try:
                sent = self.sock.send(memoryview(self._out)[: 1 << 20])
            except BlockingIOError:
                break
            except OSError:
                self.close()
                return
            del self._out[:sent]
            self._pump()
        self._loop.on_writable(self.sock.fileno(), self.flush if self._out else None)

    def follow(self, follower: Follower) -> None:
        """Begin to send output."""
        self.unfollow(follower.number)
        self.followers[follower.number] = follower
        self.flush()

    def unfollow(self, number: int) -> None:
        """Send no more of it."""
        follower = self.followers.pop(number, None)
        if follower is not None:
            follower.close()

    def took(self, number: int, count: int) -> None:
        """The program took so many bytes of output."""
        if number in self.followers:
            self.followers[number].credit += count
            self.flush()

    def _pump(self) -> None:
        for follower in list(self.followers.values()):
            while len(self._out) < _ENOUGH and follower.credit > 0:
                # asked before the look: what was written until then is seen by it
                over = follower.is_over
                found = follower.next()
                if found is None:
                    if over:
                        self.unfollow(follower.number)
                        self._out += pack({"end": follower.number})
                    break
                stream, data, offset = found
                follower.credit -= len(data)
                self._out += pack_data(follower.number, stream, data, offset)

    def close(self) -> None:
        """Close it. Idempotent."""
        if self.is_open:
            self.is_open = False
            for number in list(self.followers):
                self.unfollow(number)
            self._loop.forget(self.sock.fileno())
            self.sock.close()
