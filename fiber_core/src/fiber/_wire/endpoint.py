"""The listening side of a process: addresses, peers, and the services that answer them.

A process that dialled us: its proof, its messages put together, frames kept to its window.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fiber._wire import descriptors, fork, frames
from fiber._wire import frames as wire
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Hello, Listener
from fiber._wire.identity import Credentials
from fiber._wire.reactor import Reactor, Timer
from fiber.exceptions import HandshakeError, TransportError, WireError
from fiber.model.network import ListenAddress

__all__ = ["Carrier", "Endpoint", "Peer", "Service"]


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


log = logging.getLogger("fiber")

#: seconds that a peer has to prove who it is
PROOF_TIMEOUT = 10.0
#: seconds that a refused peer has to read why, before it is cut off
_REFUSAL = 1.0
#: different complaints that are logged as warnings
_COMPLAINTS = 32


class Service(Protocol):
    """What answers messages for one target; called on the handler thread, must not wait."""

    def on_message(self, peer: Peer, message: Message) -> None:
        """Take one message."""

    def on_peer_lost(self, peer: Peer) -> None:
        """A proven peer is gone."""


class Endpoint:
    """Any number of addresses to listen on, one port each, served by a reactor."""

    def __init__(
        self,
        credentials: Credentials,
        hello: Hello,
        reactor: Reactor,
        *,
        max_frame: int = frames.MAX_FRAME,
        proof_timeout: float = PROOF_TIMEOUT,
    ) -> None:
        fork.check()
        self.credentials = credentials
        self.hello = hello
        self.max_frame = max_frame
        self._reactor = reactor
        self._proof_timeout = proof_timeout
        self._services: dict[int, Service] = {}
        self._peers: dict[int, Peer] = {}
        self._complaints: set[object] = set()
        self._closed = False
        self._lock = threading.Lock()
        #: called, on the handler thread, with who was refused for its versions and what it was told
        self.on_refused: Callable[[str, str], None] = lambda _ident, _why: None
        #: the realm whose processes come here; None where they are of this run
        self.realm: str | None = None
        #: what peers dial, one URL for each :meth:`listen`
        self.urls: list[str] = []
        self._carriers: dict[str, Carrier] = {}

    def listen(self, address: ListenAddress) -> str:
        """Listen on one more address; return the URL that peers dial.

        Raises:
            TransportError: the address cannot be bound.
        """
        with self._lock:
            if address.bind_url.startswith("tls+"):
                self.credentials = self.credentials.with_certificate()
            elif address.bind_url.startswith("tcp:"):
                log.warning(
                    "fiber: %s is not encrypted; use tls+tcp:// on any network that others share",
                    address.bind_url,
                )
            url = self._bind(address.bind_url)
            if address.advertise_host is not None:
                scheme, _, rest = url.partition("://")
                host = address.advertise_host
                host = f"[{host}]" if ":" in host and not host.startswith("[") else host
                url = f"{scheme}://{host}:{rest.rpartition(':')[2]}"
            self.urls.append(url)
            return url

    def _bind(self, url: str) -> str:
        # imported for those who need it: a process that talks on one host never loads nng
        if url.startswith("unix:"):
            from fiber._wire.listener import UnixListening

            unix = self._carriers.get("unix") or UnixListening(
                self._reactor,
                on_opened=lambda pipe: self._opened("unix", pipe),
                on_frame=self._received,
                on_broken=self._broken,
                on_closed=self._lost,
                max_frame=self.max_frame,
            )
            self._carriers["unix"] = unix
            return unix.listen(url, self.credentials)
        from fiber._wire.nng import NngListening

        nng = self._carriers.get("nng") or NngListening(
            self._reactor,
            on_opened=lambda pipe: self._opened("nng", pipe),
            on_frame=self._received,
            on_closed=self._lost,
            max_frame=self.max_frame,
            connect_timeout=self._proof_timeout,
        )
        self._carriers["nng"] = nng
        return nng.listen(url, self.credentials)

    def serve(self, target: int, service: Service) -> None:
        """Have ``service`` answer messages for ``target``."""
        self._services[target] = service

    def withdraw(self, target: int) -> None:
        """Answer messages for ``target`` no more."""
        self._services.pop(target, None)

    def peers(self) -> list[Peer]:
        """The proven peers."""
        return [peer for peer in list(self._peers.values()) if peer.hello is not None]

    def close(self) -> None:
        """Close every pipe and every listener; idempotent."""
        if self._closed or fork.is_stranger():
            return
        self._closed = True
        for peer in list(self._peers.values()):
            peer.gone()
        for carrier in list(self._carriers.values()):
            carrier.close()

    def transmit(
        self, carrier: Carrier, pipe: int, head: bytes, pieces: Sequence[frames.Buffer]
    ) -> None:
        """Hand one frame over; for :class:`Peer`."""
        if self._closed:
            return
        try:
            carrier.send(pipe, head, pieces)
        except TransportError as error:
            # closed between the check and the call; peers see the pipe go
            log.debug("fiber: a frame could not be sent: %s", error)

    def cut(self, carrier: Carrier, pipe: int) -> None:
        """Close one pipe; for :class:`Peer`."""
        if not self._closed:
            carrier.close_pipe(pipe)

    def _opened(self, carrier: str, pipe: int) -> None:
        # perhaps on a thread of nng's, before the first frame: whoever says nothing is cut off too
        peer = self._peers[pipe] = Peer(self, self._carriers[carrier], pipe)
        self._await_proof(peer)
        descriptors.make_room(len(self._peers))

    def _await_proof(self, peer: Peer) -> None:
        too_late = functools.partial(self._too_late, peer)
        peer.expect_proof(self._reactor.call_later(self._proof_timeout, too_late))

    def _received(self, pipe: int, data: bytearray) -> None:
        peer = self._peers.get(pipe)
        if self._closed or peer is None or not peer.alive:
            return
        try:
            self._take(peer, data)
        except Exception as error:  # a service that fails on a message must not take us down
            self._reject(peer, error)

    def _broken(self, pipe: int, error: WireError) -> None:
        peer = self._peers.get(pipe)
        if peer is not None and peer.alive:
            self._reject(peer, error)

    def _reject(self, peer: Peer, error: Exception) -> None:
        self._complain(peer, error)
        peer.gone()
        if peer.refused:
            self.on_refused(peer.claimed, peer.why_refused)
            # it goes by itself once it has read why
            self._reactor.call_later(_REFUSAL, peer.close)
        else:
            peer.close()

    def _take(self, peer: Peer, data: frames.Buffer) -> None:
        if peer.hello is None:
            if len(data) > frames.MAX_UNPROVEN:
                msg = f"{len(data)} bytes from a peer that has not proved who it is"
                raise WireError(msg)
            if not peer.prove(frames.parse(data), lambda: Listener(self.credentials, self.hello)):
                # its next word has its own time, which does not run while we are busy
                self._await_proof(peer)
            return
        frame = frames.parse(data)
        peer.acknowledged(frame.ack)
        if frame.kind is Kind.GRANT:
            return
        if frame.is_handshake:
            msg = f"{frame.kind.name} from a peer that is proven already"
            raise WireError(msg)
        message = peer.assemble(frame)
        if message is None:
            return
        service = self._services.get(message.target)
        if service is not None:
            service.on_message(peer, message)
        elif message.kind is Kind.CALL:
            peer.send(Kind.ERROR, message.target, message.id)

    def _too_late(self, peer: Peer) -> None:
        if peer.hello is None and peer.alive:
            self._reject(peer, HandshakeError("a peer did not prove who it is in time"))

    def _complain(self, peer: Peer, error: Exception) -> None:
        # once for each thing that can be wrong: no stranger may fill our log
        text = str(error) or repr(error)
        what = text if peer.refused else _origin(error)
        if len(self._complaints) >= _COMPLAINTS or what in self._complaints:
            log.debug("fiber: closed %r: %s", peer, text)
            return
        self._complaints.add(what)
        # what is no fault of the peer's frames is told with its traceback
        trace = None if isinstance(error, (WireError, HandshakeError)) else error
        log.warning("fiber: closed %r: %s", peer, text, exc_info=trace)

    def _lost(self, pipe: int) -> None:
        peer = self._peers.pop(pipe, None)
        if peer is None:
            return
        peer.gone()
        if peer.hello is None:
            return
        for service in list(self._services.values()):
            try:
                service.on_peer_lost(peer)
            except Exception:
                log.exception(
                    "fiber: a service failed at the loss of %r; the others hear of it", peer
                )


def _origin(error: Exception) -> object:
    """Where an error was raised, which is the same for all that are alike but for their values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(error) if trace is None else (trace.tb_frame.f_code, trace.tb_lineno)
