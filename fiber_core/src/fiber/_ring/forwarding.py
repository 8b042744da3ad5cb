"""Port forwarding between members of a ring over the run's own, authenticated connections.

The servers of frameworks have no authentication. So such a server listens on loopback only, in the
process of one member, which runs a :class:`PipeServer`. Other members connect to a port on their
own loopback (:class:`Forwarder`), from where each connection is carried through a pipe of the run,
which is mutual TLS between hosts. No other host on the network reaches either port.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing.connection
import os
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fiber._base.sockets import warn_of_refusal
from fiber._ring.model import RingTiming
from fiber.exceptions import WireError
from fiber.model.timing import Timing

if TYPE_CHECKING:
    from fiber.connection import Connection
    from fiber.queues import SimpleQueue

log = logging.getLogger("fiber")

LOOPBACK = "127.0.0.1"
_CHUNK_SIZE = 256 * 1024
# in /proc/net/tcp and tcp6: the state of open connections, and the prefix of IPv4 addresses in IPv6
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"
# a table changes while it is read, so a read may miss an entry; tries to find it
_READS = 3
#: errors of a socket that was closed, or shut down, or whose descriptor was replaced
_NO_LISTENER = frozenset({errno.EBADF, errno.EINVAL, errno.ENOTSOCK})


class MessageConnection(Protocol):
    """Interface of the connections of Fiber and of ``multiprocessing``."""

    def fileno(self) -> int:
        """Return a descriptor that is readable while ``recv_bytes`` would not block."""

    def recv_bytes(self) -> bytes:
        """Receive a message; raises EOFError at the end."""

    def send_bytes(self, buf: bytes) -> None:
        """Send a message."""

    def close(self) -> None:
        """Close the connection."""


class _Socket:
    """Adapter from a stream socket to :class:`MessageConnection`; any piece is a message."""

    def __init__(self, connection: socket.socket) -> None:
        # requests of stores are small, and each waits for its answer
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.fileno = connection.fileno
        self.send_bytes = connection.sendall
        self.close = connection.close
        self._recv = connection.recv

    def recv_bytes(self) -> bytes:
        data = self._recv(_CHUNK_SIZE)
        if not data:
            raise EOFError
        return data


class Streams:
    """The streams that this process carries, each on the thread that calls; closed together.

    A stream ends when one of its peers is gone, or when all are closed.

    Args:
        timing: has the seconds for their threads to end.
    """

    def __init__(self, timing: RingTiming) -> None:
        self._timing = timing
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._is_closed = False
        # readable once all streams are closed
        self._closing, self._open = socket.socketpair()
        self._closing.setblocking(True)
        self._open.setblocking(True)

    def carry(self, connection: socket.socket, pipe: MessageConnection) -> None:
        """Carry bytes both ways between a socket and a pipe until one has ended; closes both."""
        self.relay(_Socket(connection), pipe)

    def relay(self, one: MessageConnection, other: MessageConnection) -> None:
        """Carry messages both ways between two connections until one has ended; closes both."""
        with contextlib.closing(self._incoming(one, other)) as incoming:
            for end, data in incoming:
                if not _send(other if end is one else one, data):
                    return

    def answer(self, connection: MessageConnection, answer: Callable[[bytes], bytes]) -> None:
        """Answer each message until the connection has ended, or WireError is raised; closes it."""
        with contextlib.closing(self._incoming(connection)) as incoming:
            for _, data in incoming:
                try:
                    reply = answer(data)
                except WireError as error:
                    log.warning("fiber: closed the connection of a ring's member: %s", error)
                    return
                if not _send(connection, reply):
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
            thread.join(self._timing.stream_end)
        self._closing.close()

    def _incoming(
        self, *ends: MessageConnection
    ) -> Generator[tuple[MessageConnection, bytes], None, None]:
        """Yield messages with the connection that they came from, until one has ended."""
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
    """Send a message; returns False if the peer is gone."""
    try:
        end.send_bytes(data)
    except (OSError, EOFError):
        return False
    return True


class PipeClient:
    """Opens pipes to a :class:`PipeServer`; picklable, so that every member can have it.

    Args:
        requests: the queue from which the server takes requests.
    """

    def __init__(self, requests: SimpleQueue[tuple[str, Connection] | None]) -> None:
        self._requests = requests

    def open(self, name: str) -> Connection:
        """Open a pipe to the service of a name.

        Raises:
            PeerLostError: the server's process is gone.
        """
        from fiber.connection import Pipe

        ours, theirs = Pipe()
        with theirs:
            self._requests.put((name, theirs))
        return ours


class PipeServer:
    """Accepts pipes from members, and serves each on a thread of its own, until closed.

    Args:
        serve: called with the requested name and the server's end of the pipe.
        timing: has the seconds for its threads to end.
    """

    def __init__(self, serve: Callable[[str, Connection], None], timing: RingTiming) -> None:
        from fiber.queues import SimpleQueue

        self._serve, self._timing = serve, timing
        #: streams of the pipes, which end with the server
        self.streams = Streams(timing)
        self._requests: SimpleQueue[tuple[str, Connection] | None] = SimpleQueue()
        #: client for the other members
        self.pipes = PipeClient(self._requests)
        self._thread = threading.Thread(target=self._accept, name="fiber-ring-pipes", daemon=True)
        self._thread.start()

    def carry_to(self, port: Callable[[], int], pipe: Connection) -> None:
        """Carry bytes both ways between a pipe and a server on this process's loopback.

        Where it does not listen, yet or any more, its client sees the connection end.

        Args:
            port: returns the server's port, and may open it.
            pipe: from a member.
        """
        try:
            server = socket.create_connection((LOOPBACK, port()), timeout=None)
        except OSError:
            return
        self.streams.carry(server, pipe)

    def close(self) -> None:
        """Accept no more pipes, and end all streams."""
        self._requests.put(None)
        self._thread.join(self._timing.stream_end)
        self._requests.close()
        self.streams.close()

    def _accept(self) -> None:
        while (request := self._requests.get()) is not None:
            threading.Thread(
                target=self._begin, args=request, name="fiber-ring-stream", daemon=True
            ).start()

    def _begin(self, name: str, connection: Connection) -> None:
        with connection:
            self._serve(name, connection)


class Forwarder:
    """A port on loopback whose connections are carried through pipes, until closed.

    Loopback is open to all users of a host; connections of other users are refused where the system
    reveals the user of a connection.

    Args:
        connect: opens a pipe for one connection.
        timing: durations of its streams.
    """

    def __init__(self, connect: Callable[[], MessageConnection], timing: RingTiming) -> None:
        self._connect = connect
        self._streams = Streams(timing)
        listener = loopback_listener()
        #: port on loopback
        self.port: int = listener.getsockname()[1]
        self._accepting = AcceptThread(
            listener, self._forward, name="fiber-ring-forwarder", thread_per_connection=True
        )

    def close(self) -> None:
        """Stop listening and end all streams; idempotent."""
        self._accepting.close()
        self._streams.close()

    def _forward(self, connection: socket.socket) -> None:
        if not may_connect(connection):
            connection.close()
            return
        try:
            pipe = self._connect()
        except (OSError, EOFError):
            # the server is gone, which the client learns by the end of its connection
            connection.close()
            return
        self._streams.carry(connection, pipe)


class Gateway:
    """A Unix socket through which other programs of this user open pipes, until closed.

    Clients connect with ``multiprocessing.connection.Client`` and first send the requested name.

    Args:
        path: of the socket, in a folder that only this user may enter.
        pipes: opens the pipes.
        timing: durations of its streams, and the seconds for a client to send its request.
    """

    def __init__(self, path: str, pipes: PipeClient, timing: RingTiming) -> None:
        self._pipes, self._timing = pipes, timing
        self._streams = Streams(timing)
        self._accepting = AcceptThread(
            private_listener(path),
            self._serve,
            name="fiber-ring-gateway",
            thread_per_connection=True,
        )

    def close(self) -> None:
        """Stop listening and end all streams; idempotent."""
        self._accepting.close()
        self._streams.close()

    def _serve(self, connection: socket.socket) -> None:
        with multiprocessing.connection.Connection(connection.detach()) as caller:
            try:
                if not caller.poll(self._timing.request):
                    return
                pipe = self._pipes.open(caller.recv_bytes().decode())
            except (OSError, EOFError, ValueError):
                # the client or the server is gone
                return
            self._streams.relay(caller, pipe)


def loopback_listener() -> socket.socket:
    """Return a socket that listens on loopback, at a port of the system's choice."""
    listener = socket.create_server((LOOPBACK, 0), backlog=512)
    listener.setblocking(True)
    return listener


