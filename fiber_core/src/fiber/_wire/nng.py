"""Connections over nng (TLS over TCP, TCP, IPC): both sides, and a watch for lost TLS connections.

Raw mode makes a star of REQ/REP: any number of dialers on one listener and one port, every frame
addressed by pipe, any number of frames in either direction. From dialer to listener nng applies
back-pressure; from listener to dialer it drops what exceeds 64 frames, so an endpoint keeps to the
window that its peer has acknowledged (``frames.WINDOW``).

:class:`NngListener` is the listening side for an endpoint: it reads a :class:`RawListener` (REP0) on
the reactor, and ends TCP connections that do not become pipes in time
(:class:`UnprovenConnections`). :class:`NngDialer` (REQ0) is the dialing side: one peer,
back-pressure that signals can interrupt, a clear end.

The watch (:func:`add`, :func:`remove`): nng reads ahead of what it is asked for (1.11,
``tls_common.c``). The end of a TLS connection that arrives while no frame is awaited closes the
socket and is never reported, and what is sent afterwards vanishes in a buffer. About one in twenty
ends in the midst of traffic is lost so. No event reports it, so at ``Timing.nng_check`` the thread
``fiber-watch`` asks each TCP pipe for its peer's address, which only a connected socket has. The
thread runs as long as there are such pipes.

What pynng calls on nng's threads takes no lock: whoever holds one may wait for that very thread, as a thread
does that closes a socket. It stores, and leaves the rest to the reactor or to the thread that dials.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import select
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import process, util
from typing import Any, Protocol

import pynng
from pynng import ffi, lib

from fiber._base import values
from fiber._base.interpreter import unless_finalizing
from fiber._base.threads import Reactor, Timer
from fiber._wire import descriptors, fork, frames
from fiber._wire.descriptors import Connection, SocketAddress
from fiber._wire.handshake import Credentials
from fiber._wire.reading import Reading
from fiber.exceptions import HandshakeError, TransportError
from fiber.model.timing import Timing

#: frames that nng queues for the listener, of all peers together; all are read in one turn,
#: see NngListener._lost
BACKLOG = 128
#: most accepted connections that have proved nothing: one in so many descriptors, at most so many
_UNPROVEN_SHARE, _MAX_UNPROVEN = 4, 1024
#: most processor time that checks of them may take (fraction), and while they are many
_LOAD, _LOAD_BUSY = 0.005, 0.1
# ends the routing header of a request; the other bits would be a request id of nng's own. The receiver
# takes it from the front of the bytes that come, so the sender has it in front of the body: nng encrypts
# and sends its own length, a header, and the body of each message separately
_END = b"\x80\0\0\1"
_MESSAGE = ffi.typeof("nng_msg **")
# first bytes of a dialer's pipe: REQ0 of the SP protocols
_GREETING = b"\0SP\0\0\x30\0\0"
# errors of a connection that ended in its greeting, as one may where the listener just had another one end so, and
# accepts none for 100 ms; how often one is made then
_CUT_OFF = frozenset({lib.NNG_ECONNSHUT, lib.NNG_ECONNRESET, lib.NNG_ECONNABORTED})
_DIALS = 4
# what is called for each message: looking it up in the library costs as much as some of it
_NONBLOCK: int = lib.NNG_FLAG_NONBLOCK
_new, _view, _free = ffi.new, ffi.buffer, lib.nng_msg_free
_send, _sendmsg, _recvmsg = lib.nng_send, lib.nng_sendmsg, lib.nng_recvmsg
_pipe_of, _body_of, _size_of = lib.nng_msg_get_pipe, lib.nng_msg_body, lib.nng_msg_len
_tuned = False
# descriptors that nng's threads use for all sockets; None until the first one is opened
_shared: tuple[int, ...] | None = None
# sockets of this process
_open: weakref.WeakSet[RawSocket] = weakref.WeakSet()
_tune_lock = threading.Lock()


def versions() -> str:
    """Versions of nng and of the TLS library that it brings, as they tell them."""
    told = (lib.nng_version(), lib.nng_tls_engine_description())
    nng, tls = (ffi.string(one).decode() for one in told)
    return f"nng {nng}, {tls}"


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
        _replace_exit_handler()
        # it logs on nng's threads, and to ask whether that is wanted may take logging's lock
        pynng.nng.logger = _Silent()
        _tuned = True


class _Silent:
    """What pynng has for a logger."""

    def debug(self, _message: str) -> None:
        """Nobody sees it."""

    def exception(self, _message: str) -> None:
        """Show the error of a callback: a bug."""
        sys.excepthook(*sys.exc_info())


def _replace_exit_handler() -> None:
    # pynng's atexit handler ends nng as a whole. It would run before the stdlib's, which joins the
    # children that still need us; and nng 1.11 aborts the process when it is ended while one of its
    # threads takes a TLS pipe apart ("panic: pthread_mutex_lock", from nni_aio_stop). Closed sockets
    # do as well: their pipes call nothing of Python's any more, and nng's threads end with the process
    atexit.unregister(pynng.nng._pynng_atexit)  # noqa: SLF001 - there is no public way
    if process.parent_process() is None:
        # after all other finalizers of the stdlib's; in a child they run before its runtime closes
        util.Finalize(None, close_all, exitpriority=-10_000)


def close_all() -> None:
    """Close all sockets of this process, at its end; those of a child once its runtime is closed."""
    for one in tuple(_open):
        one.close()


def check(code: int) -> None:
    """Raise TransportError for an error code of nng."""
    if code:
        text = ffi.string(lib.nng_strerror(code)).decode()
        raise TransportError(text.lower())


def tls(credentials: Credentials, mode: int) -> pynng.TLSConfig:
    """TLS configuration of one side: shows the run's certificate and accepts no other.

    Where the credentials are used in a key exchange, the dialer has no certificate to show, and the
    only one that it accepts is the listener's own, see :func:`shown_certificate`.
    """
    is_client = mode == pynng.TLSConfig.MODE_CLIENT
    is_anonymous = credentials.is_exchanged and is_client
    no_check = credentials.is_exchanged and not is_client
    return pynng.TLSConfig(
        mode,
        server_name="fiber" if is_client else None,
        ca_string=credentials.certificate,
        own_cert_string=None if is_anonymous else credentials.certificate,
        own_key_string=None if is_anonymous else credentials.private_key,
        auth_mode=(
            pynng.TLSConfig.AUTH_MODE_NONE if no_check else pynng.TLSConfig.AUTH_MODE_REQUIRED
        ),
    )


def shown_certificate(url: str, *, timeout: float) -> str:
    """The certificate that a TLS listener shows to everybody, of which nothing is proved, as PEM.

    By a connection for that alone: nng 1.11 reveals no more than the name in a peer's certificate.

    Raises:
        TransportError: no process listens there, or none answers in time.
        HandshakeError: TLS failed.
    """
    import ssl  # most processes need none of this

    host, _, port = url.partition("://")[2].rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout) as plain,
            context.wrap_socket(plain) as stream,
        ):
            shown = stream.getpeercert(binary_form=True)
            # after a connection that ends before nng's greeting, nng accepts no other for 100 ms
            stream.sendall(_GREETING)
            stream.recv(len(_GREETING))
    except TimeoutError as error:
        raise TransportError(_no_answer(url, timeout)) from error
    except ssl.SSLError as error:
        raise HandshakeError(_tls_failed(url, error.reason or "no TLS")) from error
    except OSError as error:
        msg = f"cannot reach {url}: {(error.strerror or str(error)).lower()}"
        raise TransportError(msg) from error
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown)


def _no_answer(url: str, timeout: float) -> str:
    return f"{url} did not answer within {timeout:g} s"


def _tls_failed(url: str, reason: str) -> str:
    return (
        f"TLS to {url} failed ({reason}); the listener is of another run, or something in between is "
        "no tunnel"
    )


@contextlib.contextmanager
def _record_shared_descriptors() -> Iterator[None]:
    """Record which descriptors nng opens for all sockets, while the first socket is opened."""
    global _shared  # noqa: PLW0603 - mirrors a state of the C library
    if _shared is not None:
        yield
        return
    before = descriptors.open_descriptors()
    yield
    _shared = tuple(sorted(descriptors.open_descriptors() - before))


def shared_descriptors() -> tuple[int, ...]:
    """Descriptors of nng's that all sockets need; empty before the first socket.

    May hold others too, where other threads opened files while the first socket was made.
    """
    return _shared or ()


class _Opener(Protocol):
    def __call__(self, socket: Any) -> int: ...


class RawSocket:
    """Base of both sides: a raw nng socket, opened, read and closed."""

    def __init__(self, opener: _Opener, *, max_frame: int, buffer: int, **options: int) -> None:
        fork.check()
        _tune()
        with _record_shared_descriptors():
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
        # where nng puts the next message, and the frame that was received and not consumed: together,
        # since an interrupt may come between any two instructions
        self._state: tuple[Any, tuple[int, bytearray] | None] = ffi.new(_MESSAGE), None
        #: descriptor that is readable whenever :meth:`receive` has a frame
        self.fd: int = self._socket.recv_fd
        # keeps TLS configurations alive as long as nng may use them
        self._tls: list[pynng.TLSConfig] = []
        fork.register(self)
        _open.add(self)

    @property
    def is_closed(self) -> bool:
        """True once it was closed, by its owner or at the end of the program."""
        return self._closed

    def receive(self) -> tuple[int, bytearray] | None:
        """Receive the next frame with the number of its pipe, or None where there is none now."""
        frame = self.peek()
        self.consume()
        return frame

    @property
    def held(self) -> tuple[int, bytearray] | None:
        """The frame that was looked at last and not consumed."""
        return self._state[1]

    def peek(self) -> tuple[int, bytearray] | None:
        """The next frame, which stays the next one until :meth:`consume`."""
        if fork.in_child:
            fork.check()
        holder, frame = self._state
        if frame is not None:
            return frame
        if not holder[0]:
            code = _recvmsg(self._raw, holder, _NONBLOCK)
            if code:
                if code != lib.NNG_EAGAIN:
                    check(code)
                return None
        message = holder[0]
        # writable, since arrays are made of it without another copy
        frame = _pipe_of(message).id, bytearray(_view(_body_of(message), _size_of(message)))
        self._state = _new(_MESSAGE), frame
        _free(message)
        return frame

    def consume(self) -> None:
        """Let the frame go that :meth:`peek` returned."""
        self._state = self._state[0], None

    def close(self) -> None:
        """Close the socket; frames that nng has not sent yet are lost."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not fork.is_forked_child():
            self._socket.close()
            # a reference to itself, which would keep it and its callbacks until a collection
            vars(self._socket).pop("_handle", None)

    def abandon(self) -> None:
        """In a process forked by user code: never call nng again."""
        self._lock = threading.Lock()
        self._closed = True
        # pynng's close() and __del__ do nothing without it; nng would abort the process
        self._socket.__dict__.pop("_socket", None)


