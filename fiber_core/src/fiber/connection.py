"""``Pipe``, ``Listener``, ``Client`` and ``wait``: as in ``multiprocessing.connection``.

``Pipe`` makes the two ends of a pipe between processes of a run. ``Listener`` and ``Client``
connect programs that share an address and an authkey. ``wait`` takes connections, sentinels of
processes, sockets and pipes at once.

``answer_challenge`` and ``deliver_challenge`` are the standard library's own, which work with any
connection. Fiber does not need them: peers authenticate before a connection is made.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import weakref
from collections.abc import Iterable
from multiprocessing import AuthenticationError, BufferTooShort
from multiprocessing.connection import answer_challenge, deliver_challenge
from typing import TYPE_CHECKING, Any

from fiber._base.threads import Deadline, turn
from fiber._objects import store
from fiber._objects.address import Kind
from fiber._objects.auth_listener import AuthListener, connect_to, open_listener
from fiber._objects.handle import ChannelObject, Handle, decode, encode
from fiber._objects.pipe import end as pipe
from fiber._objects.queue.channel import Channel
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._wire import fork
from fiber._wire.descriptors import ReadyFd
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._wire.endpoint import Peer

__all__ = [
    "AuthenticationError",
    "BufferTooShort",
    "Client",
    "Connection",
    "Listener",
    "Pipe",
    "answer_challenge",
    "deliver_challenge",
    "wait",
]

#: address families of listeners, and the one without an address
families = ["AF_INET", "AF_UNIX"]
default_family = "AF_UNIX"


class Connection(Handle):
    """End of a pipe, with the interface of ``multiprocessing.connection.Connection``.

    An end may be held by many processes and threads: each message is read by one of them, whole.
    ``recv`` raises ``EOFError`` once no process holds the other end and all that it sent was read.
    """

    _object: ChannelObject

    def _open(self) -> None:
        shape = self._object.shape
        read, written = shape.direction_read_by(self._end), shape.direction_written_by(self._end)
        self._reader = None if read is None else self._object.reader(read)
        self._writer = None if written is None else self._object.writer(written)
        # where the kernel has it
        self._socket = self._object if isinstance(self._object, pipe.End) else None
        self._never_ready: ReadyFd | None = None
        self._closed = False

    # -- whole objects

    def send(self, obj: Any) -> None:
        """Send an object.

        To a process of this host it arrives, whatever becomes of this one afterwards. To another
        host it is on its way when this returns, and arrives unless this process is killed in that
        moment; :meth:`close` waits until it has.

        Raises:
            BrokenPipeError: no process holds the other end any more.
            Exception: what pickling it raised.
            OSError: this end is closed, or only reads.
        """
        if self._writer is None or self._closed or fork.in_child:
            self._check_writable()
        item = None
        if self._socket is None:
            item = encode(obj, auth_domain=self._auth_domain or self._object.auth_domain)
        try:
            if self._socket is not None:
                self._socket.put_value(obj, self._auth_domain)
            elif self._writer is not None and item is not None:
                self._writer.put(item, True, None)
        except PeerLostError as error:
            raise BrokenPipeError(str(error)) from error

    def recv(self) -> Any:
        """Wait for the next object.

        Raises:
            EOFError: no process holds the other end any more and all it sent was read.
            OSError: this end is closed, or only writes.
        """
        return decode(self._next())

    # -- bytes

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Send a part of a bytes-like object as one message.

        Raises:
            ValueError: the part is not within it.
            BrokenPipeError: no process holds the other end any more.
            OSError: this end is closed, or only reads.
        """
        self._check_writable()
        view = memoryview(buf)
        if not view.contiguous:
            view = memoryview(view.tobytes())
        view = view.cast("B")
        if offset < 0:
            msg = "offset is negative"
            raise ValueError(msg)
        if len(view) < offset:
            msg = "buffer length < offset"
            raise ValueError(msg)
        if size is None:
            size = len(view) - offset
        elif size < 0:
            msg = "size is negative"
            raise ValueError(msg)
        elif offset + size > len(view):
            msg = "buffer length < offset + size"
            raise ValueError(msg)
        # a copy: the caller may change its own at once
        self._put(bytes(view[offset : offset + size]))

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        """Wait for the next message and return its bytes.

        Raises:
            OSError: it is longer than ``maxlength``, and this end reads no more; or this end is
                closed, or only writes.
            EOFError: no process holds the other end any more and all it sent was read.
        """
        self._check_readable()
        if maxlength is not None and maxlength < 0:
            msg = "negative maxlength"
            raise ValueError(msg)
        message = self._next_bytes()
        if maxlength is not None and len(message) > maxlength:
            if self._writer is None:
                self.close()
            self._reader = None
            msg = "bad message length"
            raise OSError(msg)
        return bytes(message)

    def recv_bytes_into(self, buf: Any, offset: int = 0) -> int:
        """Wait for the next message and write its bytes into a buffer; returns how many.

        Raises:
            BufferTooShort: they do not fit; its first argument has them.
            EOFError: no process holds the other end any more and all it sent was read.
            OSError: this end is closed, or only writes.
        """
        self._check_readable()
        with memoryview(buf) as view, view.cast("B") as target:
            if offset < 0:
                msg = "negative offset"
                raise ValueError(msg)
            if offset > len(target):
                msg = "offset too large"
                raise ValueError(msg)
            message = self._next_bytes()
            if len(target) < offset + len(message):
                raise BufferTooShort(bytes(message))
            target[offset : offset + len(message)] = message
            return len(message)

    # -- the rest

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Wait until ``recv`` would not; False when ``timeout`` seconds have passed.

        Raises:
            OSError: this end is closed, or only writes.
        """
        self._check_readable()
        assert self._reader is not None
        return self._reader.poll(timeout)

    def fileno(self) -> int:
        """A descriptor that is readable while ``recv`` would not wait.

        Where the kernel has the pipe it is the real one, of a socket.

        Raises:
            OSError: this end is closed.
        """
        self._check_open()
        if self._socket is not None:
            return self._socket.fileno()
        if self._reader is not None:
            return self._reader.fileno()
        if self._never_ready is None:
            self._never_ready = ReadyFd()
        return self._never_ready.fd

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._closed

    @property
    def readable(self) -> bool:
        """True if it can be read from."""
        return self._reader is not None

    @property
    def writable(self) -> bool:
        """True if it can be written to."""
        return self._writer is not None

    def close(self) -> None:
        """Close this handle; other holders of the end go on using it. Idempotent.

        Returns when all that was sent arrives whatever becomes of this process, on other hosts too.
        """
        if self._closed:
            return
        self._closed = True
        if self._writer is not None and not fork.is_forked_child():
            self._writer.deliver()
        if self._never_ready is not None:
            self._never_ready.close()
        self._release()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"end {self._end}"
        return f"<{type(self).__module__}.{type(self).__qualname__} {state}>"

    def __reduce__(self) -> Any:
        self._check_open()
        return super().__reduce__()

    def _state(self) -> tuple[Any, ...]:
        return (self._receiving_domain(),)

    def _restore(self, *state: Any) -> None:
        (self._auth_domain,) = state

    def _put(self, item: Item) -> None:
        assert self._writer is not None
        try:
            self._writer.put(item, True, None)
        except PeerLostError as error:
            raise BrokenPipeError(str(error)) from error

    def _next(self) -> Item:
        if self._reader is None or self._closed or fork.in_child:
            self._check_readable()
        assert self._reader is not None
        return self._reader.take(True, None)

    def _next_bytes(self) -> bytes | bytearray | memoryview:
        item = self._next()
        return item.pickled if isinstance(item, ItemWithReferences) else item

    def _check_open(self) -> None:
        if fork.is_forked_child():
            fork.check()
        if self._closed:
            msg = "handle is closed"
            raise OSError(msg)

    def _check_readable(self) -> None:
        self._check_open()
        if self._reader is None:
            msg = "connection is write-only"
            raise OSError(msg)

    def _check_writable(self) -> None:
        self._check_open()
        if self._writer is None:
            msg = "connection is read-only"
            raise OSError(msg)


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:  # noqa: N802 - the stdlib's name
    """Make a pipe and return its two ends; if not ``duplex``, the first reads, the second writes.

    Its ends may go to any process of the run. Where all of these are on one host it belongs to the
    kernel, and lasts as long as its ends are held; else it lives in this process.
    """
    process = store.current()
    if process.has_descriptors:
        first, second = pipe.pair(process, duplex=duplex)
        return _connection(first, 0), _connection(second, 0)
    return _owned_pipe(process, duplex=duplex)


def _owned_pipe(process: store.Store, *, duplex: bool) -> tuple[Connection, Connection]:
    """A pipe that lives in this process."""
    channel = Channel(process, Kind.PIPE if duplex else Kind.ONE_WAY)
    first, second = (0, 1) if duplex else (1, 0)
    return _connection(channel, first), _connection(channel, second)


def _pipe_to(peer: Peer) -> tuple[Connection, Connection]:
    """A pipe whose other end is for a peer that has proved that it has the listener's authkey."""
    process, auth_domain = store.current(), peer.auth_domain
    if process.has_descriptors and process.is_near(peer, auth_domain):
        # without a descriptor left for it, as for other hosts
        with contextlib.suppress(OSError):
            first, second = pipe.pair(process, duplex=True, auth_domain=auth_domain)
            return _connection(first, 0), _connection(second, 0)
    return _owned_pipe(process, duplex=True)