def may_connect(connection: socket.socket) -> bool:
    """Return True for connections of this user or root, and on systems that hide the user."""
    try:
        client, server = connection.getpeername(), connection.getsockname()
    except OSError:
        # the client has hung up
        return False
    for _ in range(_READS):
        tables = _tables()
        if not tables:
            return True
        for table in tables:
            user = _user_of(client, server, table)
            if user is not None:
                return user in (os.geteuid(), 0)
    return False


def _tables() -> list[str]:
    """Read the kernel's tables of TCP connections; empty on systems without them."""
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            found.append(Path("/proc/net", name).read_text())
    return found


def _user_of(client: tuple[str, int], server: tuple[str, int], table: str) -> int | None:
    """Return the user id of the client's end of a local connection, if it is in a table."""
    expected = [f"{_in_hex(ip)}:{port:04X}" for ip, port in (client, server)]
    for line in table.splitlines()[1:]:
        fields = line.split()
        # sockets of IPv6 may have IPv4 addresses, as torch's have
        ends = [end.removeprefix(_MAPPED) for end in fields[1:3]]
        # other states are skipped: the kernel lists closed sockets with user 0
        if ends == expected and fields[3] == _ESTABLISHED:
            return int(fields[7])
    return None


def _in_hex(ip: str) -> str:
    # as the kernel prints it: a number in the byte order of the machine
    return f"{int.from_bytes(socket.inet_aton(ip), sys.byteorder):08X}"


