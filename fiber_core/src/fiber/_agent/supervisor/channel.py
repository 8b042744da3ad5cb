"""Supervisor's end of one channel: frames in and out of a non-blocking stream socket.

Apart from ``server``, so that it can be tested without one.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.jobs import Owner
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._base.threads import Loop
from fiber.exceptions import WireError

__all__ = ["Channel"]

_READ = 1 << 18


class Channel:
    """Reads messages as they come and queues those that the peer has not taken yet.

    Args:
        descriptor: the socket, non-blocking, owned by ``descriptors``.
        owner: the process at the other end; None for the master.
        loop: event loop that watches the socket.
        descriptors: owner of the socket.
        on_message: called with the channel and each message.
        on_end: called once when the peer has closed its end, with "", or sent what
            cannot be decoded, with the error.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        owner: Owner,
        loop: Loop,
        descriptors: Descriptors,
        on_message: Callable[[Channel, object], None],
        on_end: Callable[[Channel, str], None],
    ) -> None:
        self.owner = owner
        self._descriptor = descriptor
        self._loop = loop
        self._descriptors = descriptors
        self._on_message = on_message
        self._on_end = on_end
        self._decoder = Decoder()
        self._outgoing: deque[bytes] = deque()
        self._open = True
        loop.on_readable(descriptor, self._on_readable)

    @property
    def is_open(self) -> bool:
        """False once either end was closed."""
        return self._open

    @property
    def is_idle(self) -> bool:
        """True where nothing is half read and nothing waits to be read or written."""
        if self._open:
            self._on_readable()
        return not (self._outgoing or self._decoder.pending)

    def send(self, message: object) -> None:
        """Queue a message; it is dropped where the peer has gone."""
        if not self._open:
            return
        self._outgoing.append(encode(message))
        if len(self._outgoing) == 1:
            self._on_writable()

    def close(self) -> None:
        """Close this end. Idempotent."""
        if self._open:
            self._open = False
            self._outgoing.clear()
            self._decoder = Decoder()
            self._loop.forget(self._descriptor)
            self._descriptors.close(self._descriptor)

    def flush(self, timeout: float) -> None:
        """Write what is queued; give up when the peer takes nothing for ``timeout`` seconds."""
        poll = select.poll()
        while self._open and self._outgoing:
            poll.register(self._descriptor, select.POLLOUT)
            if not poll.poll(timeout * 1000):
                return
            self._on_writable()

    def _on_readable(self) -> None:
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return
        except OSError:
            self._end("")
            return
        if not data:
            self._end("")
            return
        self._decoder.feed(data)
        try:
            for message in self._decoder.messages():
                self._on_message(self, message)
                if not self._open:
                    return
        except WireError as error:
            self._end(str(error))

    def _on_writable(self) -> None:
        while self._outgoing:
            frame = self._outgoing[0]
            try:
                written = os.write(self._descriptor, frame)
            except BlockingIOError:
                break
            except OSError:
                self._end("")
                return
            if written == len(frame):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = frame[written:]
        self._loop.on_writable(self._descriptor, self._on_writable if self._outgoing else None)

    def _end(self, reason: str) -> None:
        self.close()
        self._on_end(self, reason)
