"""Raw nng sockets: what both sides share, and the listener's REP0; whole frames in and out.

Raw mode makes of REQ/REP a star: any number of diallers on one listener and one port, every frame
addressed by pipe, any number of frames in either direction. From dialler to listener nng holds the
sender back; from listener to dialler it drops what exceeds 64 frames, so the listener keeps to the
window that its peer has acknowledged (``wire.WINDOW``).

This module, ``dialling.py``, ``watch.py`` and ``fork.py`` are the only importers of pynng.

The dialler's raw REQ0 socket: one peer, back-pressure that can be interrupted, a clear end.

Closes TLS connections whose end nng has missed.

nng reads ahead of what it is asked for (1.11, ``tls_common.c``): the end of a TLS connection that
arrives while no frame is awaited closes the socket and is told to nobody, ever, and what is sent
afterwards vanishes in a buffer. About one in twenty ends in the midst of traffic goes that way. No
event tells of it, so every second each pipe is asked for its peer's address, which only a socket
that is connected has. The thread for it is there as long as there are such pipes.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import process, util
from typing import Any, Protocol

import pynng
from pynng import ffi, lib

from fiber._wire import descriptors, fork, frames
from fiber._wire.descriptors import Connection, Name
from fiber._wire.identity import Credentials
from fiber._wire.reactor import Reactor, Timer
from fiber.exceptions import HandshakeError, TransportError

#: frames that nng keeps for the listener to read, of all peers together; all are read in one turn,
#: see NngListening._lost
BACKLOG = 128
#: connections that may be no pipes yet: this part of all descriptors, and never more than so many
_PART, _MOST = 4, 1024
#: seconds between two looks at them, and the part of a processor's time that looking may take
_CALM = 1.0, 0.005
#: the same where they are many
_BUSY = 0.1, 0.1
# ends the routing header of a request; the other bits would be a request id of nng's own
_END = 0x80000001
_tuned = False
# descriptors that nng's threads use for all sockets; None until the first one is opened
_shared: tuple[int, ...] | None = None
# what ends nng, until the runtime of a child is closed
_put_off: list[Callable[[], Any]] = []
_tune_lock = threading.Lock()


def _tune() -> None:
    # two task threads and one poller: fewest thread hops for one process, and half the threads.
    # nng reads these once, when the first socket of the process is opened
    global _tuned  # noqa: PLW0603 - mirrors a state of the C library
    with _tune_lock:
        if _tuned:
            return
        for name, value in (("TASK", 2), ("POLLER", 1), ("EXPIRE", 1)):
            lib.nng_init_set_parameter(getattr(lib, f"NNG_INIT_NUM_{name}_THREADS"), value)
            lib.nng_init_set_parameter(getattr(lib, f"NNG_INIT_MAX_{name}_THREADS"), value)
        lib.nng_init_set_parameter(lib.NNG_INIT_NUM_RESOLVER_THREADS, 1)
        _end_last()
        _tuned = True


def _end_last() -> None:
    # pynng ends nng in an atexit handler, which would run before the stdlib's, that joins the
    # children who still need us; among the stdlib's finalizers it comes after all others
    end = pynng.nng._pynng_atexit  # noqa: SLF001 - there is no public way to put it off
    atexit.unregister(end)
    if process.parent_process() is None:
        util.Finalize(None, end, exitpriority=-10_000)
    else:
        # in a child finalizers, and since Python 3.13 atexit handlers, run before its runtime closes
        _put_off.append(end)


def end_at_exit() -> None:
    """The runtime of a child is closed: nng may end."""
    while _put_off:
        atexit.register(_put_off.pop())


def check(code: int) -> None:
    """Raise what nng calls an error."""
    if code:
        text = ffi.string(lib.nng_strerror(code)).decode()
        raise TransportError(text.lower())


def tls(credentials: Credentials, mode: int) -> pynng.TLSConfig:
    """Both sides show the run's certificate, and accept no other."""
    return pynng.TLSConfig(
        mode,
        server_name="fiber" if mode == pynng.TLSConfig.MODE_CLIENT else None,
        ca_string=credentials.certificate,
        own_cert_string=credentials.certificate,
        own_key_string=credentials.private_key,
        auth_mode=pynng.TLSConfig.AUTH_MODE_REQUIRED,
    )