def build(head: bytes, pieces: Sequence[frames.Buffer], pipe: int = 0) -> Any:
    """Make an nng message; the caller frees it unless nng accepts it.

    Args:
        head: the frame's header.
        pieces: its body.
        pipe: the one of many pipes that it is for, which nng takes off; 0 where there is only one.
    """
    if fork.in_child:
        fork.check()
    size = len(_END) + len(head) + sum(map(len, pieces))
    holder = _new(_MESSAGE)
    if code := lib.nng_msg_alloc(holder, 0):
        check(code)
    message = holder[0]
    try:
        if pipe:
            code = lib.nng_msg_header_append_u32(message, pipe)
        if size <= frames.JOIN_BELOW:
            # each piece would be a call of nng's
            code = code or lib.nng_msg_append(message, b"".join((_END, head, *pieces)), size)
        else:
            code = code or lib.nng_msg_reserve(message, size)
            for piece in (_END, head, *pieces):
                code = code or lib.nng_msg_append(message, ffi.from_buffer(piece), len(piece))
        if code:
            check(code)
    except BaseException:
        lib.nng_msg_free(message)
        raise
    return message


class RawListener(RawSocket):
    """Raw REP0 socket: many peers, addressed by pipe. Callbacks run on nng's threads.

    Args:
        check_interval: seconds between two checks whether its connections are there.
    """

    def __init__(
        self,
        *,
        on_opened: Callable[[int], None],
        on_closed: Callable[[int], None],
        max_frame: int = frames.MAX_FRAME,
        check_interval: float,
    ) -> None:
        super().__init__(lib.nng_rep0_open_raw, max_frame=max_frame, buffer=BACKLOG)
        # before the pipe may carry its first frame
        self._socket.add_pre_pipe_connect_cb(lambda pipe: on_opened(pipe.id))
        self._socket.add_pre_pipe_connect_cb(lambda pipe: add(pipe, check_interval))
        self._socket.add_post_pipe_remove_cb(remove)
        self._socket.add_post_pipe_remove_cb(lambda pipe: on_closed(pipe.id))
        #: addresses of its TCP listeners
        self.names: list[SocketAddress] = []

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
        name = _ip_address(lib.nng_listener_get_addr, listener.listener, b"local-address")
        if name is not None:
            self.names.append(name)
        fork.remember_listener(bound)
        return bound

    def send(
        self,
        pipe: int,
        head: bytes,
        pieces: Sequence[frames.Buffer],
        *,
        more: bool = False,
    ) -> None:
        """Send one frame to a peer; nothing happens where the pipe is gone, or the socket closed."""
        message = build(head, pieces, pipe)
        # never blocks: nng drops what a pipe has no room for, which the window prevents
        if code := _sendmsg(self._raw, message, 0):
            _free(message)
            if code != lib.NNG_ECLOSED:
                check(code)

    def close_pipe(self, pipe: int) -> None:
        """Close one pipe."""
        handle = self._socket._pipes.get(pipe)  # noqa: SLF001 - pynng has no public look-up by id
        if handle is not None:
            # fails only where it is closed already
            lib.nng_pipe_close(handle.pipe)

    def connection_of(self, pipe: int) -> tuple[SocketAddress, SocketAddress] | None:
        """Local and peer address of a pipe; None for IPC, and where the pipe is gone."""
        handle = self._socket._pipes.get(pipe)  # noqa: SLF001 - see above
        if handle is None:
            return None
        local = _ip_address(lib.nng_pipe_get_addr, handle.pipe, b"local-address")
        peer = _ip_address(lib.nng_pipe_get_addr, handle.pipe, b"remote-address")
        return None if local is None or peer is None else (local, peer)


