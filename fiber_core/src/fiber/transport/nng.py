"""Raw nng sockets: the listener's REP0 and the dialler's REQ0, whole frames in and out.

Raw mode makes of REQ/REP a star: any number of diallers on one listener and one port, every frame
addressed by pipe, any number of frames in either direction. From dialler to listener nng holds the
sender back; from listener to dialler it drops what exceeds 64 frames, so the listener keeps to the
window that its peer has acknowledged (``wire.WINDOW``).

This module and ``fork.py`` are the only importers of pynng.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pynng
from pynng import ffi, lib

from fiber.exceptions import HandshakeError, TransportError
from fiber.transport import fork, wire
from fiber.transport.identity import Credentials

# ends the routing header of a request; the other bits would be a request id of nng's own
_END = 0x80000001
_tuned = False
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
        _tuned = True


def _check(code: int) -> None:
    if code:
        text = ffi.string(lib.nng_strerror(code)).decode()
        raise TransportError(text.lower())


def _tls(credentials: Credentials, mode: int) -> pynng.TLSConfig:
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


class _RawSocket:
    """What both sides share: open, send, receive, close."""

    def __init__(self, opener: _Opener, *, max_frame: int, buffer: int) -> None:
        fork.check()
        _tune()
        self._socket = pynng.Socket(
            opener=opener,
            # nng counts its own routing header too
            recv_max_size=max_frame + 64,
            recv_buffer_size=buffer,
            send_buffer_size=buffer,
        )
        self._raw = self._socket.socket
        self._closed = False
        self._lock = threading.Lock()
        #: readable whenever :meth:`receive` has something
        self.fd: int = self._socket.recv_fd
        # keeps TLS configurations alive as long as nng may look at them
        self._tls: list[pynng.TLSConfig] = []
        fork.register(self)

    def _send(self, pipe: int | None, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
        fork.check()
        holder = ffi.new("nng_msg **")
        size = len(head) + sum(len(piece) for piece in pieces)
        _check(lib.nng_msg_alloc(holder, 0))
        message = holder[0]
        try:
            _check(lib.nng_msg_reserve(message, size))
            _check(lib.nng_msg_append(message, head, len(head)))
            for piece in pieces:
                if len(piece):
                    _check(lib.nng_msg_append(message, ffi.from_buffer(piece), len(piece)))
            if pipe is not None:
                _check(lib.nng_msg_header_append_u32(message, pipe))
            _check(lib.nng_msg_header_append_u32(message, _END))
            _check(lib.nng_sendmsg(self._raw, message, 0))
        except BaseException:
            lib.nng_msg_free(message)
            raise

    def receive(self) -> tuple[int, bytes] | None:
        """The next frame with the pipe it came by, or None where there is none now."""
        holder = ffi.new("nng_msg **")
        code = lib.nng_recvmsg(self._raw, holder, lib.NNG_FLAG_NONBLOCK)
        if code == lib.NNG_EAGAIN:
            return None
        _check(code)
        message = holder[0]
        try:
            pipe = lib.nng_pipe_id(lib.nng_msg_get_pipe(message))
            body = ffi.buffer(lib.nng_msg_body(message), lib.nng_msg_len(message))[:]
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

    def abandon(self) -> None:
        """In a process forked by the user: never touch nng again."""
        self._closed = True
        # pynng's close() and __del__ do nothing without it; nng would abort the process
        self._socket.__dict__.pop("_socket", None)


class ListeningSocket(_RawSocket):
    """Raw REP0: many peers, addressed by pipe."""

    def __init__(
        self,
        *,
        on_closed: Callable[[int], None],
        max_frame: int = wire.MAX_FRAME,
    ) -> None:
        super().__init__(lib.nng_rep0_open_raw, max_frame=max_frame, buffer=128)
        self._socket.add_post_pipe_remove_cb(lambda pipe: on_closed(pipe.id))

    def listen(self, url: str, credentials: Credentials) -> str:
        """Listen; return the URL really bound.

        Raises:
            TransportError: the address cannot be bound.
        """
        if url.startswith("tls+"):
            config = _tls(credentials, pynng.TLSConfig.MODE_SERVER)
            self._tls.append(config)
            self._socket.tls_config = config
        try:
            listener = self._socket.listen(url)
        except pynng.NNGException as error:
            msg = f"cannot listen on {url}: {error}"
            raise TransportError(msg) from error
        bound = str(listener.url)
        fork.remember_listener(bound)
        return bound

    def send(self, pipe: int, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
        """Hand one frame for a peer to nng; silently nothing where the pipe is gone."""
        self._send(pipe, head, pieces)

    def close_pipe(self, pipe: int) -> None:
        """Cut one peer off."""
        handle = self._socket._pipes.get(pipe)  # noqa: SLF001 - pynng has no public look-up by id
        if handle is not None:
            handle.close()


class DiallingSocket(_RawSocket):
    """Raw REQ0: one peer."""

    def __init__(
        self,
        *,
        on_closed: Callable[[], None],
        max_frame: int = wire.MAX_FRAME,
    ) -> None:
        super().__init__(lib.nng_req0_open_raw, max_frame=max_frame, buffer=32)
        self._pipes = 0
        self._socket.add_pre_pipe_connect_cb(self._first_only)
        self._socket.add_post_pipe_remove_cb(lambda _: on_closed())

    def _first_only(self, pipe: Any) -> None:
        # nng redials by itself; a second pipe would carry frames of a session it knows nothing of
        self._pipes += 1
        if self._pipes > 1:
            pipe.close()

    def dial(self, url: str, credentials: Credentials) -> None:
        """Connect.

        Raises:
            TransportError: nobody listens there.
            HandshakeError: TLS failed.
        """
        if url.startswith("tls+"):
            config = _tls(credentials, pynng.TLSConfig.MODE_CLIENT)
            self._tls.append(config)
            self._socket.tls_config = config
        try:
            self._socket.dial(url, block=True)
        except (pynng.CryptoError, pynng.AuthenticationError) as error:
            msg = (
                f"TLS to {url} failed ({error}); the listener is of another run, the clocks of the "
                "two hosts differ by more than ten minutes, or something in between is no tunnel"
            )
            raise HandshakeError(msg) from error
        except pynng.NNGException as error:
            msg = f"cannot reach {url}: {error}"
            raise TransportError(msg) from error
        fork.remember_dialled(url)

    def send(self, head: bytes, pieces: Sequence[wire.Buffer]) -> None:
        """Hand one frame to nng; waits while the listener holds us back."""
        self._send(None, head, pieces)
