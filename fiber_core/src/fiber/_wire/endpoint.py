"""Listening side of a process: addresses, peers, and the services that answer them.

:class:`Endpoint` listens and dispatches messages to services, :class:`Peer` is a connected process,
with its handshake, the assembly of its messages and its send window.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from fiber._base.log import lazy_logger
from fiber._base.threads import Reactor, Timer
from fiber._wire import descriptors, fork, frames
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Credentials, Hello, ListenerHandshake
from fiber._wire.reading import Action, Reading
from fiber.exceptions import HandshakeError, WireError
from fiber.model.plugin import ListenAddress
from fiber.model.timing import Timing

__all__ = ["Endpoint", "Listener", "Peer", "Service"]


class Listener(Protocol):
    """Listening sockets of one transport: ``unix.UnixListener`` or ``nng.NngListener``."""

    #: most unacknowledged frames to a peer
    window: float

    @property
    def reading(self) -> Reading | None:
        """Its reading, if threads that wait take part in it."""

    def listen(self, url: str, credentials: Credentials) -> str:
        """Listen on one more address; returns the URL really bound."""

    def trust(self, pipe: int) -> None:
        """Accept large frames from a peer that has proved itself."""

    def send(
        self, pipe: int, head: bytes, pieces: Sequence[frames.Buffer], *, more: bool = False
    ) -> None:
        """Send one frame, with the next one where ``more`` is True; nothing happens where the pipe is closed."""

    def reading_of(self, pipe: int) -> Reading | None:
        """The reading of one pipe, if threads that wait take part in it."""

    def close_pipe(self, pipe: int) -> None:
        """Close one pipe."""

    def peer_address(self, pipe: int) -> tuple[str, int] | str:
        """Host and port that a peer connects from; empty on this host."""

    def close(self) -> None:
        """Close every pipe and every listener; idempotent."""


class Peer:
    """A process connected to our endpoint: on one pipe, proven once :attr:`hello` is set."""

    def __init__(self, endpoint: Endpoint, listener: Listener, pipe: int) -> None:
        #: where it is connected
        self.endpoint = endpoint
        self._listener = listener
        self._window = listener.window
        # bytes of the largest body of one frame
        self._room = endpoint.max_frame - frames.HEADER.size
        self._pipe = pipe
        self._lock = threading.Lock()
        self._sent = 0
        #: frames of those that it has acknowledged
        self.acked = 0
        self._unsent: deque[tuple[Kind, int, int, int, list[frames.Buffer]]] = deque()
        self._assembler = frames.Assembler()
        self._handshake: ListenerHandshake | None = None
        self._deadline: Timer | None = None
        #: True once it proved itself and was refused for its versions
        self.refused = False
        #: its ident and the reason, where it was refused
        self.refused_ident = self.refusal = ""
        #: its identity and versions; None until it has proved the run's key
        self.hello: Hello | None = None
        #: False once its pipe is closed
        self.alive = True
        #: state that services keep for the peer, by target
        self.state: dict[int, object] = {}

    @property
    def ident(self) -> str:
        """Its identity within the run."""
        return self.hello.ident if self.hello is not None else ""

    @property
    def auth_domain(self) -> str | None:
        """Authentication domain that it proved to be of; None for a process of this run."""
        return self.endpoint.auth_domain

    @property
    def address(self) -> tuple[str, int] | str:
        """Host and port that it connects from; empty on this host."""
        return self._listener.peer_address(self._pipe)

    @property
    def is_same_host(self) -> bool:
        """True where it is on this host and connected over a Unix or IPC socket."""
        host = self.endpoint.hello.host
        return self.hello is not None and self.hello.host == host and not self.address

    def __repr__(self) -> str:
        return f"<Peer {self.ident or 'unproven'} on pipe {self._pipe}>"

    def __str__(self) -> str:
        if self.hello is not None:
            return f"the connection of {self.ident} ({self.hello.host}, pid {self.hello.pid})"
        return f"a connection from {self.address[0] if self.address else 'this host'}"

    def send(
        self,
        kind: Kind,
        target: int,
        number: int,
        segments: Sequence[frames.Buffer] = (),
        *,
        more: bool = False,
    ) -> None:
        """Send a message, now or when the window opens.

        Callable from any thread; returns at once; nothing happens where the peer is gone.

        Args:
            kind: its kind.
            target: the object it is for.
            number: its number.
            segments: its body.
            more: True where another one follows at once, with which a small one is sent.
        """
        size = sum(map(len, segments))
        with self._lock:
            if not self.alive:
                return
            has_room = self._sent - self.acked < self._window
            if has_room and not self._unsent and size <= self._room:
                self._sent += 1
                head = frames.pack_header(kind, 0, target, number, size)
                self._listener.send(self._pipe, head, segments, more=more)
                return
            max_frame = self.endpoint.max_frame
            self._unsent.extend(frames.split(kind, target, number, segments, max_frame=max_frame))
            self._flush()

    def _flush(self) -> None:
        while self._unsent and self._sent - self.acked < self._window:
            self._sent += 1
            kind, target, number, size, pieces = self._unsent.popleft()
            head = frames.pack_header(kind, 0, target, number, size)
            self._listener.send(self._pipe, head, pieces)

    def acknowledged(self, ack: int) -> None:
        """Open the window by the frames that the peer has received, as it says in each header.

        Raises:
            WireError: more than were sent.
        """
        with self._lock:
            taken = (ack - self.acked) & 0xFFFFFFFF
            if not taken:
                return
            if taken > self._sent - self.acked:
                msg = f"a peer acknowledges {taken} frames of {self._sent - self.acked}"
                raise WireError(msg)
            self.acked += taken
            if self._unsent:
                self._flush()

    @property
    def reading(self) -> Reading | None:
        """The reading of its pipe alone, if threads that wait take part in it."""
        return self._listener.reading_of(self._pipe)

    def look(self, data: frames.Buffer, target: int) -> Message | None:
        """A frame's message for a target; None where it is not whole, or for others.

        Raises:
            WireError: it is malformed.
        """
        if self.hello is None or not self.alive:
            return None
        frame = frames.parse(data)
        if frame.target != target or not frame.is_whole:
            return None
        self.acknowledged(frame.ack)
        return frame

    def close(self) -> None:
        """Close the connection; services are notified as of any loss."""
        self.endpoint.cut(self._listener, self._pipe)

    # -- for the endpoint only

    def set_proof_deadline(self, deadline: Timer) -> None:
        """Set the timer that ends the handshake, in place of the former one."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = deadline

    def prove(self, frame: frames.Frame, make: Callable[[], ListenerHandshake]) -> bool:
        """Process a frame of the handshake; True once the peer is proven."""
        if self._handshake is None:
            self._handshake = make()
        kind, body = self._handshake.receive(frame)
        head = frames.pack_header(kind, 0, 0, 0, len(body))
        self._listener.send(self._pipe, head, [body])
        if kind is Kind.REFUSE:
            self.refused = True
            self.refused_ident, self.refusal = self._handshake.refusal
            raise HandshakeError(self.refusal)
        self.hello = self._handshake.peer
        if self.hello is None:
            return False
        if self._deadline is not None:
            self._deadline.cancel()
        self._listener.trust(self._pipe)
        return True

    def assemble(self, frame: frames.Frame) -> Message | None:
        """Process a frame of a proven peer; returns the message that it completes, if any."""
        return self._assembler.feed(frame)

    def mark_closed(self) -> None:
        """Note that the pipe is closed."""
        with self._lock:
            self.alive = False
            self._unsent.clear()
        if self._deadline is not None:
            self._deadline.cancel()