class AcceptThread:
    """Thread that accepts connections and passes each to a function, until closed.

    Where there is no descriptor or thread for a connection it goes on with the next ones.

    Args:
        listener: the listening socket; closed with this.
        serve: called with each connection; must close it.
        name: name of the thread.
        thread_per_connection: call ``serve`` on a new thread for each connection, where it may take
            long; otherwise connections are served one after another.
        most: connections served at once, with a thread for each; the oldest is shut down where
            there is one more. None: any number.
        pause: seconds without accepting after the system refused a connection.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[socket.socket], None],
        *,
        name: str,
        thread_per_connection: bool = False,
        most: int | None = None,
        pause: float = Timing().accept_pause,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._name = name
        self._thread_per_connection = thread_per_connection
        self._most = most
        self._pause = pause
        self._closed = threading.Event()
        self._lock = threading.Lock()
        #: connections that threads serve, the oldest first
        self._served: dict[socket.socket, None] = {}
        self._thread = threading.Thread(target=self._accept, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop accepting; connections being served go on. Idempotent."""
        self._closed.set()
        # wakes accept(), which close() alone does not
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        is_refused = False
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
                connection.setblocking(True)
            except ConnectionAbortedError:
                # closed by the dialer before it was accepted
                continue
            except OSError as error:
                if self._closed.is_set() or error.errno in _NO_LISTENER:
                    return
                if not is_refused:
                    warn_of_refusal(error)
                is_refused = True
                self._closed.wait(self._pause)
                continue
            is_refused = False
            if self._thread_per_connection:
                self._start(connection)
            else:
                self._serve(connection)

    def _start(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._served) == self._most:
                oldest = next(iter(self._served))
                del self._served[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._served[connection] = None
        thread = threading.Thread(
            target=self._serve_one, args=(connection,), name=f"{self._name}-call", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            # no more threads are started
            self._forget(connection)
            connection.close()

    def _serve_one(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._served.pop(connection, None)


def private_listener(path: str, *, backlog: int = 128) -> socket.socket:
    """Listening Unix socket that only this user can connect to.

    Args:
        path: of the socket; must not exist yet.
        backlog: connections that may wait to be accepted.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(True)
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