def _ip_address(
    get: Callable[[Any, bytes, Any], int], of: Any, option: bytes
) -> SocketAddress | None:
    """Address option of a listener or pipe of nng's; None where it is no IP address."""
    address = ffi.new("nng_sockaddr *")
    if get(of, option, address):
        return None
    if address.s_family == lib.NNG_AF_INET:
        found = address.s_in
        host = bytes(ffi.buffer(ffi.addressof(found, "sa_addr")))
    elif address.s_family == lib.NNG_AF_INET6:
        found = address.s_in6
        host = descriptors.unmapped(bytes(ffi.buffer(ffi.addressof(found, "sa_addr"))))
    else:
        return None
    return host, socket.ntohs(found.sa_port)


class UnprovenConnections:
    """Accepted connections that have proved nothing, with their age; decides which to end; pure.

    A pipe of the run's has shown the run's certificate in TLS, and counts no more. Where dialers have
    no certificate, a pipe counts until its peer has proved the key.

    Args:
        within: seconds that each may take to become a pipe.
    """

    def __init__(self, within: float) -> None:
        self._within = within
        self._since: dict[Connection, float] = {}
        self._cut: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._since)

    def expired(
        self,
        now: float,
        found: Iterable[Connection],
        *,
        most: int,
        is_silent: Callable[[Connection], bool],
        has_time: Callable[[Connection], bool] = lambda _: False,
    ) -> list[Connection]:
        """Return the connections to end: those past their time, and the oldest beyond ``most``.

        Args:
            now: the time, in seconds of any clock.
            found: all connections that are unproven now, oldest first where that is known.
            most: most connections to keep.
            is_silent: True for a connection that has sent nothing; these are ended first.
            has_time: True for a connection whose time somebody else limits.
        """
        current = list(found)
        # an ended connection is still found until nng has closed it
        self._cut.intersection_update(current)
        self._since = {one: self._since.get(one, now) for one in current if one not in self._cut}
        going = [
            one
            for one, since in self._since.items()
            if now - since >= self._within and not has_time(one)
        ]
        for one in going:
            del self._since[one]
        too_many = len(self._since) - most
        if too_many > 0:
            # sorting is stable: the order of equal ones is kept
            order = {one: (not is_silent(one), since) for one, since in self._since.items()}
            for one in sorted(order, key=order.__getitem__)[:too_many]:
                going.append(one)
                del self._since[one]
        self._cut.update(going)
        return going