log = lazy_logger()

#: distinct rejections that are logged as warnings; later ones only at debug level
_MAX_WARNINGS = 32
#: acknowledged frames of which a thread that waits takes note
_ACKED_TOGETHER = frames.WINDOW // 4


class Service(Protocol):
    """Handler of the messages for one target; called on the handler thread, must not wait.

    A thread that takes part in :attr:`Peer.reading` takes up messages itself.
    """

    def on_message(self, peer: Peer, message: Message) -> None:
        """Process one message."""

    def on_peer_lost(self, peer: Peer) -> None:
        """Process the loss of a proven peer."""


class Endpoint:
    """Listener on any number of addresses that passes peers' messages to services.

    Args:
        credentials: of the run; or those of a key exchange, then for one address alone, on whose
            certificate the exchange depends.
        timing: durations of the run.
    """

    def __init__(
        self,
        credentials: Credentials,
        hello: Hello,
        reactor: Reactor,
        *,
        max_frame: int = frames.MAX_FRAME,
        timing: Timing = Timing(),
    ) -> None:
        fork.check()
        self.credentials = credentials
        self.hello = hello
        self.max_frame = max_frame
        self._reactor = reactor
        self._timing = timing
        self._services: dict[int, Service] = {}
        self._peers: dict[int, Peer] = {}
        self._logged: set[object] = set()
        self._closed = False
        self._lock = threading.Lock()
        #: called on the handler thread with the ident of a peer refused for its versions and the
        #: reason; True where an error will tell the reason
        self.on_refused: Callable[[str, str], bool] = lambda _ident, _why: False
        #: authentication domain of the peers; None for processes of this run
        self.auth_domain: str | None = None
        #: URLs that peers dial, one for each :meth:`listen`
        self.urls: list[str] = []
        self._listeners: dict[str, Listener] = {}
        self._reading: Reading | None = None

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
        # imported on use: a process that only talks on its own host never loads nng
        if url.startswith("unix:"):
            from fiber._wire.unix import UnixListener

            unix = self._listeners.get("unix") or UnixListener(
                self._reactor,
                on_opened=lambda pipe: self._opened("unix", pipe),
                on_frame=self._received,
                on_broken=self._broken,
                on_closed=self._lost,
                max_frame=self.max_frame,
                pause=self._timing.accept_pause,
            )
            self._listeners["unix"] = unix
            return unix.listen(url, self.credentials)
        from fiber._wire.nng import NngListener

        nng = self._listeners.get("nng") or NngListener(
            self._reactor,
            on_opened=lambda pipe: self._opened("nng", pipe),
            on_frame=self._received,
            on_closed=self._lost,
            max_frame=self.max_frame,
            timing=self._timing,
        )
        self._listeners["nng"] = nng
        # of all that listen, threads that wait take part in this one
        self._reading = nng.reading
        return nng.listen(url, self.credentials)

    def reading_of(self, peer: Peer | None) -> Reading | None:
        """The reading of a peer that is connected here, or of many; None where no thread that waits takes part."""
        mine = peer if peer is not None and peer.endpoint is self else None
        return (None if mine is None else mine.reading) or self._reading

    def wait(
        self,
        reading: Reading,
        target: int,
        look: Callable[[Peer, memoryview], Action | None],
        is_over: Callable[[], bool],
        timeout: float,
    ) -> bool:
        """Read in the handler thread's place, see :meth:`~fiber._wire.reading.Reading.wait`.

        Args:
            reading: which, see :meth:`reading_of`.
            target: whose messages the thread waits for.
            look: called with the body of each that fits into a frame and is no call.
            is_over: see there.
            timeout: see there.
        """

        def look_at(pipe: int, data: frames.Buffer) -> Action | None:
            peer = None if self._closed else self._peers.get(pipe)
            found = None if peer is None else frames.cast(data, target)
            if peer is None or found is None or peer.hello is None or not peer.alive:
                return None
            ack, body = found
            # some together: the peer tells by itself of those that it has not told of for half a window
            if (ack - peer.acked) & 0xFFFFFFFF >= _ACKED_TOGETHER:
                peer.acknowledged(ack)
            return look(peer, body)

        return reading.wait(look_at, is_over, timeout)

    def serve(self, target: int, service: Service) -> None:
        """Register the service for a target."""
        self._services[target] = service

    def withdraw(self, target: int) -> None:
        """Remove the service of a target."""
        self._services.pop(target, None)

    def peers(self) -> list[Peer]:
        """List the proven peers."""
        return [peer for peer in list(self._peers.values()) if peer.hello is not None]

    def close(self) -> None:
        """Close every pipe and every listener; idempotent."""
        if self._closed or fork.is_forked_child():
            return
        self._closed = True
        for peer in list(self._peers.values()):
            peer.mark_closed()
        for listener in list(self._listeners.values()):
            listener.close()

    def cut(self, listener: Listener, pipe: int) -> None:
        """Close one pipe; for :class:`Peer`."""
        if not self._closed:
            listener.close_pipe(pipe)

    def _opened(self, listener: str, pipe: int) -> None:
        # maybe on a thread of nng's, where no lock is taken; before the first frame
        peer = self._peers[pipe] = Peer(self, self._listeners[listener], pipe)
        self._reactor.call_soon(functools.partial(self._greet, peer))

    def _greet(self, peer: Peer) -> None:
        if peer.alive and peer.hello is None:
            # a silent peer times out too
            self._await_proof(peer)
        descriptors.raise_limit_for(len(self._peers))

    def _await_proof(self, peer: Peer) -> None:
        timed_out = functools.partial(self._proof_timed_out, peer)
        peer.set_proof_deadline(self._reactor.call_later(self._timing.handshake, timed_out))

    def _received(self, pipe: int, data: bytearray) -> None:
        peer = self._peers.get(pipe)
        if self._closed or peer is None or not peer.alive:
            return
        try:
            self._take(peer, data)
        except Exception as error:  # an error of a service must only cost its peer the connection
            self._reject(peer, error)

    def _broken(self, pipe: int, error: Exception) -> None:
        peer = self._peers.get(pipe)
        if peer is not None and peer.alive:
            self._reject(peer, error)

    def _reject(self, peer: Peer, error: Exception) -> None:
        if not (peer.refused and self.on_refused(peer.refused_ident, peer.refusal)):
            self._log_rejection(peer, error)
        peer.mark_closed()
        if peer.refused:
            # it disconnects by itself once it has read the reason
            self._reactor.call_later(self._timing.refusal, peer.close)
        else:
            peer.close()

    def _take(self, peer: Peer, data: frames.Buffer) -> None:
        if peer.hello is None:
            if len(data) > frames.MAX_UNPROVEN:
                msg = f"{len(data)} bytes from a peer that has not proved who it is"
                raise WireError(msg)
            if not peer.prove(frames.parse(data), self._new_handshake):
                # a deadline for each frame, so that time in which we are busy does not count
                self._await_proof(peer)
            return
        frame = frames.parse(data)
        kind = frame.kind
        # most of what follows is of more than one frame, or over nng: no call without need, for each task
        if frame.ack != peer.acked & 0xFFFFFFFF:
            peer.acknowledged(frame.ack)
        if kind is Kind.GRANT:
            return
        if kind in frames.HANDSHAKE:
            msg = f"{kind.name} from a peer that is proven already"
            raise WireError(msg)
        message = frame if frame.is_whole else peer.assemble(frame)
        if message is None:
            return
        service = self._services.get(message.target)
        if service is not None:
            service.on_message(peer, message)
        elif message.kind is Kind.CALL:
            peer.send(Kind.ERROR, message.target, message.id)

    def _new_handshake(self) -> ListenerHandshake:
        return ListenerHandshake(self.credentials, self.hello)

    def _proof_timed_out(self, peer: Peer) -> None:
        if peer.hello is None and peer.alive:
            self._reject(peer, HandshakeError("a peer did not prove who it is in time"))

    def _log_rejection(self, peer: Peer, error: Exception) -> None:
        # once for each cause, so that unproven peers cannot fill the log
        text = str(error) or repr(error)
        cause = text if peer.refused else _origin(error)
        if len(self._logged) >= _MAX_WARNINGS or cause in self._logged:
            log.debug("fiber: closed %s: %s", peer, text)
            return
        self._logged.add(cause)
        # with a traceback where the fault is not in the peer's frames
        trace = None if isinstance(error, (WireError, HandshakeError)) else error
        log.warning("fiber: closed %s: %s", peer, text, exc_info=trace)

    def _lost(self, pipe: int) -> None:
        peer = self._peers.pop(pipe, None)
        if peer is None:
            return
        peer.mark_closed()
        if peer.hello is None:
            return
        for service in list(self._services.values()):
            try:
                service.on_peer_lost(peer)
            except Exception:
                log.exception(
                    "fiber: a service failed at the loss of %s; others are notified", peer
                )


def _origin(error: Exception) -> object:
    """Code and line where an error was raised: equal for errors that differ only in values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return str(error) if trace is None else (trace.tb_frame.f_code, trace.tb_lineno)
