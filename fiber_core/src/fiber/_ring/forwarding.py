"""Port forwarding: members of a ring reach a server in one of them over the run's own connections.

The servers of frameworks ask nobody for the run's key. So one listens on loopback, in the process
of the member that has it (:class:`Host`), and the others connect to a port on their own loopback
(:class:`Forwarder`), from where each connection is carried through a pipe of the run, which is
mutual TLS between hosts. Nobody else on the network reaches either port.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fiber._wire.accept_thread import Accepting, private_listener

if TYPE_CHECKING:
    from fiber.connection import Connection
    from fiber.queues import SimpleQueue

__all__ = [
    "LOOPBACK",
    "Forwarder",
    "Gateway",
    "Host",
    "MessageConnection",
    "Pipes",
    "Streams",
    "loopback_listener",
]

LOOPBACK = "127.0.0.1"
_PIECE = 256 * 1024
# in the kernel's tables of connections: a state, and what is before addresses of IPv4 in IPv6
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"
# a table changes while it is read, and one that is in it may be left out
_LOOKS = 3
#: seconds that a stream gets to end, and a caller to say what it wants
_PATIENCE = 10.0


class MessageConnection(Protocol):
    """What the connections of Fiber and of ``multiprocessing`` have in common."""

    def fileno(self) -> int:
        """A descriptor that is readable while ``recv_bytes`` would not wait."""

    def recv_bytes(self) -> bytes:
        """The next message; raises EOFError at the end."""

    def send_bytes(self, buf: bytes) -> None:
        """Send a message."""

    def close(self) -> None:
        """Let go of it."""


class _Socket:
    """A stream socket, as a connection whose messages have no bounds."""

    def __init__(self, connection: socket.socket) -> None:
        # a store's requests are small, and each waits for its answer
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fileno = connection.fileno
        self.send_bytes = connection.sendall
        self.close = connection.close
        self._recv = connection.recv

    def recv_bytes(self) -> bytes:
        data = self._recv(_PIECE)
        if not data:
            raise EOFError
        return data


class Streams:
    """What is being carried in this process, each on the thread that asks for it; closed together.

    A stream ends when a peer is gone, however that shows, or when all are closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._is_closed = False
        # readable once they are closed
        self._closing, self._open = socket.socketpair()
        self._closing.setblocking(True)
        self._open.setblocking(True)

    def carry(self, connection: socket.socket, pipe: MessageConnection) -> None:
        """Send what arrives at either end out of the other, until one has ended; closes both."""
        self.relay(_Socket(connection), pipe)

    def relay(self, one: MessageConnection, other: MessageConnection) -> None:
        """The same for two connections of messages."""
        with contextlib.closing(self._incoming(one, other)) as incoming:
            for end, data in incoming:
                if not _send(other if end is one else one, data):
                    return

    def answer(self, connection: MessageConnection, answer: Callable[[bytes], bytes]) -> None:
        """Answer each message, until the connection has ended; closes it."""
        with contextlib.closing(self._incoming(connection)) as incoming:
            for _, data in incoming:
                if not _send(connection, answer(data)):
                    return

    def close(self) -> None:
        """End all of them; idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            threads = list(self._threads)
        self._open.close()
        for thread in threads:
            thread.join(_PATIENCE)
        self._closing.close()

    def _incoming(
        self, *ends: MessageConnection
    ) -> Generator[tuple[MessageConnection, bytes], None, None]:
        """What arrives at any end, until one has ended."""
        thread = threading.current_thread()
        with contextlib.ExitStack() as stack:
            for one in ends:
                stack.callback(one.close)
            with self._lock:
                if self._is_closed:
                    return
                self._threads.add(thread)
            stack.callback(self._ended, thread)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(self._closing, selectors.EVENT_READ)
            for one in ends:
                selector.register(one.fileno(), selectors.EVENT_READ, one)
            while True:
                for key, _ in selector.select():
                    end: MessageConnection | None = key.data
                    if end is None:
                        return
                    try:
                        data = end.recv_bytes()
                    except (OSError, EOFError):
                        return
                    yield end, data

    def _ended(self, thread: threading.Thread) -> None:
        with self._lock:
            self._threads.discard(thread)


def _send(end: MessageConnection, data: bytes) -> bool:
    """False where its peer is gone."""
    try:
        end.send_bytes(data)
    except (OSError, EOFError):
        return False
    return True


class Pipes:
    """Opens pipes to a :class:`Host`; any member gets one, pickled.

    Args:
        requests: where that host reads who wants to be served.
    """

    def __init__(self, requests: SimpleQueue[tuple[str, Connection] | None]) -> None:
        self._requests = requests

    def open(self, name: str) -> Connection:
        """A pipe to what has that name.

        Raises:
            PeerLostError: the member that served it is gone.
        """
        from fiber.connection import Pipe

        here, there = Pipe()
        with there:
            self._requests.put((name, there))
        return here


class Host:
    """Serves whoever opens a pipe, each on a thread of its own, until it is closed.

    Args:
        serve: called with the name that was asked for and the pipe's end.
    """

    def __init__(self, serve: Callable[[str, Connection], None]) -> None:
        from fiber.queues import SimpleQueue

        self._serve = serve
        self._requests: SimpleQueue[tuple[str, Connection] | None] = SimpleQueue()
        #: for the other members
        self.pipes = Pipes(self._requests)
        self._thread = threading.Thread(target=self._accept, name="fiber-ring-host", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no others; what is being served goes on."""
        self._requests.put(None)
        self._thread.join(_PATIENCE)
        self._requests.close()

    def _accept(self) -> None:
        while (request := self._requests.get()) is not None:
            threading.Thread(
                target=self._begin, args=request, name="fiber-ring-stream", daemon=True
            ).start()

    def _begin(self, name: str, connection: Connection) -> None:
        with connection:
            self._serve(name, connection)