class NngListener:
    """Listening side for an endpoint: a raw listener read on a reactor.

    Args:
        on_opened: called with the number of a new pipe, on a thread of nng's, before its first frame.
        on_frame: called with the number of a pipe and a frame received on it.
        on_closed: called with the number of a pipe that has ended.
        timing: durations of the run; a connection has as long to become a pipe, which takes TLS and
            nng's header, as a peer for a frame of its handshake.
    """

    #: most unacknowledged frames to a peer; nng would drop more
    window: float = frames.WINDOW

    def __init__(
        self,
        reactor: Reactor,
        *,
        on_opened: Callable[[int], None],
        on_frame: Callable[[int, bytearray], None],
        on_closed: Callable[[int], None],
        max_frame: int = frames.MAX_FRAME,
        timing: Timing,
    ) -> None:
        self._reactor = reactor
        self._timing = timing
        self._on_opened = on_opened
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._closed = False
        # addresses of each pipe, ours and the peer's
        self._pipes: dict[int, tuple[SocketAddress, SocketAddress]] = {}
        self._unproven = UnprovenConnections(timing.handshake)
        # pipes of proven peers; None where TLS alone proves something
        self._trusted: set[int] | None = None
        self._connections: descriptors.AcceptedConnections | None = None
        self._next_check: Timer | None = None
        self._socket = RawListener(
            on_opened=self._opened,
            on_closed=lambda pipe: reactor.call_soon(lambda: self._lost(pipe)),
            max_frame=max_frame,
            check_interval=timing.nng_check,
        )
        #: see :meth:`RawListener.send`
        self.send = self._socket.send
        #: its reading, in which threads that wait take part
        self.reading = Reading(self._socket, reactor, self._readable)

    def listen(self, url: str, credentials: Credentials) -> str:
        """See :meth:`RawListener.listen`."""
        if credentials.is_exchanged and self._trusted is None:
            self._trusted = set()
        bound = self._socket.listen(url, credentials)
        if self._socket.names and self._connections is None:
            # any process may connect: leave descriptors for the program's own files
            descriptors.raise_limit_for(_MAX_UNPROVEN)
            self._connections = descriptors.AcceptedConnections()
            self._next_check = self._reactor.call_later(
                self._timing.nng_check, self._check_unproven
            )
        return bound

    def trust(self, pipe: int) -> None:
        """Note that a peer is proven; the endpoint checks the size of an unproven one's frames."""
        if self._trusted is not None:
            self._trusted.add(pipe)

    def reading_of(self, pipe: int) -> None:
        """None: of one pipe alone nothing can be received."""

    def close_pipe(self, pipe: int) -> None:
        """Close one pipe."""
        self._socket.close_pipe(pipe)

    def peer_address(self, pipe: int) -> tuple[str, int] | str:
        """Host and port that a peer connects from; empty on this host, and where it is gone."""
        # not asked of nng, for which a connection that has just ended has no address any more
        connection = self._pipes.get(pipe)
        if connection is None:
            return ""
        packed, port = connection[1]
        family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
        return socket.inet_ntop(family, packed), port

    def close(self) -> None:
        """Close every pipe and every listener; idempotent."""
        if self._closed:
            return
        self._closed = True
        self.reading.stop()
        self._reactor.call_and_wait(self._stop_checking)
        self._socket.close()

    # -- connections that are no pipes yet, on the reactor's thread

    def _check_unproven(self) -> None:
        """Check them once, and schedule the next check.

        Nng sets a timeout for TLS that does not work: a send that waits behind a handshake is only
        cancelled at the system, which never had it (1.11, ``tls_cancel``). Nor does nng report what
        it accepts. So the system is asked now and then.
        """
        connections = self._connections
        if connections is None:
            return
        began = time.thread_time()
        wait, load = self._timing.nng_check, _LOAD
        try:
            if self._end_unproven(connections):
                wait, load = self._timing.nng_check_busy, _LOAD_BUSY
        finally:
            took = time.thread_time() - began
            self._next_check = self._reactor.call_later(
                max(wait, took / load), self._check_unproven
            )

    def _end_unproven(self, connections: descriptors.AcceptedConnections) -> bool:
        """End those past their time or too many; True where many are left."""
        found = list(connections.accepted(self._socket.names))
        # read after the system was asked, so that what became a pipe meanwhile is excluded
        pipes = self._pipes.copy()
        unproven = set() if self._trusted is None else pipes.keys() - self._trusted
        waiting = {pipes[pipe] for pipe in unproven}
        proven = set(pipes.values()) - waiting
        most = descriptors.limited_share(_UNPROVEN_SHARE, _MAX_UNPROVEN)
        for connection in self._unproven.expired(
            time.monotonic(),
            [one for one in found if (one.local, one.peer) not in proven],
            most=most,
            is_silent=connections.is_silent,
            # the endpoint has a deadline for each frame of a pipe
            has_time=lambda one: (one.local, one.peer) in waiting,
        ):
            connections.end(connection)
        return len(self._unproven) >= most / 2

    def _stop_checking(self) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.close()

    def _opened(self, pipe: int) -> None:
        # on a thread of nng's
        connection = self._socket.connection_of(pipe)
        if connection is not None:
            self._pipes[pipe] = connection
        self._on_opened(pipe)
        self._reactor.call_soon(watch)

    def _readable(self) -> None:
        with self.reading.lock:
            # with the one that was looked at
            for _ in range(BACKLOG + 1):
                try:
                    received = None if self._closed else self._socket.receive()
                except TransportError:
                    if self._closed or self._socket.is_closed:
                        # by another thread, just now
                        return
                    raise
                if received is None:
                    return
                self._on_frame(*received)

    def _lost(self, pipe: int) -> None:
        # first deliver what it sent before its end, which nng may still hold
        self._readable()
        self._pipes.pop(pipe, None)
        if self._trusted is not None:
            self._trusted.discard(pipe)
        self._on_closed(pipe)


