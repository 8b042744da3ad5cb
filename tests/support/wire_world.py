"""Both sides of a connection for tests of the transport, and raw dialers that send any bytes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import random
import select
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import attrs
import pytest

import waiting
from fiber._base.threads import Reactor
from fiber._wire import frames
from fiber._wire.endpoint import Endpoint, Peer
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Credentials, DialerHandshake, Hello, ListenerHandshake
from fiber._wire.link import Link, socket_for
from fiber._wire.nng import NngDialer, RawListener
from fiber._wire.unix import UnixListener
from fiber.exceptions import PeerLostError, TransportError
from fiber.model.plugin import ListenAddress
from fiber.model.timing import Timing

#: longest wait in seconds for an event that must come
TIMEOUT = 20.0
until = functools.partial(waiting.until, timeout=TIMEOUT)
_numbers = itertools.count()


@functools.cache
def _mine() -> Hello:
    return Hello.mine("")


def hello(ident: str) -> Hello:
    """Make the hello of this process with another ident."""
    return attrs.evolve(_mine(), ident=ident)


def address(scheme: str, folder: Path) -> ListenAddress:
    """Make an unused address of a scheme."""
    if scheme in ("unix", "ipc"):
        return ListenAddress(bind_url=f"{scheme}://{folder}/{next(_numbers)}")
    return ListenAddress(bind_url=f"{scheme}://127.0.0.1:0")


class Mailbox:
    """Service that queues messages and lost peers."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[Peer, Message]] = queue.Queue()
        self.lost: queue.Queue[Peer] = queue.Queue()

    def on_message(self, peer: Peer, message: Message) -> None:
        self.messages.put((peer, message))

    def on_peer_lost(self, peer: Peer) -> None:
        self.lost.put(peer)

    def next(self) -> tuple[Peer, Message]:
        return self.messages.get(timeout=TIMEOUT)

    def next_lost(self) -> Peer:
        return self.lost.get(timeout=TIMEOUT)


class Echo:
    """Service that answers every call with its own body."""

    def on_message(self, peer: Peer, message: Message) -> None:
        peer.send(Kind.REPLY, message.target, message.id, [message.body])

    def on_peer_lost(self, peer: Peer) -> None:
        """Do nothing."""


class ListeningEndpoint:
    """Endpoint with a handler thread, and the links opened to it; closes all."""

    def __init__(
        self, scheme: str, folder: Path, *, credentials: Credentials | None = None, **options: Any
    ) -> None:
        self.reactor = Reactor("test-handler")
        run = credentials or Credentials.new()
        self.endpoint = Endpoint(run, hello("listener"), self.reactor, **options)
        self.url = self.endpoint.listen(address(scheme, folder))
        self.endpoint.serve(1, Echo())
        self._opened: list[Any] = []

    @property
    def credentials(self) -> Credentials:
        return self.endpoint.credentials

    def link(self, ident: str = "dialler", **options: Any) -> Link:
        options.setdefault("max_frame", self.endpoint.max_frame)
        link = Link(self.url, self.credentials, hello(ident), **options)
        self._opened.append(link)
        return link

    def stranger(self, credentials: Credentials | None = None) -> RawDialer:
        stranger = RawDialer(self.url, credentials or self.credentials)
        self._opened.append(stranger)
        return stranger

    def peer(self, ident: str = "dialler") -> Peer:
        """Wait for the proven peer of a name."""
        until(lambda: any(peer.ident == ident for peer in self.endpoint.peers()))
        return next(peer for peer in self.endpoint.peers() if peer.ident == ident)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Block the handler thread in the ``with`` block."""
        holding, go = threading.Event(), threading.Event()

        def hold() -> None:
            holding.set()
            go.wait(TIMEOUT)

        self.reactor.call_soon(hold)
        assert holding.wait(TIMEOUT)
        try:
            yield
        finally:
            go.set()

    def close(self) -> None:
        for one in self._opened:
            one.close()
        self.endpoint.close()
        self.reactor.stop()


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


class RawDialer:
    """Dialer that sends any bytes, proven or not."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._socket = socket_for(url, 64 * 2**20, Timing())
        try:
            self._credentials = self._socket.dial(url, credentials, timeout=TIMEOUT)
        except BaseException:
            self._socket.close()
            raise

    def send_bytes(self, data: bytes) -> None:
        """Send any bytes; nothing happens where the listener has closed the connection."""
        with contextlib.suppress(TransportError):
            self._socket.send(lambda: data)

    def receive_frame(self) -> frames.Frame:
        """Receive the next frame of the listener.

        Raises:
            PeerLostError: it has closed the connection.
        """
        while True:
            lost = self._socket.lost
            received = self._socket.receive()
            if received is not None:
                return frames.parse(received[1])
            if lost:
                raise PeerLostError("cut off")
            assert readable(*self._socket.fds), "no frame was received"

    def is_cut_off(self) -> bool:
        """Wait until the listener has closed the connection."""
        try:
            while True:
                self.receive_frame()
        except PeerLostError:
            return True

    def prove(self, mine: Hello) -> None:
        """Do the handshake."""
        handshake = DialerHandshake(self._credentials, mine)
        sending: tuple[Kind, bytes] | None = handshake.hello()
        while sending is not None:
            kind, body = sending
            self.send_bytes(frames.header(kind, size=len(body)) + body)
            sending = handshake.receive(self.receive_frame())

    def close(self) -> None:
        self._socket.close()


