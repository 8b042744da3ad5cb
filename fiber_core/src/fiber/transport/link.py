"""The dialling side: one proven connection to one other process."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from fiber.exceptions import HandshakeError, PeerLostError, TransportError
from fiber.transport import wire
from fiber.transport.handshake import Dialler, Hello
from fiber.transport.identity import Credentials
from fiber.transport.nng import DiallingSocket
from fiber.transport.wire import Kind, Message

#: frames taken in before the listener is told of it without another message to carry the news
_GRANT_AFTER = wire.WINDOW // 2


class Link:
    """A connection that one thread reads, by :meth:`receive`, and any thread writes.

    Raises:
        TransportError: nobody listens at the URL.
        HandshakeError: the listener is of another run, refused us, or did not answer in time.
    """

    def __init__(
        self,
        url: str,
        credentials: Credentials,
        hello: Hello,
        *,
        timeout: float = 10.0,
        max_frame: int = wire.MAX_FRAME,
        on_closed: Callable[[], None] | None = None,
    ) -> None:
        self.url = url
        self._max_frame = max_frame
        self._taken = 0
        self._told = 0
        self._lock = threading.Lock()
        self._assembler = wire.Assembler()
        self._lost = threading.Event()
        self._on_closed = on_closed
        self._socket = DiallingSocket(on_closed=self._closed, max_frame=max_frame)
        # the end of a pipe makes nng's descriptor readable for nobody, so it gets one of its own
        self._end_read, self._end_write = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._socket.fd, select.POLLIN)
        self._poll.register(self._end_read, select.POLLIN)
        try:
            self._socket.dial(url, credentials)
            #: the process at the other end
            self.peer: Hello = self._shake_hands(credentials, hello, timeout)
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """Readable whenever :meth:`receive` may have something."""
        return self._socket.fd

    @property
    def end_fd(self) -> int:
        """Readable once the other side is gone."""
        return self._end_read

    @property
    def lost(self) -> bool:
        """True once the other side is gone."""
        return self._lost.is_set()

    def send(
        self, kind: Kind, target: int = 0, number: int = 0, segments: Sequence[wire.Buffer] = ()
    ) -> None:
        """Send a message of any size; waits while the listener holds us back.

        Raises:
            PeerLostError: the other side is gone.
        """
        for kind_, target_, number_, size, pieces in wire.split(
            kind, target, number, segments, max_frame=self._max_frame
        ):
            self._transmit(kind_, target_, number_, size, pieces)

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when ``timeout`` seconds have passed.

        Raises:
            PeerLostError: the other side is gone and nothing that it sent is left.
            WireError: the other side talks nonsense.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # asked before looking, so that what came before the end is still handed out
            lost = self.lost
            received = self._socket.receive()
            if received is not None:
                message = self._take(received[1])
                if message is not None:
                    return message
                continue
            if lost:
                raise PeerLostError(self._gone())
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if wait == 0.0:
                return None
            self.wait(wait)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until :meth:`receive` may have something, or the other side is gone."""
        self._poll.poll(None if timeout is None else 1000 * timeout)

    def close(self) -> None:
        """Close the connection; idempotent."""
        self._socket.close()
        with self._lock:
            self._lost.set()
            for fd in (self._end_read, self._end_write):
                if fd >= 0:
                    os.close(fd)
            self._end_read = self._end_write = -1

    def _gone(self) -> str:
        return f"the connection to {self.url} is gone"

    def _closed(self) -> None:
        self._lost.set()
        with self._lock:
            if self._end_write >= 0:
                os.write(self._end_write, b"\0")
        if self._on_closed is not None:
            self._on_closed()

    def _transmit(
        self, kind: Kind, target: int, number: int, size: int, pieces: Sequence[wire.Buffer]
    ) -> None:
        if self.lost:
            raise PeerLostError(self._gone())
        with self._lock:
            self._told = self._taken
            head = wire.header(kind, ack=self._taken, target=target, id=number, size=size)
            try:
                self._socket.send(head, pieces)
            except TransportError as error:
                if self.lost:
                    raise PeerLostError(self._gone()) from error
                raise

    def _take(self, data: bytes) -> Message | None:
        frame = wire.parse(data)
        self._taken += 1
        message = self._assembler.feed(frame)
        if self._taken - self._told >= _GRANT_AFTER:
            self._transmit(Kind.GRANT, 0, 0, 0, ())
        return message

    def _shake_hands(self, credentials: Credentials, hello: Hello, timeout: float) -> Hello:
        dialler = Dialler(credentials, hello)
        deadline = time.monotonic() + timeout
        answer: tuple[Kind, bytes] | None = dialler.hello()
        while dialler.peer is None:
            if answer is not None:
                kind, body = answer
                self._socket.send(wire.header(kind, size=len(body)), [body])
            while (received := self._socket.receive()) is None:
                if self.lost:
                    msg = f"{self.url} closed the connection during the handshake; it is of another run"
                    raise HandshakeError(msg)
                if time.monotonic() > deadline:
                    msg = f"{self.url} did not answer the handshake within {timeout:g} s"
                    raise HandshakeError(msg)
                self.wait(max(0.0, deadline - time.monotonic()))
            answer = dialler.receive(wire.parse(received[1]))
        return dialler.peer