_GONE = "the connection is gone"
# milliseconds until nng redials, which is of no use here, see _DialedPipe.admit
_NEVER = 10**9


class _DialedPipe:
    """The only pipe that a dialer ever has, with a descriptor that signals its end."""

    def __init__(self, receives: int) -> None:
        # nng's descriptor does not signal the end of a pipe; this one does, and is closed with
        # the last object that may poll it
        self.fd, self._write = os.pipe()
        self._owned = descriptors.OwnedDescriptors((self.fd, self._write))
        #: descriptors without which nothing is received
        self.needed = descriptors.OwnedDescriptors((self.fd, receives, *shared_descriptors()))
        self.on_descriptors_lost: Callable[[], None] = lambda: None
        self.lost = False
        self._admitted = False

    def admit(self, pipe: Any) -> None:
        # nng redials by itself; on a second pipe the listener would not know the session
        if self._admitted:
            pipe.close()
        self._admitted = True

    def end(self, _: Any = None) -> None:
        if not self.lost:
            self.lost = True
            if self._owned.are_intact:
                os.write(self._write, b"\0")

    def is_ours(self) -> bool:
        """False once user code has closed or replaced a descriptor; calls :attr:`on_descriptors_lost`."""
        if self.lost or self.needed.are_intact:
            return True
        self.lost = True
        self.on_descriptors_lost()
        return False

    @unless_finalizing
    def __del__(self) -> None:
        if self._owned.are_intact:
            os.close(self.fd)
            os.close(self._write)


