"""Raw nng sockets: what both sides share, and the listener's REP0; whole frames in and out.

Raw mode makes of REQ/REP a star: any number of diallers on one listener and one port, every frame
addressed by pipe, any number of frames in either direction. From dialler to listener nng holds the
sender back; from listener to dialler it drops what exceeds 64 frames, so the listener keeps to the
window that its peer has acknowledged (``wire.WINDOW``).

This module, ``dialling.py``, ``watch.py`` and ``fork.py`` are the only importers of pynng.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Sequence
from multiprocessing import process, util
from typing import Any, Protocol

import pynng
from pynng import ffi, lib

from fiber.exceptions import TransportError
from fiber.transport import fork, watch, wire
from fiber.transport.identity import Credentials
from fiber.transport.reactor import Reactor

#: frames that nng keeps for the listener to read, of all peers together; all are read in one turn,
#: see NngListening._lost
BACKLOG = 128
# ends the routing header of a request; the other bits would be a request id of nng's own
_END = 0x80000001
_tuned = False
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


class _Opener(Protocol):
    def __call__(self, socket: Any) -> int: ...


class RawSocket:
    """What both sides share: open, send, receive, close."""

    def __init__(self, opener: _Opener, *, max_frame: int, buffer: int, **options: int) -> None:
        fork.check()
        _tune()
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


def build(pipe: int | None, head: bytes, pieces: Sequence[wire.Buffer]) -> Any:
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
        max_frame: int = wire.MAX_FRAME,
    ) -> None:
        super().__init__(lib.nng_rep0_open_raw, max_frame=max_frame, buffer=BACKLOG)
        # before the pipe may carry its first frame
        self._socket.add_pre_pipe_connect_cb(lambda pipe: on_opened(pipe.id))
        self._socket.add_pre_pipe_connect_cb(watch.add)
        self._socket.add_post_pipe_remove_cb(watch.remove)
        self._socket.add_post_pipe_remove_cb(lambda pipe: on_closed(pipe.id))

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
        fork.remember_listener(bound)
        return bound

    def send(self, pipe: int, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
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

    def peer_address(self, pipe: int) -> tuple[str, int] | str:
        """Where a peer dials from; empty on this host, and where it is gone."""
        handle = self._socket._pipes.get(pipe)  # noqa: SLF001 - see above
        host, colon, port = str(handle.remote_address if handle else "").rpartition(":")
        return (host, int(port)) if colon and port.isdigit() else ""


class NngListening:
    """A listening socket that a reactor reads.

    Args:
        on_opened: called with the number of a new pipe, on a thread of nng's, before its first frame.
        on_frame: called with the number of a pipe and a frame that came by it.
        on_closed: called with the number of a pipe that has ended.
    """

    #: frames on the way to a peer; nng drops what is too many
    window: int | None = wire.WINDOW

    def __init__(
        self,
        reactor: Reactor,
        *,
        on_opened: Callable[[int], None],
        on_frame: Callable[[int, bytearray], None],
        on_closed: Callable[[int], None],
        max_frame: int = wire.MAX_FRAME,
    ) -> None:
        self._reactor = reactor
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._closed = False
        self._socket = ListeningSocket(
            on_opened=on_opened,
            on_closed=lambda pipe: reactor.call_soon(lambda: self._lost(pipe)),
            max_frame=max_frame,
        )
        reactor.add_reader(self._socket.fd, self._readable)

    def listen(self, url: str, credentials: Credentials) -> str:
        """See :meth:`ListeningSocket.listen`."""
        return self._socket.listen(url, credentials)

    def trust(self, pipe: int) -> None:
        """Nothing: nng has one limit for all, and the endpoint looks at what strangers send."""

    def send(self, pipe: int, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
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
        self._socket.close()

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
        self._on_closed(pipe)
