"""Supervisor's end of one channel: messages in and out of a :class:`~fiber._base.sockets.Buffered` socket.

Apart from ``server``, so that it can be tested without one, and for agents of backends, which have
messages of their own.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from fiber._agent.supervisor.descriptors import Descriptors
from fiber._agent.supervisor.jobs import Owner
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._base.sockets import Buffered
from fiber._base.threads import Loop
from fiber._wire.descriptors import borrowed_socket
from fiber.exceptions import WireError


class Channel:
    """Reads messages as they come and queues those that the peer has not taken yet.

    Args:
        descriptor: the socket, owned by ``descriptors``.
        owner: the process at the other end; None for the master.
        loop: event loop that watches the socket.
        descriptors: owner of the socket.
        on_message: called with the channel and each message.
        on_end: called once when the peer has closed its end, with "", or sent what
            cannot be decoded, with the error.
        on_room: called whenever the peer has taken some of what waits.
        encode: makes a frame of a message.
        decoder: makes messages of frames.
    """

    def __init__(
        self,
        descriptor: int,
        *,
        owner: Owner,
        loop: Loop,
        descriptors: Descriptors,
        on_message: Callable[[Channel, Any], None],
        on_end: Callable[[Channel, str], None] = lambda *_: None,
        on_room: Callable[[], None] = lambda: None,
        encode: Callable[[Any], bytes] = encode,
        decoder: Decoder | None = None,
    ) -> None:
        self.owner = owner
        self._descriptor = descriptor
        self._descriptors = descriptors
        self._on_message = on_message
        self._on_end = on_end
        self._encode = encode
        self._decoder = decoder or Decoder()
        self._open = True
        self._stream = Buffered(
            loop,
            borrowed_socket(descriptor),
            on_data=self._receive,
            on_end=lambda _: self._end(""),
            on_room=on_room,
        )

    @property
    def is_open(self) -> bool:
        """False once either end was closed."""
        return self._open

    @property
    def waiting(self) -> int:
        """Bytes that the peer has not taken yet."""
        return self._stream.waiting

    @property
    def is_idle(self) -> bool:
        """True where nothing is half read and nothing waits to be read or written."""
        self._stream.receive()
        return not (self._stream.waiting or self._decoder.pending)

    def send(self, *messages: object) -> None:
        """Queue messages; they are dropped where the peer has gone."""
        if self._open and messages:
            self._stream.write([self._encode(message) for message in messages])

    def close(self) -> None:
        """Close this end. Idempotent."""
        if self._open:
            self._open = False
            self._descriptors.release(self._descriptor)
            self._stream.close()

    def flush(self, timeout: float) -> None:
        """Write what is queued; give up when the peer takes nothing for ``timeout`` seconds."""
        poll = select.poll()
        while self._open and self._stream.waiting:
            poll.register(self._descriptor, select.POLLOUT)
            if not poll.poll(timeout * 1000):
                return
            self._stream.flush()

    def _receive(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            for message in self._decoder.messages():
                self._on_message(self, message)
                if not self._open:
                    return
        except WireError as error:
            self._end(str(error))

    def _end(self, reason: str) -> None:
        if self._open:
            self.close()
            self._on_end(self, reason)