@contextlib.contextmanager
def _noting_shared() -> Iterator[None]:
    """The first socket is opened within: find out which descriptors nng opens for all of them."""
    global _shared  # noqa: PLW0603 - mirrors a state of the C library
    if _shared is not None:
        yield
        return
    before = descriptors.in_use()
    yield
    _shared = tuple(sorted(descriptors.in_use() - before))


def shared_descriptors() -> tuple[int, ...]:
    """Those without which no socket of nng's works, once there is one.

    In a process that opens files on other threads meanwhile there may be more.
    """
    return _shared or ()


class _Opener(Protocol):
    def __call__(self, socket: Any) -> int: ...


class RawSocket:
    """What both sides share: open, send, receive, close."""

    def __init__(self, opener: _Opener, *, max_frame: int, buffer: int, **options: int) -> None:
        fork.check()
        _tune()
        with _noting_shared():
            self._socket = pynng.Socket(
                opener=opener,
                # nng counts its own routing header too
                recv_max_size=max_frame + 64,
                recv_buffer_size=buffer,
                send_buffer_size=buffer,
                **options,
            )
        self._raw = self._socket.socket
        self._closed = False
        self._lock = threading.Lock()
        #: readable whenever :meth:`receive` has something
        self.fd: int = self._socket.recv_fd
        # keeps TLS configurations alive as long as nng may look at them
        self._tls: list[pynng.TLSConfig] = []
        fork.register(self)

    def receive(self) -> tuple[int, bytearray] | None:
        """The next frame with the pipe it came by, or None where there is none now."""
        fork.check()
        holder = ffi.new("nng_msg **")
        code = lib.nng_recvmsg(self._raw, holder, lib.NNG_FLAG_NONBLOCK)
        if code == lib.NNG_EAGAIN:
            return None
        check(code)
        message = holder[0]
        try:
            pipe = lib.nng_pipe_id(lib.nng_msg_get_pipe(message))
            # writable, as the arrays that are made of it without another copy must be
            body = bytearray(ffi.buffer(lib.nng_msg_body(message), lib.nng_msg_len(message)))
        finally:
            lib.nng_msg_free(message)
        return pipe, body

    def close(self) -> None:
        """Close it; what was handed to nng and not sent yet is lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not fork.is_stranger():
            self._socket.close()
            # by which it refers to itself, and would be there, with what it calls, until a collection
            vars(self._socket).pop("_handle", None)

    def abandon(self) -> None:
        """In a process forked by the user: never touch nng again."""
        self._lock = threading.Lock()
        self._closed = True
        # pynng's close() and __del__ do nothing without it; nng would abort the process
        self._socket.__dict__.pop("_socket", None)


def build(pipe: int | None, head: bytes, pieces: Sequence[frames.Buffer]) -> Any:
    """A message of nng's; it is ours until nng takes it."""
    fork.check()
    holder = ffi.new("nng_msg **")
    check(lib.nng_msg_alloc(holder, 0))
    message = holder[0]
    try:
        check(lib.nng_msg_reserve(message, len(head) + sum(map(len, pieces))))
        check(lib.nng_msg_append(message, head, len(head)))
        for piece in pieces:
            if len(piece):
                check(lib.nng_msg_append(message, ffi.from_buffer(piece), len(piece)))
        if pipe is not None:
            check(lib.nng_msg_header_append_u32(message, pipe))
        check(lib.nng_msg_header_append_u32(message, _END))
    except BaseException:
        lib.nng_msg_free(message)
        raise
    return message


