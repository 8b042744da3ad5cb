"""Both sides of a connection for tests of the transport, and strangers who say what they like."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from fiber._tasks.dispatcher import Dispatcher
from fiber._wire import frames
from fiber._wire.endpoint import Endpoint, Peer
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Dialler, Hello
from fiber._wire.identity import Credentials
from fiber._wire.link import Link, socket_for
from fiber._wire.listener import UnixListening
from fiber._wire.nng import RawSocket
from fiber._wire.reactor import Reactor
from fiber.exceptions import PeerLostError, TransportError
from fiber.model.network import ListenAddress

__all__ = [
    "PATIENCE",
    "Echo",
    "Listening",
    "Mailbox",
    "Pool",
    "Stranger",
    "address",
    "close_carriers",
    "echoes",
    "frame",
    "hello",
    "outcome",
    "readable",
    "received",
    "until",
    "warnings",
]

#: how long a test waits for what must come; never how long anything takes
PATIENCE = 20.0
_numbers = itertools.count()


@functools.cache
def _mine() -> Hello:
    return Hello.mine("")


def hello(ident: str) -> Hello:
    """This process under a name."""
    return attrs.evolve(_mine(), ident=ident)


def address(scheme: str, folder: Path) -> ListenAddress:
    """A fresh address of a scheme."""
    if scheme in ("unix", "ipc"):
        return ListenAddress(bind_url=f"{scheme}://{folder}/{next(_numbers)}")
    return ListenAddress(bind_url=f"{scheme}://127.0.0.1:0")


def until(condition: Callable[[], Any], *, patience: float = PATIENCE) -> None:
    """Wait for a state that no event tells of, such as another thread's bookkeeping."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)


class Mailbox:
    """A service that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[Peer, Message]] = queue.Queue()
        self.lost: queue.Queue[Peer] = queue.Queue()

    def on_message(self, peer: Peer, message: Message) -> None:
        self.messages.put((peer, message))

    def on_peer_lost(self, peer: Peer) -> None:
        self.lost.put(peer)

    def next(self) -> tuple[Peer, Message]:
        return self.messages.get(timeout=PATIENCE)

    def next_lost(self) -> Peer:
        return self.lost.get(timeout=PATIENCE)


class Echo:
    """A service that answers every call with its own body."""

    def on_message(self, peer: Peer, message: Message) -> None:
        peer.send(Kind.REPLY, message.target, message.id, [message.body])

    def on_peer_lost(self, peer: Peer) -> None:
        """It keeps nothing."""


class Pool:
    """The master's side of a pool at target 1; everybody is one of its workers."""

    def __init__(self, reactor: Reactor) -> None:
        self.dispatcher = Dispatcher(1, reactor, max_attempts=3, quota=None, staff=self)

    def knows(self, ident: str) -> bool:
        return True

    def is_up(self, ident: str) -> None:
        """Nothing follows."""

    def is_broken(self, ident: str, error: BaseException) -> None:
        """Nothing follows."""

    def is_retired(self, ident: str) -> None:
        """Nothing follows."""

    def is_cut(self, ident: str) -> None:
        self.dispatcher.lost(ident, None, counts=False)


class Listening:
    """An endpoint with a handler thread, and the links that were opened to it; closes all."""

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

    def stranger(self, credentials: Credentials | None = None) -> Stranger:
        stranger = Stranger(self.url, credentials or self.credentials)
        self._opened.append(stranger)
        return stranger

    def peer(self, ident: str = "dialler") -> Peer:
        """The proven peer of a name."""
        until(lambda: any(peer.ident == ident for peer in self.endpoint.peers()))
        return next(peer for peer in self.endpoint.peers() if peer.ident == ident)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the handler thread from doing anything meanwhile."""
        holding, go = threading.Event(), threading.Event()

        def hold() -> None:
            holding.set()
            go.wait(PATIENCE)

        self.reactor.call_soon(hold)
        assert holding.wait(PATIENCE)
        try:
            yield
        finally:
            go.set()

    def close(self) -> None:
        for one in self._opened:
            one.close()
        self.endpoint.close()
        self.reactor.stop()


class Stranger:
    """A dialler that says what it is told, proven or not."""

    def __init__(self, url: str, credentials: Credentials) -> None:
        self._credentials = credentials
        self._socket = socket_for(url, 64 * 2**20)
        try:
            self._socket.dial(url, credentials)
        except BaseException:
            self._socket.close()
            raise

    def say(self, data: bytes) -> None:
        """Send any bytes; nothing happens where the listener has cut us off."""
        with contextlib.suppress(TransportError):
            self._socket.send(lambda: data)

    def hear(self) -> frames.Frame:
        """The next frame of the listener.

        Raises:
            PeerLostError: it has cut us off.
        """
        poll = select.poll()
        for fd in self._socket.fds:
            poll.register(fd, select.POLLIN)
        while True:
            lost = self._socket.lost
            received = self._socket.receive()
            if received is not None:
                return frames.parse(received[1])
            if lost:
                raise PeerLostError("cut off")
            assert poll.poll(1000 * PATIENCE), "nothing was heard"

    def is_cut_off(self) -> bool:
        """Wait for the end of the connection."""
        try:
            while True:
                self.hear()
        except PeerLostError:
            return True

    def prove(self, who: Hello) -> None:
        """Become a peer."""
        dialler = Dialler(self._credentials, who)
        said: tuple[Kind, bytes] | None = dialler.hello()
        while said is not None:
            kind, body = said
            self.say(frames.header(kind, size=len(body)) + body)
            said = dialler.receive(self.hear())

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
    """One frame as it travels."""
    size = len(body) if size is None else size
    return frames.header(kind, ack=ack, target=target, id=number, size=size) + body


def echoes(link: Link, target: int = 1) -> bool:
    """True where the endpoint serves a link."""
    link.send(Kind.CALL, target, 99, [b"still there"])
    message = link.receive(timeout=PATIENCE)
    return message is not None and bytes(message.body) == b"still there"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged as a warning."""
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def outcome(action: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """Run an action on a thread; returns a function that waits for its result or exception."""
    box: list[Any] = []

    def run() -> None:
        try:
            box.append(action(*arguments))
        except BaseException as error:
            box.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def wait() -> Any:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "it still waits"
        return box[0]

    return wait


def close_carriers(listening: Listening) -> None:
    """Close the sockets of an endpoint as the system does when its process is killed."""
    for carrier in listening.endpoint._carriers.values():
        if isinstance(carrier, UnixListening):
            for line in list(carrier._lines.values()):
                line.socket.shutdown(socket.SHUT_RDWR)
        else:
            # its reactor may be held, for which close() waits
            carrier._socket.close()


def readable(fd: int, seconds: float = PATIENCE) -> bool:
    """Wait until a descriptor is readable; False where it does not become so."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def received(sock: RawSocket) -> tuple[int, bytearray]:
    """The next frame of a socket, with its pipe."""
    assert readable(sock.fd)
    found = sock.receive()
    assert found is not None
    return found