class Forwarder:
    """A port on loopback whose connections are carried elsewhere, until it is closed.

    Loopback is open to all users of a host: where the system tells whose a connection is, those of
    other users are refused.

    Args:
        connect: opens the way for one of them.
    """

    def __init__(self, connect: Callable[[], MessageConnection]) -> None:
        self._connect = connect
        self._streams = Streams()
        listener = loopback_listener()
        #: where it listens
        self.port: int = listener.getsockname()[1]
        self._accepting = Accepting(
            listener, self._forward, name="fiber-ring-forwarder", at_once=True
        )

    def close(self) -> None:
        """Accept no more, and end what is being carried; idempotent."""
        self._accepting.close()
        self._streams.close()

    def _forward(self, connection: socket.socket) -> None:
        if not _may_connect(connection):
            connection.close()
            return
        try:
            pipe = self._connect()
        except (OSError, EOFError):
            # who served is gone, which the client learns by its connection's end
            connection.close()
            return
        self._streams.carry(connection, pipe)


class Gateway:
    """A Unix socket by which other programs of this user open pipes, until it is closed.

    The first message of a connection of ``multiprocessing`` is the name that is asked for.

    Args:
        path: of the socket, in a folder that this user alone may enter.
        pipes: where connections are carried to.
    """

    def __init__(self, path: str, pipes: Pipes) -> None:
        self._pipes = pipes
        self._streams = Streams()
        self._accepting = Accepting(
            private_listener(path), self._serve, name="fiber-ring-gateway", at_once=True
        )

    def close(self) -> None:
        """Accept no more, and end what is being carried; idempotent."""
        self._accepting.close()
        self._streams.close()

    def _serve(self, connection: socket.socket) -> None:
        with multiprocessing.connection.Connection(connection.detach()) as caller:
            try:
                if not caller.poll(_PATIENCE):
                    return
                pipe = self._pipes.open(caller.recv_bytes().decode())
            except (OSError, EOFError, ValueError):
                # it hung up, or who served is gone
                return
            self._streams.relay(caller, pipe)


def loopback_listener() -> socket.socket:
    """A socket that listens on loopback, at a port of the system's choice."""
    listener = socket.create_server((LOOPBACK, 0), backlog=512)
    listener.setblocking(True)
    return listener


def _may_connect(connection: socket.socket) -> bool:
    """True for connections of this user and of root, and where the system does not tell."""
    try:
        client, server = connection.getpeername(), connection.getsockname()
    except OSError:
        # it has hung up
        return False
    for _ in range(_LOOKS):
        tables = _tables()
        if not tables:
            return True
        for table in tables:
            user = _user_of(client, server, table)
            if user is not None:
                return user in (os.geteuid(), 0)
    return False


def _tables() -> list[str]:
    """The kernel's tables of connections, on systems that have them; each may be missing."""
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            found.append(Path("/proc/net", name).read_text())
    return found


def _user_of(client: tuple[str, int], server: tuple[str, int], table: str) -> int | None:
    """Whose the client's end of a connection within this host is, if it is in a table."""
    wanted = [f"{_in_hex(ip)}:{port:04X}" for ip, port in (client, server)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        # sockets of IPv6 may have addresses of IPv4, as torch's have
        ends = [end.removeprefix(_MAPPED) for end in fields[1:3]]
        # of one that its program has closed the kernel knows no user any more, and says 0
        if ends == wanted and fields[3] == _ESTABLISHED:
            return int(fields[7])
    return None


def _in_hex(ip: str) -> str:
    # as the kernel prints it: a number in the byte order of the machine
    return f"{int.from_bytes(socket.inet_aton(ip), sys.byteorder):08X}"