class ListeningSocket(RawSocket):
    """Raw REP0: many peers, addressed by pipe. The callbacks run on nng's threads."""

    def __init__(
        self,
        *,
        on_opened: Callable[[int], None],
        on_closed: Callable[[int], None],
        max_frame: int = frames.MAX_FRAME,
    ) -> None:
        super().__init__(lib.nng_rep0_open_raw, max_frame=max_frame, buffer=BACKLOG)
        # before the pipe may carry its first frame
        self._socket.add_pre_pipe_connect_cb(lambda pipe: on_opened(pipe.id))
        self._socket.add_pre_pipe_connect_cb(add)
        self._socket.add_post_pipe_remove_cb(remove)
        self._socket.add_post_pipe_remove_cb(lambda pipe: on_closed(pipe.id))
        #: where TCP connections come in
        self.names: list[Name] = []

    def listen(self, url: str, credentials: Credentials) -> str:
        """Listen; return the URL really bound.

        Raises:
            TransportError: the address cannot be bound.
        """
        try:
            if url.startswith("tls+"):
                config = tls(credentials, pynng.TLSConfig.MODE_SERVER)
                self._tls.append(config)
                self._socket.tls_config = config
            listener = self._socket.listen(url)
        except pynng.NNGException as error:
            msg = f"cannot listen on {url}: {str(error).lower()}"
            raise TransportError(msg) from error
        bound = str(listener.url)
        name = _name(lib.nng_listener_get_addr, listener.listener, b"local-address")
        if name is not None:
            self.names.append(name)
        fork.remember_listener(bound)
        return bound

    def send(self, pipe: int, head: bytes, pieces: Sequence[frames.Buffer]) -> None:
        """Hand one frame for a peer to nng; silently nothing where the pipe is gone."""
        message = build(pipe, head, pieces)
        # never waits: what a pipe has no room for, nng drops, which is what windows are for
        code = lib.nng_sendmsg(self._raw, message, 0)
        if code:
            lib.nng_msg_free(message)
            check(code)

    def close_pipe(self, pipe: int) -> None:
        """Cut one peer off."""
        handle = self._socket._pipes.get(pipe)  # noqa: SLF001 - pynng has no public look-up by id
        if handle is not None:
            # fails only where it is closed already
            lib.nng_pipe_close(handle.pipe)

    def connection_of(self, pipe: int) -> tuple[Name, Name] | None:
        """Our address and a peer's; None on this host, and where it is gone."""
        handle = self._socket._pipes.get(pipe)  # noqa: SLF001 - see above
        if handle is None:
            return None
        local = _name(lib.nng_pipe_get_addr, handle.pipe, b"local-address")
        peer = _name(lib.nng_pipe_get_addr, handle.pipe, b"remote-address")
        return None if local is None or peer is None else (local, peer)

    def peer_address(self, pipe: int) -> tuple[str, int] | str:
        """Where a peer dials from; empty on this host, and where it is gone."""
        handle = self._socket._pipes.get(pipe)  # noqa: SLF001 - see above
        host, colon, port = str(handle.remote_address if handle else "").rpartition(":")
        return (host, int(port)) if colon and port.isdigit() else ""


def _name(get: Callable[[Any, bytes, Any], int], of: Any, option: bytes) -> Name | None:
    """An address that nng tells of a listener or a pipe; None where it is no address of IP."""
    address = ffi.new("nng_sockaddr *")
    if get(of, option, address):
        return None
    if address.s_family == lib.NNG_AF_INET:
        found = address.s_in
        host = bytes(ffi.buffer(ffi.addressof(found, "sa_addr")))
    elif address.s_family == lib.NNG_AF_INET6:
        found = address.s_in6
        host = descriptors.plain(bytes(ffi.buffer(ffi.addressof(found, "sa_addr"))))
    else:
        return None
    return host, socket.ntohs(found.sa_port)


