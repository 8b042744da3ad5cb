"""The dialling side: one proven connection to one other process."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from fiber._wire import descriptors, frames
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Dialler, Hello
from fiber._wire.identity import Credentials
from fiber.exceptions import HandshakeError, PeerLostError, TransportError

#: frames taken in before the listener is told of it without another message to carry the news
_GRANT_AFTER = frames.WINDOW // 2


class _Socket(Protocol):
    """The dialler's socket; see :mod:`~fiber._wire.nng` and ``unix_dialling``."""

    keeps: bool

    @property
    def fds(self) -> tuple[int, ...]: ...
    @property
    def held(self) -> descriptors.Held: ...
    @property
    def end_fd(self) -> int: ...
    @property
    def buffered(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    def on_taken(self, action: Callable[[], None]) -> None: ...
    def dial(self, url: str, credentials: Credentials, *, timeout: float) -> None: ...
    def receive(self) -> tuple[int, bytearray] | None: ...
    def send(self, head: Callable[[], bytes], pieces: Sequence[frames.Buffer] = ()) -> None: ...
    def post(self, head: Callable[[], bytes]) -> None: ...
    def close(self) -> None: ...


def socket_for(url: str, max_frame: int) -> _Socket:
    """The dialler's socket for a URL."""
    # imported for those who need it: a process that talks on one host never loads nng
    if url.startswith("unix:"):
        from fiber._wire.dialer import UnixDialling

        return UnixDialling(max_frame=max_frame)
    from fiber._wire.nng import DiallingSocket

    return DiallingSocket(max_frame=max_frame)


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
        max_frame: int = frames.MAX_FRAME,
    ) -> None:
        self.url = url
        self._max_frame = max_frame
        self._room = max_frame - frames.HEADER.size
        self._taken = 0
        self._told = 0
        self._large = threading.Lock()
        self._assembler = frames.Assembler()
        self._socket = socket_for(url, max_frame)
        self._poll = select.poll()
        for fd in self._socket.fds:
            self._poll.register(fd, select.POLLIN)
        try:
            self._socket.dial(url, credentials, timeout=timeout)
            #: the process at the other end
            self.peer: Hello = self._shake_hands(credentials, hello, timeout)
        except BaseException:
            self.close()
            raise

    @property
    def fds(self) -> tuple[int, ...]:
        """One of them is readable whenever :meth:`receive` may have something."""
        return self._socket.fds

    @property
    def buffered(self) -> bool:
        """True while :meth:`receive` has something that no descriptor tells of."""
        return self._socket.buffered

    @property
    def keeps(self) -> bool:
        """True where what was sent arrives whatever becomes of this process."""
        return self._socket.keeps

    @property
    def end_fd(self) -> int:
        """Readable once the other side is gone."""
        return self._socket.end_fd

    @property
    def lost(self) -> bool:
        """True once the other side is gone, or this one closed."""
        return self._socket.lost

    @property
    def is_intact(self) -> bool:
        """False once somebody has closed its descriptors, or put other files in their place."""
        return self._socket.held.are_ours

    def on_taken(self, action: Callable[[], None]) -> None:
        """Have ``action`` called where a thread of the transport's notices that it is not intact.

        Between hosts one looks every second. On one host whoever uses the connection finds out, and
        the process at the other end hears of it at once.
        """
        self._socket.on_taken(action)

    def send(
        self, kind: Kind, target: int = 0, number: int = 0, segments: Sequence[frames.Buffer] = ()
    ) -> None:
        """Send a message of any size; waits while the listener holds us back.

        Raises:
            PeerLostError: the other side is gone.
        """
        size = sum(map(len, segments))
        if size <= self._room:
            self._transmit(kind, target, number, size, segments)
            return
        # one large message at a time, so that the other side has but one to put together
        with self._large:
            for frame in frames.split(kind, target, number, segments, max_frame=self._max_frame):
                self._transmit(*frame)

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
            received = self._next()
            if received is not None:
                message = self._take(received)
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
        descriptors.await_readable(self._poll, self._socket.fds, timeout)

    def close(self) -> None:
        """Close the connection; idempotent. Whoever waits for it gets a PeerLostError."""
        self._socket.close()

    def _gone(self) -> str:
        return f"the connection to {self.url} is gone"

    def _next(self) -> bytearray | None:
        try:
            received = self._socket.receive()
        except TransportError:
            if not self.lost:
                raise
            # closed, by another thread maybe
            return None
        return None if received is None else received[1]

    def _transmit(
        self, kind: Kind, target: int, number: int, size: int, pieces: Sequence[frames.Buffer]
    ) -> None:
        if self.lost:
            raise PeerLostError(self._gone())
        taken = 0

        def head() -> bytes:
            nonlocal taken
            taken = self._taken
            return frames.header(kind, ack=taken, target=target, id=number, size=size)

        try:
            self._socket.send(head, pieces)
        except TransportError as error:
            if self.lost:
                raise PeerLostError(self._gone()) from error
            raise
        self._told = max(self._told, taken)

    def _take(self, data: frames.Buffer) -> Message | None:
        frame = frames.parse(data)
        self._taken += 1
        message = self._assembler.feed(frame)
        if self._taken - self._told >= _GRANT_AFTER:
            self._socket.post(lambda: frames.header(Kind.GRANT, ack=self._taken))
            self._told = self._taken
        return message

    def _shake_hands(self, credentials: Credentials, hello: Hello, timeout: float) -> Hello:
        dialler = Dialler(credentials, hello)
        deadline = time.monotonic() + timeout
        answer: tuple[Kind, bytes] | None = dialler.hello()
        while dialler.peer is None:
            if answer is not None:
                self._say(*answer)
            while True:
                # asked before looking, so that a refusal is heard to its end
                lost = self.lost
                data = self._next()
                if data is not None:
                    break
                if lost:
                    msg = f"{self.url} closed the connection during the handshake; it is of another run"
                    raise HandshakeError(msg)
                if time.monotonic() > deadline:
                    msg = f"{self.url} did not answer the handshake within {timeout:g} s"
                    raise HandshakeError(msg)
                self.wait(max(0.0, deadline - time.monotonic()))
            answer = dialler.receive(frames.parse(data))
        return dialler.peer

    def _say(self, kind: Kind, body: bytes) -> None:
        self._socket.send(lambda: frames.header(kind, size=len(body)), [body])