def _start(action: Callable[[], None], name: str) -> threading.Event:
    """Run an action on a thread, or on this one at interpreter exit; returns an event set at its end."""
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


class NngDialer(RawSocket):
    """Dialing side: a raw REQ0 socket with one peer.

    Args:
        check_interval: seconds between two checks whether the connection is there.
        redial: seconds between two attempts to make it.
    """

    def __init__(
        self,
        *,
        max_frame: int = frames.MAX_FRAME,
        check_interval: float,
        redial: float = Timing().redial,
    ) -> None:
        super().__init__(
            lib.nng_req0_open_raw, max_frame=max_frame, buffer=32, reconnect_time_min=_NEVER
        )
        self._pipe = _DialedPipe(self.fd)
        # keeps acknowledgements in order; held only while nng looks at a frame
        self._order = threading.Lock()
        self._waiters: set[object] = set()
        self._redial = redial
        is_ours = self._pipe.is_ours
        self._socket.add_pre_pipe_connect_cb(lambda pipe: add(pipe, check_interval, is_ours))
        self._socket.add_post_pipe_remove_cb(remove)
        self._socket.add_pre_pipe_connect_cb(self._pipe.admit)
        self._socket.add_post_pipe_remove_cb(self._pipe.end)

    #: False: what was sent may wait in nng's threads, and is lost if this process ends at once
    survives_exit = False
    #: False: frames wait in nng, whose descriptor is readable then
    can_wait = is_drained = False
    #: none, since they wait there
    arrived = ()
    #: True: the listener has a window
    acknowledges = True

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors to wait for before :meth:`receive`."""
        return self.fd, self._pipe.fd

    @property
    def descriptors(self) -> descriptors.OwnedDescriptors:
        """Descriptors without which nothing is received."""
        return self._pipe.needed

    @property
    def end_fd(self) -> int:
        """Descriptor that is readable once the peer is gone."""
        return self._pipe.fd

    @property
    def lost(self) -> bool:
        """True once the peer is gone, or the socket closed."""
        return self._pipe.lost

    def receive(self, waits: bool = False) -> tuple[int, bytearray] | None:
        """Receive the next frame, or None where there is none now; never waits."""
        try:
            return super().receive()
        except TransportError:
            if not self.lost:
                raise
            # closed, by another thread maybe
            return None

    def reading(self, reactor: Reactor, read: Callable[[], None]) -> Reading:
        """Have ``read`` called on a reactor, and threads that wait read themselves."""
        return Reading(self, reactor, read, (self._pipe.fd,))

    def on_descriptors_lost(self, action: Callable[[], None]) -> None:
        """See :meth:`~fiber._wire.link.Link.on_descriptors_lost`."""
        self._pipe.on_descriptors_lost = action

    def dial(self, url: str, credentials: Credentials, *, timeout: float) -> Credentials:
        """Connect; the wait can be interrupted by signals.

        Returns:
            The credentials, with the listener's certificate where it has one of its own. Whether that
            is the certificate of one who knows the key, the handshake has to show.

        Raises:
            TransportError: no process listens there, or none answers in time; the socket is closed.
            HandshakeError: TLS failed.
        """
        # before the descriptor exists, so that every forked child closes it
        fork.remember_dialed(url)
        failures: list[Exception] = []
        used = credentials

        def connect() -> None:
            nonlocal used
            try:
                if url.startswith("tls+"):
                    if used.is_exchanged:
                        shown = shown_certificate(url, timeout=timeout)
                        used = values.evolve(used, certificate=shown)
                    config = tls(used, pynng.TLSConfig.MODE_CLIENT)
                    self._tls.append(config)
                    self._socket.tls_config = config
                self._make_connection(url)
            except Exception as error:
                failures.append(error)

        # nng has no timeout, and waits for ever for a silent TLS listener
        over = _start(connect, "fiber-dial")
        if not over.wait(timeout):
            self.close()
            over.wait()
            raise TransportError(_no_answer(url, timeout))
        for error in failures:
            if not isinstance(error, pynng.NNGException):
                raise error
            text = str(error).lower()
            if isinstance(error, (pynng.CryptoError, pynng.AuthenticationError)):
                raise HandshakeError(_tls_failed(url, text)) from error
            msg = f"cannot reach {url}: {text}"
            raise TransportError(msg) from error
        watch()
        return used

    def _make_connection(self, url: str) -> None:
        """Make the connection, again a few times where it ends in its greeting."""
        for left in reversed(range(_DIALS)):
            try:
                self._socket.dial(url, block=True)
            except pynng.NNGException as error:
                if not left or error.errno not in _CUT_OFF:
                    raise
            else:
                return
            time.sleep(self._redial)

    def send(self, head: Callable[[], bytes], pieces: Sequence[frames.Buffer] = ()) -> None:
        """Send one frame; blocks while the listener does not read.

        Args:
            head: makes the header; called again after a wait, so that it has the latest ``ack``.
            pieces: the body.

        Raises:
            TransportError: the peer is gone, or the socket closed.
        """
        if self._pipe.lost:
            fork.check()
            raise TransportError(_GONE)
        waiter = None
        try:
            with self._order:
                first = head()
                if sum(map(len, pieces)) <= frames.JOIN_BELOW:
                    # a message made and sent by one call of nng's
                    data = b"".join((_END, first, *pieces))
                    if not _send(self._raw, data, len(data), _NONBLOCK):
                        return
                message = build(first, pieces)
                # as :meth:`_offer`
                code = _sendmsg(self._raw, message, _NONBLOCK)
                if not code:
                    return
                waiter = object()
                self._waiters.add(waiter)
            while code:
                self._wait(code, message)
                with self._order:
                    first = _END + head()
                    ffi.memmove(lib.nng_msg_body(message), first, len(first))
                    code = self._offer(message)
                    if not code:
                        # before another sender's turn, whose header is newer
                        self._waiters.discard(waiter)
        finally:
            # an interrupt may come at any line above
            if waiter is not None:
                self._waiters.discard(waiter)

    def _wait(self, code: int, message: Any) -> None:
        """Wait until the message may be offered again; frees it on an error."""
        try:
            if code != lib.NNG_EAGAIN:
                check(code)
            self._wait_for_room()
        except BaseException:
            lib.nng_msg_free(message)
            raise

    def post(self, head: Callable[[], bytes]) -> None:
        """Send a frame without a body; never blocks, and ignores that the peer is gone.

        A reader that blocked here could wait for a peer whose reader waits for ours. Nor can nng do
        it: a non-blocking send while another is under way leaves it with dangling pointers.
        """
        with self._order:
            message = build(head(), ())
            code = self._offer(message)
            if code:
                lib.nng_msg_free(message)
            if code != lib.NNG_EAGAIN or self._waiters:
                # a waiting sender's header will have the latest acknowledgement
                return

        def later() -> None:
            try:
                self.send(head)
            except TransportError:
                # the peer is gone
                return

        _start(later, "fiber-post")

    def _offer(self, message: Any) -> int:
        # no try around it: an interrupt must not free what nng may have taken
        code: int = _sendmsg(self._raw, message, _NONBLOCK)
        return code

    def _wait_for_room(self) -> None:
        holder = ffi.new("int *")
        check(lib.nng_socket_get_int(self._raw, b"send-fd", holder))
        poll = select.poll()
        poll.register(holder[0], select.POLLIN)
        poll.register(self._pipe.fd, select.POLLIN)
        poll.poll()
        if self._pipe.lost:
            raise TransportError(_GONE)

    def close(self) -> None:
        """Close the socket; frames that nng has not sent yet are lost."""
        # first, so that threads that meet a closed socket see the pipe lost
        self._pipe.end()
        super().close()

    def abandon(self) -> None:
        """In a process forked by user code: never call nng again."""
        super().abandon()
        # no byte: the other end of the pipe is the parent's
        self._pipe.lost = True
        self._order = threading.Lock()


# pipes with the seconds between two checks and what is checked before; changed by nng's threads
_pipes: dict[int, tuple[Any, float, Callable[[], bool]]] = {}
# has something once there are none
_none_left: queue.SimpleQueue[None] = queue.SimpleQueue()
# of the thread's beginning and end
_lock = threading.Lock()
_thread: threading.Thread | None = None


def add(pipe: Any, interval: float, is_ours: Callable[[], bool] = lambda: True) -> None:
    """Have a pipe watched, if it is TCP, by the thread of :func:`watch`.

    Args:
        pipe: pynng's pipe.
        interval: seconds between two checks at most; all pipes are checked together.
        is_ours: checked before nng is called; False where user code has closed nng's descriptors,
            at which nng would abort the process.
    """
    address = ffi.new("nng_sockaddr *")
    if lib.nng_pipe_get_addr(pipe.pipe, b"remote-address", address):
        # it has ended already, of which nng may never tell
        lib.nng_pipe_close(pipe.pipe)
        return
    if address.s_family in (lib.NNG_AF_INET, lib.NNG_AF_INET6):
        _pipes[pipe.id] = pipe.pipe, interval, is_ours


def remove(pipe: Any) -> None:
    """Stop watching a pipe."""
    if _pipes.pop(pipe.id, None) is not None and not _pipes:
        _none_left.put(None)


def watch() -> None:
    """Start the thread that watches, where there are pipes; not on a thread of nng's."""
    global _thread  # noqa: PLW0603 - one thread a process
    with _lock:
        if _thread is not None or not _pipes:
            return
        _thread = threading.Thread(target=_run, name="fiber-watch", daemon=True)
        try:
            _thread.start()
        except RuntimeError:
            # the interpreter is ending
            _thread = None


def _run() -> None:
    global _thread  # noqa: PLW0603 - as above
    while True:
        with _lock:
            # copied at once: nng's threads change it
            pipes = _pipes.copy()
            if not pipes:
                _thread = None
                return
        with contextlib.suppress(queue.Empty):
            _none_left.get(timeout=min(interval for _, interval, _ in pipes.values()))
        for number, (pipe, _, is_ours) in _pipes.copy().items():
            if not is_ours():
                _pipes.pop(number, None)
                continue
            address = ffi.new("nng_sockaddr *")
            if lib.nng_pipe_get_addr(pipe, b"remote-address", address):
                _pipes.pop(number, None)
                # reports its end as any other; no effect where it was reported already
                lib.nng_pipe_close(pipe)