class Unproven:
    """Connections that are no pipes yet: how long there are, and which have to go; pure.

    Args:
        within: seconds that each may take.
    """

    def __init__(self, within: float) -> None:
        self._within = within
        self._since: dict[Connection, float] = {}
        self._cut: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._since)

    def look(
        self,
        now: float,
        found: Iterable[Connection],
        *,
        most: int,
        is_silent: Callable[[Connection], bool],
    ) -> list[Connection]:
        """Those that have to go: whose time is over, and the oldest where there are too many.

        Args:
            now: the time.
            found: those that there are, from the oldest to the newest where that is known.
            most: so many may be there.
            is_silent: True for one that has said nothing; these go before others.
        """
        there = list(found)
        # what was ended is there until nng has closed it
        self._cut.intersection_update(there)
        self._since = {one: self._since.get(one, now) for one in there if one not in self._cut}
        going = [one for one, since in self._since.items() if now - since >= self._within]
        for one in going:
            del self._since[one]
        too_many = len(self._since) - most
        if too_many > 0:
            # sorting keeps the order of those that are alike
            order = {one: (not is_silent(one), since) for one, since in self._since.items()}
            for one in sorted(order, key=order.__getitem__)[:too_many]:
                going.append(one)
                del self._since[one]
        self._cut.update(going)
        return going