def frame(
    kind: Kind,
    body: bytes = b"",
    *,
    target: int = 1,
    number: int = 1,
    size: int | None = None,
    ack: int = 0,
) -> bytes:
    """Make the bytes of one frame."""
    size = len(body) if size is None else size
    return frames.header(kind, ack=ack, target=target, id=number, size=size) + body


def recorded(dialler: DialerHandshake, listener: ListenerHandshake) -> list[bytes]:
    """Have two sides do a handshake; returns its frames, of each by turns."""
    sent: list[bytes] = []
    said: tuple[Kind, bytes] | None = dialler.hello()
    while said is not None:
        sent.append(frame(*said))
        said = (dialler, listener)[len(sent) % 2].receive(frames.parse(sent[-1]))
    return sent


def damaged(data: bytes, draw: random.Random, *, least: int = 1) -> bytes:
    """Return a frame with up to three changes at random places, and with so many at least."""
    changed = bytearray(data)
    for _ in range(draw.randint(least, 3)):
        at = draw.randrange(len(changed) + 1)
        match draw.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del changed[at:]
            case 2:
                del changed[at : at + draw.randint(1, 9)]
            case 3:
                changed[at:at] = draw.randbytes(draw.randint(1, 40))
            case 4:
                changed[at : at + 8] = draw.choice([b"\xff" * 8, bytes(8)])
    return bytes(changed)


def answers_echo(link: Link, target: int = 1) -> bool:
    """Return True where the endpoint answers a call on a link."""
    link.send(Kind.CALL, target, 99, [b"still there"])
    message = link.receive(timeout=TIMEOUT)
    return message is not None and bytes(message.body) == b"still there"


def is_watching() -> bool:
    """Return True while the thread runs that looks for lost TLS connections."""
    return any(thread.name == "fiber-watch" for thread in threading.enumerate())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """List the messages logged as warnings."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def in_thread(action: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Run an action on a thread; returns a function that waits for its outcome."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(action(*arguments))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return lambda: outcome.result(TIMEOUT)


@contextlib.contextmanager
def threads(count: int, action: Callable[[int], Any]) -> Iterator[None]:
    """Run an action in so many threads, each with its number; they have ended after the block."""
    running = [in_thread(action, number) for number in range(count)]
    try:
        yield
    finally:
        for wait in running:
            wait()


def close_listeners(listening: ListeningEndpoint) -> None:
    """Close the sockets of an endpoint as the system does when its process is killed."""
    for listener in listening.endpoint._listeners.values():
        if isinstance(listener, UnixListener):
            for connection in list(listener._connections.values()):
                connection.socket.shutdown(socket.SHUT_RDWR)
        else:
            # its reactor may be held, for which close() waits
            listener._socket.close()


def readable(*fds: int, seconds: float = TIMEOUT) -> bool:
    """Wait until one of some descriptors is readable; False where none becomes so."""
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def raw_listener(
    on_opened: Callable[[int], None] = lambda _: None,
    on_closed: Callable[[int], None] = lambda _: None,
) -> RawListener:
    """Make a listening socket of nng's, whose connections are checked as in any run."""
    return RawListener(on_opened=on_opened, on_closed=on_closed, check_interval=Timing().nng_check)


def nng_dialer() -> NngDialer:
    """Make a dialing socket of nng's, whose connection is checked as in any run."""
    return NngDialer(check_interval=Timing().nng_check)


def received(sock: RawListener | NngDialer) -> tuple[int, bytearray]:
    """Wait for the next frame of a socket; returns it with its pipe."""
    assert readable(sock.fd)
    found = sock.receive()
    assert found is not None
    return found