def _connection(shared: ChannelObject, end: int) -> Connection:
    shared.hold(end)
    connection = Connection.__new__(Connection)
    connection._attach(shared, end)  # noqa: SLF001 - made here and by its pickle only
    return connection


def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Wait until one of several objects is readable; returns the readable ones.

    Args:
        object_list: connections, sentinels of processes, sockets, the stdlib's connections, or
            anything else with a descriptor.
        timeout: seconds, or None.
    """
    objects = list(object_list)
    by_fd: dict[int, list[Any]] = {}
    for one in objects:
        by_fd.setdefault(one if isinstance(one, int) else one.fileno(), []).append(one)
    deadline = Deadline(timeout)
    # poll needs no kernel object, which costs more than it saves for one wait
    with getattr(selectors, "PollSelector", selectors.DefaultSelector)() as selector:
        for fd in by_fd:
            selector.register(fd, selectors.EVENT_READ)
        while True:
            left = deadline.left
            found = {key.fd for key, _ in selector.select(turn(left))}
            if found or left == 0:
                return [o for fd in found for o in by_fd[fd]]


class Listener:
    """Waits at an address for other programs, or processes of this run, to connect.

    The same as ``multiprocessing.connection.Listener``, except for authentication: nothing that a
    peer sends is interpreted before it has proved its identity. A peer with another authkey, a
    silent one or one with another protocol delays no other, and :meth:`accept` does not see it.
    Afterwards, where both sides are on one host, the connection is a pair of the kernel's sockets.

    Args:
        address: a ``(host, port)`` tuple, where port 0 is any, or the path of a socket; None for
            any address that the rest of the run can reach.
        family: ``"AF_INET"`` or ``"AF_UNIX"``; None for that of the address.
        backlog: accepted for compatibility; any number of connections may wait to be accepted.
        authkey: secret that the other side must know as well. None for processes of this run alone,
            which authenticate by the run's credentials.

    Raises:
        OSError: the address cannot be bound.
        TypeError: the authkey is not bytes.
        ValueError: no such family, or an empty authkey.
    """

    def __init__(
        self,
        address: Any = None,
        family: str | None = None,
        backlog: int = 1,
        authkey: bytes | None = None,
    ) -> None:
        # no reference to this object, which is closed when it is collected
        accepted: queue.SimpleQueue[tuple[Connection, Any] | None] = queue.SimpleQueue()

        def make_pipe(peer: Peer) -> Connection:
            own_end, other_end = _pipe_to(peer)
            # before an item is sent: the peer gets the other end after this returns
            own_end._auth_domain = peer.auth_domain  # noqa: SLF001 - made here
            accepted.put((own_end, peer.address))
            return other_end

        self._accepted = accepted
        self._listener: AuthListener | None = open_listener(address, family, authkey, make_pipe)
        self._address = self._listener.address
        self._last_accepted: Any = None
        self._closing = weakref.finalize(self, _close, self._listener, accepted)
        self._closing.atexit = False

    def accept(self) -> Connection:
        """Wait for the next connection.

        Raises:
            OSError: the listener is closed.
        """
        found = self._accepted.get() if self._listener is not None else None
        if found is None:
            # for other threads that wait
            self._accepted.put(None)
            msg = "listener is closed"
            raise OSError(msg)
        connection, self._last_accepted = found
        return connection

    def close(self) -> None:
        """Stop listening; connections that were accepted stay. Idempotent."""
        if self._listener is not None:
            self._listener = None
            self._closing()

    @property
    def address(self) -> Any:
        """The address that is listened on, with the real port."""
        return self._address

    @property
    def last_accepted(self) -> Any:
        """The address that the last accepted connection came from; empty for a socket's path."""
        return self._last_accepted

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def Client(  # noqa: N802 - the stdlib's name
    address: Any, family: str | None = None, authkey: bytes | None = None
) -> Connection:
    """Connect to a :class:`Listener` of another program, or of another process of this run.

    Args:
        address: the listener's ``address``.
        family: as for the listener.
        authkey: the listener's; None where it is of this run.

    Raises:
        AuthenticationError: the other side has another authkey, or is of another run.
        ConnectionRefusedError: no process listens at the address; FileNotFoundError if it is a path
            that does not exist.
        TypeError: the authkey is not bytes.
        ValueError: no such family, or an empty authkey.
    """
    connection: Connection = connect_to(address, family, authkey)
    return connection


def _close(
    listener: AuthListener, accepted: queue.SimpleQueue[tuple[Connection, Any] | None]
) -> None:
    listener.close()
    while not accepted.empty():
        waiting = accepted.get()
        if waiting is not None:
            waiting[0].close()
    accepted.put(None)
