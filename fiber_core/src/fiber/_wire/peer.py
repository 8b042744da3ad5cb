"""A process that dialled us: its proof, its messages put together, frames kept to its window."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from fiber._wire import frames as wire
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Hello, Listener
from fiber._wire.identity import Credentials
from fiber._wire.reactor import Timer
from fiber.exceptions import HandshakeError, WireError

if TYPE_CHECKING:
    from fiber._wire.endpoint import Endpoint


class Carrier(Protocol):
    """Listening sockets of one kind; see :mod:`~fiber._wire.nng` and ``unix_listening``."""

    #: frames that may be on their way to a peer, or None
    window: int | None

    def listen(self, url: str, credentials: Credentials) -> str:
        """Listen on one more address; the one really bound."""

    def trust(self, pipe: int) -> None:
        """A peer has proved who it is."""

    def send(self, pipe: int, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
        """Hand one frame over; nothing where the pipe is gone."""

    def close_pipe(self, pipe: int) -> None:
        """Cut one peer off."""

    def peer_address(self, pipe: int) -> tuple[str, int] | str:
        """Where a peer dials from; empty on this host."""

    def close(self) -> None:
        """Close every pipe and every listener; idempotent."""


class Peer:
    """A process that dialled us and proved that it is of this run."""

    def __init__(self, endpoint: Endpoint, carrier: Carrier, pipe: int) -> None:
        self._endpoint = endpoint
        self._carrier = carrier
        self._window = carrier.window
        self._pipe = pipe
        self._lock = threading.Lock()
        self._sent = 0
        self._acked = 0
        self._waiting: deque[tuple[Kind, int, int, int, list[wire.Buffer]]] = deque()
        self._assembler = wire.Assembler()
        self._listener: Listener | None = None
        self._deadline: Timer | None = None
        #: True once it proved itself and was told that it cannot be worked with
        self.refused = False
        #: who it said it is, and what it was told, where it was refused
        self.claimed = self.why_refused = ""
        #: who it is; None until it has proved it
        self.hello: Hello | None = None
        #: False once its pipe is closed
        self.alive = True
        #: services leave their own state here, by target
        self.state: dict[int, object] = {}

    @property
    def ident(self) -> str:
        """Its identity within the run."""
        return self.hello.ident if self.hello is not None else ""

    @property
    def realm(self) -> str | None:
        """The realm that it proved to be of; None where it is of this run."""
        return self._endpoint.realm

    @property
    def address(self) -> tuple[str, int] | str:
        """Where it dials from: host and port, nothing on this host."""
        return self._carrier.peer_address(self._pipe)

    @property
    def is_near(self) -> bool:
        """True where it is on this host, and reached as only processes of this host are."""
        here = self._endpoint.hello.host
        return self.hello is not None and self.hello.host == here and not self.address

    def __repr__(self) -> str:
        return f"<Peer {self.ident or 'unproven'} on pipe {self._pipe}>"

    def send(
        self, kind: Kind, target: int, number: int, segments: Sequence[wire.Buffer] = ()
    ) -> None:
        """Send a message, now or when the peer has taken in what is on its way.

        Callable from any thread; returns at once; nothing happens where the peer is gone.
        """
        frames = wire.split(kind, target, number, segments, max_frame=self._endpoint.max_frame)
        with self._lock:
            if not self.alive:
                return
            self._waiting.extend(frames)
            self._flush()

    def _flush(self) -> None:
        window = self._window
        while self._waiting and (window is None or self._sent - self._acked < window):
            kind, target, number, size, pieces = self._waiting.popleft()
            self._sent += 1
            head = wire.header(kind, target=target, id=number, size=size)
            self._endpoint.transmit(self._carrier, self._pipe, head, pieces)

    def acknowledged(self, ack: int) -> None:
        """Note how many frames the peer has taken in.

        Raises:
            WireError: more than were sent.
        """
        with self._lock:
            taken = (ack - self._acked) & 0xFFFFFFFF
            if not taken:
                return
            if taken > self._sent - self._acked:
                msg = f"a peer acknowledges {taken} frames of {self._sent - self._acked}"
                raise WireError(msg)
            self._acked += taken
            self._flush()

    def close(self) -> None:
        """Cut it off; its services hear of it as of any loss."""
        self._endpoint.cut(self._carrier, self._pipe)

    # -- for the endpoint only

    def expect_proof(self, deadline: Timer) -> None:
        """Keep the timer that ends our patience, in the place of another."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = deadline

    def prove(self, frame: wire.Frame, make: Callable[[], Listener]) -> bool:
        """Take a frame of the handshake; True once the peer is proven."""
        if self._listener is None:
            self._listener = make()
        kind, body = self._listener.receive(frame)
        head = wire.header(kind, size=len(body))
        self._endpoint.transmit(self._carrier, self._pipe, head, [body])
        if kind is Kind.REFUSE:
            self.refused = True
            self.claimed, self.why_refused = self._listener.refusal
            msg = f"refused a peer: {body.decode()}"
            raise HandshakeError(msg)
        self.hello = self._listener.peer
        if self.hello is None:
            return False
        if self._deadline is not None:
            self._deadline.cancel()
        self._carrier.trust(self._pipe)
        return True

    def assemble(self, frame: wire.Frame) -> Message | None:
        """Take a frame of a proven peer; the message that it completes, if it does."""
        return self._assembler.feed(frame)

    def gone(self) -> None:
        """The pipe is closed."""
        with self._lock:
            self.alive = False
            self._waiting.clear()
        if self._deadline is not None:
            self._deadline.cancel()
