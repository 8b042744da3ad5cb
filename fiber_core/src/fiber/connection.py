"""``Pipe``, ``Listener``, ``Client`` and ``wait``: as in ``multiprocessing.connection``.

``answer_challenge`` and ``deliver_challenge`` are the standard library's own, which work with any
connection. Nothing here needs them: who connects has proved itself before.

``Pipe`` and its ends.

``wait`` for several connections, sentinels of processes, sockets and pipes at once.

``Listener`` and ``Client``: connections between programs that share an address and an authkey.
"""

from __future__ import annotations

import queue
import selectors
import time
import weakref
from collections.abc import Iterable
from multiprocessing import AuthenticationError, BufferTooShort
from multiprocessing.connection import answer_challenge, deliver_challenge
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fiber._objects import store
from fiber._objects.address import Kind
from fiber._objects.auth_listener import Door, enter, open_door
from fiber._objects.handle import Channels, Handle, decode, encode
from fiber._objects.queue.messages import Item, Laden
from fiber._objects.queue.ready_fd import Bell
from fiber._wire import fork
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


class Connection(Handle):
    """One end of a pipe; the same as ``multiprocessing.connection.Connection``.

    An end may be held by many processes and threads: each message is read by one of them, whole.
    ``recv`` raises ``EOFError`` once nobody holds the other end and all that it sent was read.
    """

    _object: Channels

    def _open(self) -> None:
        shape = self._object.shape
        read, written = shape.lane_read_by(self._end), shape.lane_written_by(self._end)
        self._source = None if read is None else self._object.source(read)
        self._sink = None if written is None else self._object.sink(written)
        self._silent: Bell | None = None
        self._closed = False

    # -- whole objects

    def send(self, obj: Any) -> None:
        """Send an object.

        To a process of this host it arrives, whatever becomes of this one afterwards. To another host
        it is on its way when this returns, and arrives unless this process is killed in that moment;
        :meth:`close` waits until it has.

        Raises:
            BrokenPipeError: nobody holds the other end any more.
            Exception: what pickling it raised.
            OSError: this end is closed, or only reads.
        """
        self._check_writable()
        self._put(encode(obj, realm=self._readers()))

    def recv(self) -> Any:
        """Wait for the next object.

        Raises:
            EOFError: nobody holds the other end any more and all it sent was read.
            OSError: this end is closed, or only writes.
        """
        return decode(self._next())

    # -- bytes

    def send_bytes(self, buf: Any, offset: int = 0, size: int | None = None) -> None:
        """Send a part of a bytes-like object as one message.

        Raises:
            ValueError: the part is not within it.
            BrokenPipeError: nobody holds the other end any more.
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
            EOFError: nobody holds the other end any more and all it sent was read.
        """
        self._check_readable()
        if maxlength is not None and maxlength < 0:
            msg = "negative maxlength"
            raise ValueError(msg)
        message = self._next_bytes()
        if maxlength is not None and len(message) > maxlength:
            if self._sink is None:
                self.close()
            self._source = None
            msg = "bad message length"
            raise OSError(msg)
        return bytes(message)

    def recv_bytes_into(self, buf: Any, offset: int = 0) -> int:
        """Wait for the next message and write its bytes into a buffer; how many.

        Raises:
            BufferTooShort: they do not fit; its first argument has them.
            EOFError: nobody holds the other end any more and all it sent was read.
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
        assert self._source is not None
        return self._source.ready(timeout)

    def fileno(self) -> int:
        """A descriptor that is readable while ``recv`` would not wait.

        Raises:
            OSError: this end is closed.
        """
        self._check_open()
        if self._source is not None:
            return self._source.bell().fd
        if self._silent is None:
            self._silent = Bell()
        return self._silent.fd

    @property
    def closed(self) -> bool:
        """True once it was closed."""
        return self._closed

    @property
    def readable(self) -> bool:
        """True where it can be read from."""
        return self._source is not None

    @property
    def writable(self) -> bool:
        """True where it can be written to."""
        return self._sink is not None

    def close(self) -> None:
        """Let go of this end; other holders of it go on using it. Idempotent.

        Returns when all that was sent arrives whatever becomes of this process, on other hosts too.
        """
        if self._closed:
            return
        self._closed = True
        if self._sink is not None and not fork.is_stranger():
            self._sink.deliver()
        if self._silent is not None:
            self._silent.close()
        self._let_go()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"end {self._end}"
        return f"<{type(self).__module__}.{type(self).__qualname__} {state}>"

    def __reduce__(self) -> Any:
        self._check_open()
        return super().__reduce__()

    def _state(self) -> tuple[Any, ...]:
        return (self._readers(),)

    def _restore(self, *state: Any) -> None:
        (self._realm,) = state

    def _put(self, item: Item) -> None:
        assert self._sink is not None
        try:
            self._sink.put(item, True, None)
        except PeerLostError as error:
            raise BrokenPipeError(str(error)) from error

    def _next(self) -> Item:
        self._check_readable()
        assert self._source is not None
        return self._source.take(True, None)

    def _next_bytes(self) -> bytes | bytearray | memoryview:
        item = self._next()
        return item.pickled if isinstance(item, Laden) else item

    def _check_open(self) -> None:
        if fork.is_stranger():
            fork.check()
        if self._closed:
            msg = "handle is closed"
            raise OSError(msg)

    def _check_readable(self) -> None:
        self._check_open()
        if self._source is None:
            msg = "connection is write-only"
            raise OSError(msg)

    def _check_writable(self) -> None:
        self._check_open()
        if self._sink is None:
            msg = "connection is read-only"
            raise OSError(msg)


def Pipe(duplex: bool = True) -> tuple[Connection, Connection]:  # noqa: N802 - the stdlib's name
    """The two ends of a new pipe; where not ``duplex``, the first reads and the second writes.

    The pipe lives in this process. Its ends may go to any process of the run.
    """
    channel = store.current().channel(Kind.PIPE if duplex else Kind.ONE_WAY)
    ends = []
    for end in (0, 1) if duplex else (1, 0):
        channel.hold(end)
        connection = Connection.__new__(Connection)
        connection._take_hold(channel, end)  # noqa: SLF001 - made here and by its pickle only
        ends.append(connection)
    return ends[0], ends[1]


def wait(object_list: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """Wait until something can be read from one of several objects; those of which it is true.

    Args:
        object_list: connections, sentinels of processes, sockets, the stdlib's connections, or
            anything else with a descriptor.
        timeout: seconds, or None.
    """
    objects = list(object_list)
    by_fd: dict[int, list[Any]] = {}
    for one in objects:
        by_fd.setdefault(one if isinstance(one, int) else one.fileno(), []).append(one)
    deadline = None if timeout is None else time.monotonic() + timeout
    # a set of descriptors of its own costs less than a kernel object for one wait
    with getattr(selectors, "PollSelector", selectors.DefaultSelector)() as selector:
        for fd in by_fd:
            selector.register(fd, selectors.EVENT_READ)
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            found = {key.fd for key, _ in selector.select(left)}
            if found or left == 0:
                return [o for fd in found for o in by_fd[fd]]


class Listener:
    """Waits at an address for other programs, or processes of this run, to connect.

    The same as ``multiprocessing.connection.Listener``, except for who gets in: nothing that a peer
    sends is looked at before it has proved who it is, so one with another authkey, one that says
    nothing and one that talks nonsense hold up nobody, and :meth:`accept` hears of none of them.

    Args:
        address: a ``(host, port)`` tuple, where port 0 is any, or the path of a socket; None for
            any address that the rest of the run can reach.
        family: ``"AF_INET"`` or ``"AF_UNIX"``; as the address tells where it is None.
        backlog: accepted for compatibility; any number of connections may wait to be accepted.
        authkey: what the other side must know as well. None for processes of this run alone, which
            show that they are.

    Raises:
        OSError: the address cannot be bound.
        TypeError: the authkey is no bytes.
        ValueError: no such family, or an empty authkey.
    """

    def __init__(
        self,
        address: Any = None,
        family: str | None = None,
        backlog: int = 1,
        authkey: bytes | None = None,
    ) -> None:
        # apart from this object, which is closed when nobody has it any more
        came: queue.SimpleQueue[tuple[Connection, Any] | None] = queue.SimpleQueue()

        def welcome(peer: Peer) -> Connection:
            here, there = Pipe()
            # before anybody sends by it: the other end is told to the newcomer afterwards
            here._realm = peer.realm  # noqa: SLF001 - made here
            came.put((here, peer.address))
            return there

        self._came = came
        self._door: Door | None = open_door(address, family, authkey, welcome)
        self._address = self._door.address
        self._last_accepted: Any = None
        self._closing = weakref.finalize(self, _close, self._door, came)
        self._closing.atexit = False

    def accept(self) -> Connection:
        """Wait for the next connection.

        Raises:
            OSError: the listener is closed.
        """
        found = self._came.get() if self._door is not None else None
        if found is None:
            # for others that wait
            self._came.put(None)
            msg = "listener is closed"
            raise OSError(msg)
        connection, self._last_accepted = found
        return connection

    def close(self) -> None:
        """Stop listening; connections that were accepted stay. Idempotent."""
        if self._door is not None:
            self._door = None
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def Client(  # noqa: N802 - the stdlib's name
    address: Any, family: str | None = None, authkey: bytes | None = None
) -> Connection:
    """Connect to a :class:`Listener` of another program, or of another process of this run.

    Args:
        address: what the listener's ``address`` says.
        family: as for the listener.
        authkey: the listener's; None where it is of this run.

    Raises:
        AuthenticationError: the other side has another authkey, or is of another run.
        ConnectionRefusedError: nobody listens there; FileNotFoundError where there is no such path.
        TypeError: the authkey is no bytes.
        ValueError: no such family, or an empty authkey.
    """
    connection: Connection = enter(address, family, authkey)
    return connection


def _close(door: Door, came: queue.SimpleQueue[tuple[Connection, Any] | None]) -> None:
    door.close()
    while not came.empty():
        waiting = came.get()
        if waiting is not None:
            waiting[0].close()
    came.put(None)
