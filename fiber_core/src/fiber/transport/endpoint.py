"""The listening side of a process: proves peers, puts messages together, keeps to their windows."""

from __future__ import annotations

import functools
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fiber.exceptions import HandshakeError, TransportError, WireError
from fiber.model.network import ListenAddress
from fiber.transport import fork, wire
from fiber.transport.handshake import Hello, Listener
from fiber.transport.identity import Credentials
from fiber.transport.nng import BACKLOG, ListeningSocket
from fiber.transport.reactor import Reactor, Timer
from fiber.transport.wire import Kind, Message

log = logging.getLogger("fiber")

#: seconds that a peer has to prove who it is
PROOF_TIMEOUT = 10.0
#: frames read in one turn before other events get theirs; all that nng keeps, see Endpoint._lost
_TURN = BACKLOG
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


class Peer:
    """A process that dialled us and proved that it is of this run."""

    def __init__(self, endpoint: Endpoint, pipe: int) -> None:
        self._endpoint = endpoint
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
        return self._endpoint.address_of(self._pipe)

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
        while self._waiting and self._sent - self._acked < wire.WINDOW:
            kind, target, number, size, pieces = self._waiting.popleft()
            self._sent += 1
            head = wire.header(kind, target=target, id=number, size=size)
            self._endpoint.transmit(self._pipe, head, pieces)

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
        self._endpoint.cut(self._pipe)

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
        self._endpoint.transmit(self._pipe, head, [body])
        if kind is Kind.REFUSE:
            self.refused = True
            msg = f"refused a peer: {body.decode()}"
            raise HandshakeError(msg)
        self.hello = self._listener.peer
        if self.hello is not None and self._deadline is not None:
            self._deadline.cancel()
        return self.hello is not None

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


class Endpoint:
    """One listening socket with any number of addresses, one port each, served by a reactor."""

    def __init__(
        self,
        credentials: Credentials,
        hello: Hello,
        reactor: Reactor,
        *,
        max_frame: int = wire.MAX_FRAME,
        proof_timeout: float = PROOF_TIMEOUT,
    ) -> None:
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
        #: the realm whose processes come here; None where they are of this run
        self.realm: str | None = None
        #: what peers dial, one URL for each :meth:`listen`
        self.urls: list[str] = []
        self._socket = ListeningSocket(
            on_opened=self._opened,
            on_closed=lambda pipe: reactor.call_soon(lambda: self._lost(pipe)),
            max_frame=max_frame,
        )
        reactor.add_reader(self._socket.fd, self._readable)

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
            url = self._socket.listen(address.bind_url, self.credentials)
            if address.advertise_host is not None:
                scheme, _, rest = url.partition("://")
                host = address.advertise_host
                host = f"[{host}]" if ":" in host and not host.startswith("[") else host
                url = f"{scheme}://{host}:{rest.rpartition(':')[2]}"
            self.urls.append(url)
            return url

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
        self._reactor.remove_reader(self._socket.fd)
        for peer in list(self._peers.values()):
            peer.gone()
        self._socket.close()

    def transmit(self, pipe: int, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
        """Hand one frame to nng; for :class:`Peer`."""
        if self._closed:
            return
        try:
            self._socket.send(pipe, head, pieces)
        except TransportError as error:
            # closed between the check and the call; peers see the pipe go
            log.debug("fiber: a frame could not be sent: %s", error)

    def address_of(self, pipe: int) -> tuple[str, int] | str:
        """Where a peer dials from; for :class:`Peer`."""
        return self._socket.peer_address(pipe)

    def cut(self, pipe: int) -> None:
        """Close one pipe; for :class:`Peer`."""
        if not self._closed:
            self._socket.close_pipe(pipe)

    def _opened(self, pipe: int) -> None:
        # on a thread of nng's, before the pipe's first frame: whoever says nothing is cut off too
        peer = self._peers[pipe] = Peer(self, pipe)
        self._await_proof(peer)

    def _await_proof(self, peer: Peer) -> None:
        too_late = functools.partial(self._too_late, peer)
        peer.expect_proof(self._reactor.call_later(self._proof_timeout, too_late))

    def _readable(self) -> None:
        for _ in range(_TURN):
            if self._closed:
                return
            received = self._socket.receive()
            if received is None:
                return
            pipe, data = received
            peer = self._peers.get(pipe)
            if peer is None or not peer.alive:
                continue
            try:
                self._take(peer, data)
            except Exception as error:  # a service that fails on a message must not take us down
                self._reject(peer, error)

    def _reject(self, peer: Peer, error: Exception) -> None:
        self._complain(peer, error)
        peer.gone()
        if peer.refused:
            # it goes by itself once it has read why
            self._reactor.call_later(_REFUSAL, peer.close)
        else:
            peer.close()

    def _take(self, peer: Peer, data: wire.Buffer) -> None:
        if peer.hello is None:
            if len(data) > wire.MAX_UNPROVEN:
                msg = f"{len(data)} bytes from a peer that has not proved who it is"
                raise WireError(msg)
            if not peer.prove(wire.parse(data), lambda: Listener(self.credentials, self.hello)):
                # its next word has its own time, which does not run while we are busy
                self._await_proof(peer)
            return
        frame = wire.parse(data)
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
        # what it sent before its end counts; nng may still hold that
        self._readable()
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