class NngListening:
    """A listening socket that a reactor reads.

    Args:
        on_opened: called with the number of a new pipe, on a thread of nng's, before its first frame.
        on_frame: called with the number of a pipe and a frame that came by it.
        on_closed: called with the number of a pipe that has ended.
        connect_timeout: seconds that a connection has to become a pipe, which takes TLS and nng's
            header.
    """

    #: frames on the way to a peer; nng drops what is too many
    window: int | None = frames.WINDOW

    def __init__(
        self,
        reactor: Reactor,
        *,
        on_opened: Callable[[int], None],
        on_frame: Callable[[int, bytearray], None],
        on_closed: Callable[[int], None],
        max_frame: int = frames.MAX_FRAME,
        connect_timeout: float,
    ) -> None:
        self._reactor = reactor
        self._on_opened = on_opened
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._closed = False
        # addresses of each pipe, ours and the peer's
        self._pipes: dict[int, tuple[Name, Name]] = {}
        self._unproven = Unproven(connect_timeout)
        self._connections: descriptors.Connections | None = None
        self._next_look: Timer | None = None
        self._socket = ListeningSocket(
            on_opened=self._opened,
            on_closed=lambda pipe: reactor.call_soon(lambda: self._lost(pipe)),
            max_frame=max_frame,
        )
        reactor.add_reader(self._socket.fd, self._readable)

    def listen(self, url: str, credentials: Credentials) -> str:
        """See :meth:`ListeningSocket.listen`."""
        bound = self._socket.listen(url, credentials)
        if self._socket.names and self._connections is None:
            # anybody may connect, for whom there has to be room beside what the program opens
            descriptors.make_room(_MOST)
            self._connections = descriptors.Connections()
            self._next_look = self._reactor.call_later(_CALM[0], self._look)
        return bound

    def trust(self, pipe: int) -> None:
        """Nothing: nng has one limit for all, and the endpoint looks at what strangers send."""

    def send(self, pipe: int, head: bytes, pieces: Sequence[frames.Buffer]) -> None:
        """See :meth:`ListeningSocket.send`."""
        self._socket.send(pipe, head, pieces)

    def close_pipe(self, pipe: int) -> None:
        """Cut one peer off."""
        self._socket.close_pipe(pipe)

    def peer_address(self, pipe: int) -> tuple[str, int] | str:
        """Where a peer dials from; empty on this host."""
        return self._socket.peer_address(pipe)

    def close(self) -> None:
        """Close every pipe and every listener; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._reactor.remove_reader(self._socket.fd)
        self._reactor.call_and_wait(self._look_no_more)
        self._socket.close()

    # -- connections that are no pipes yet, on the reactor's thread

    def _look(self) -> None:
        """Look at them once, and again later.

        Nng sets a time for TLS and does not keep to it: what waits to be sent behind a handshake is
        only taken back from the system, which never had it (1.11, ``tls_cancel``). Nor does it tell
        of what it accepts. So the system is asked, once a second.
        """
        connections = self._connections
        if connections is None:
            return
        began = time.thread_time()
        wait, load = _CALM
        try:
            if self._end_unproven(connections):
                wait, load = _BUSY
        finally:
            took = time.thread_time() - began
            self._next_look = self._reactor.call_later(max(wait, took / load), self._look)

    def _end_unproven(self, connections: descriptors.Connections) -> bool:
        """End those that have to go; True where many are left."""
        found = list(connections.accepted(self._socket.names))
        # asked later than the system: what became a pipe meanwhile is one
        pipes = set(self._pipes.copy().values())
        most = descriptors.share(_PART, _MOST)
        for connection in self._unproven.look(
            time.monotonic(),
            [one for one in found if (one.local, one.peer) not in pipes],
            most=most,
            is_silent=connections.is_silent,
        ):
            connections.end(connection)
        return len(self._unproven) >= most / 2

    def _look_no_more(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    def _opened(self, pipe: int) -> None:
        # on a thread of nng's
        connection = self._socket.connection_of(pipe)
        if connection is not None:
            self._pipes[pipe] = connection
        self._on_opened(pipe)

    def _readable(self) -> None:
        for _ in range(BACKLOG):
            try:
                received = None if self._closed else self._socket.receive()
            except TransportError:
                if self._closed:
                    # by another thread, just now
                    return
                raise
            if received is None:
                return
            self._on_frame(*received)

    def _lost(self, pipe: int) -> None:
        # what it sent before its end counts; nng may still hold that
        self._readable()
        self._pipes.pop(pipe, None)
        self._on_closed(pipe)


# milliseconds until nng redials, which is of no use here, see _Line.admit
_NEVER = 10**9


class _Line:
    """The one pipe that a dialling socket ever has, and the news of its end."""

    def __init__(self, receives: int) -> None:
        # the end of a pipe makes nng's descriptor readable for nobody, so it gets one of its own,
        # which is closed with the last object that may look at it
        self.fd, self._write = os.pipe()
        self._held = descriptors.Held((self.fd, self._write))
        #: without which nothing is received
        self.needed = descriptors.Held((self.fd, receives, *shared_descriptors()))
        self.on_taken: Callable[[], None] = lambda: None
        self.lost = False
        self._admitted = False

    def admit(self, pipe: Any) -> None:
        # nng redials by itself; a second pipe would carry frames of a session it knows nothing of
        if self._admitted:
            pipe.close()
        self._admitted = True

    def end(self, _: Any = None) -> None:
        if not self.lost:
            self.lost = True
            if self._held.are_ours:
                os.write(self._write, b"\0")

    def is_ours(self) -> bool:
        """False, and its user is told, once somebody has closed or replaced its descriptors."""
        if self.lost or self.needed.are_ours:
            return True
        self.lost = True
        self.on_taken()
        return False

    def __del__(self) -> None:
        if self._held.are_ours:
            os.close(self.fd)
            os.close(self._write)


def _start(action: Callable[[], None], name: str) -> threading.Event:
    """Run an action beside this thread, or on it where the interpreter is ending; set when over."""
    over = threading.Event()

    def run() -> None:
        try:
            action()
        finally:
            over.set()

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError:
        # no more threads are started
        run()
    return over


class DiallingSocket(RawSocket):
    """Raw REQ0: one peer."""

    def __init__(self, *, max_frame: int = frames.MAX_FRAME) -> None:
        super().__init__(
            lib.nng_req0_open_raw, max_frame=max_frame, buffer=32, reconnect_time_min=_NEVER
        )
        self._line = _Line(self.fd)
        # what was taken in is told in its order; held for as long as nng takes to look at a frame
        self._order = threading.Lock()
        self._waiters: set[object] = set()
        is_ours = self._line.is_ours
        self._socket.add_pre_pipe_connect_cb(lambda pipe: add(pipe, is_ours))
        self._socket.add_post_pipe_remove_cb(remove)
        self._socket.add_pre_pipe_connect_cb(self._line.admit)
        self._socket.add_post_pipe_remove_cb(self._line.end)

    #: what was sent may be with nng's threads for a moment, and end with them
    keeps = False
    #: nng keeps what came, and its descriptor tells of it
    buffered = False

    @property
    def fds(self) -> tuple[int, ...]:
        """What to wait for before :meth:`receive`."""
        return self.fd, self._line.fd

    @property
    def held(self) -> descriptors.Held:
        """Those without which nothing is received."""
        return self._line.needed

    @property
    def end_fd(self) -> int:
        """Readable once the peer is gone."""
        return self._line.fd

    @property
    def lost(self) -> bool:
        """True once the peer is gone, or the socket closed."""
        return self._line.lost

    def on_taken(self, action: Callable[[], None]) -> None:
        """See :meth:`~fiber._wire.link.Link.on_taken`."""
        self._line.on_taken = action

    def dial(self, url: str, credentials: Credentials, *, timeout: float = 10.0) -> None:
        """Connect; waits in a way that signals may interrupt.

        Raises:
            TransportError: nobody listens there, or answers in time; the socket is closed then.
            HandshakeError: TLS failed.
        """
        # before, so that no fork finds a descriptor that nobody knows of
        fork.remember_dialled(url)
        failures: list[Exception] = []

        def connect() -> None:
            try:
                if url.startswith("tls+"):
                    config = tls(credentials, pynng.TLSConfig.MODE_CLIENT)
                    self._tls.append(config)
                    self._socket.tls_config = config
                self._socket.dial(url, block=True)
            except Exception as error:
                failures.append(error)

        # nng waits as long as it takes, for ever where a TLS listener says nothing
        over = _start(connect, "fiber-dial")
        if not over.wait(timeout):
            self.close()
            over.wait()
            msg = f"{url} did not answer within {timeout:g} s"
            raise TransportError(msg)
        for error in failures:
            if not isinstance(error, pynng.NNGException):
                raise error
            text = str(error).lower()
            if isinstance(error, (pynng.CryptoError, pynng.AuthenticationError)):
                msg = (
                    f"TLS to {url} failed ({text}); the listener is of another run, the clocks of "
                    "the two hosts differ by more than ten minutes, or something in between is no "
                    "tunnel"
                )
                raise HandshakeError(msg) from error
            msg = f"cannot reach {url}: {text}"
            raise TransportError(msg) from error

    def send(self, head: Callable[[], bytes], pieces: Sequence[frames.Buffer] = ()) -> None:
        """Hand one frame to nng; waits while the listener holds us back.

        Args:
            head: makes the header; asked again after a wait, so that it tells the newest.
            pieces: the body.

        Raises:
            TransportError: the peer is gone, or the socket closed.
        """
        waiter = None
        try:
            with self._order:
                message = build(None, head(), pieces)
                code = self._offer(message)
                if not code:
                    return
                waiter = object()
                self._waiters.add(waiter)
            while code:
                self._wait(code, message)
                with self._order:
                    ffi.memmove(lib.nng_msg_body(message), head(), frames.HEADER.size)
                    code = self._offer(message)
                    if not code:
                        # before anybody else's turn: what it sends is newer
                        self._waiters.discard(waiter)
        finally:
            # an interrupt may come at any line above
            self._waiters.discard(waiter)

    def _wait(self, code: int, message: Any) -> None:
        """Until the message may be offered again; frees it where it never will be."""
        try:
            if code != lib.NNG_EAGAIN:
                check(code)
            self._wait_for_room()
        except BaseException:
            lib.nng_msg_free(message)
            raise

    def post(self, head: Callable[[], bytes]) -> None:
        """Send a frame without a body and never wait for room, nor fail where the peer is gone.

        A reader that waited could wait for a peer whose reader waits for ours. Nor may it be left
        to nng: with a send under way, a send that must not wait leaves it pointers to nothing.
        """
        with self._order:
            message = build(None, head(), ())
            code = self._offer(message)
            if code:
                lib.nng_msg_free(message)
            if code != lib.NNG_EAGAIN or self._waiters:
                # whoever waits for room tells the newest
                return

        def later() -> None:
            try:
                self.send(head)
            except TransportError:
                # nobody is left to be told
                return

        _start(later, "fiber-post")

    def _offer(self, message: Any) -> int:
        # no try around it: an interrupt must not free what nng may have taken
        code: int = lib.nng_sendmsg(self._raw, message, lib.NNG_FLAG_NONBLOCK)
        return code

    def _wait_for_room(self) -> None:
        holder = ffi.new("int *")
        check(lib.nng_socket_get_int(self._raw, b"send-fd", holder))
        poll = select.poll()
        poll.register(holder[0], select.POLLIN)
        poll.register(self._line.fd, select.POLLIN)
        poll.poll()
        if self._line.lost:
            msg = "the connection is gone"
            raise TransportError(msg)

    def close(self) -> None:
        """Close it; what was handed to nng and not sent yet is lost."""
        # first, so that whoever meets a closed socket knows why
        self._line.end()
        super().close()

    def abandon(self) -> None:
        """In a process forked by the user: never touch nng again."""
        super().abandon()
        # no byte: the other end of the pipe is the parent's
        self._line.lost = True
        self._order = threading.Lock()


#: seconds between two looks
INTERVAL = 1.0

_lock = threading.Lock()
_pipes: dict[int, tuple[Any, Callable[[], bool]]] = {}
_empty = threading.Event()
_thread: threading.Thread | None = None


def add(pipe: Any, is_ours: Callable[[], bool] = lambda: True) -> None:
    """Watch a pipe of pynng's where it is one between hosts.

    Args:
        pipe: it.
        is_ours: asked before nng is; False where user code has taken nng's descriptors away, which
            would end the process if nng met it.
    """
    global _thread  # noqa: PLW0603 - one thread a process
    address = ffi.new("nng_sockaddr *")
    if lib.nng_pipe_get_addr(pipe.pipe, b"remote-address", address):
        return
    if address.s_family not in (lib.NNG_AF_INET, lib.NNG_AF_INET6):
        return
    with _lock:
        _pipes[pipe.id] = pipe.pipe, is_ours
        _empty.clear()
        if _thread is None:
            _thread = threading.Thread(target=_run, name="fiber-watch", daemon=True)
            try:
                _thread.start()
            except RuntimeError:
                # the interpreter is ending
                _thread = None


def remove(pipe: Any) -> None:
    """Watch a pipe no more."""
    with _lock:
        _pipes.pop(pipe.id, None)
        if not _pipes:
            _empty.set()


def _run() -> None:
    global _thread  # noqa: PLW0603 - as above
    while True:
        _empty.wait(INTERVAL)
        with _lock:
            if not _pipes:
                _thread = None
                return
            pipes = list(_pipes.items())
        for number, (pipe, is_ours) in pipes:
            if not is_ours():
                with _lock:
                    _pipes.pop(number, None)
                continue
            address = ffi.new("nng_sockaddr *")
            if lib.nng_pipe_get_addr(pipe, b"remote-address", address):
                with _lock:
                    _pipes.pop(number, None)
                # its end is now told as any other; nothing happens where it was told already
                lib.nng_pipe_close(pipe)
