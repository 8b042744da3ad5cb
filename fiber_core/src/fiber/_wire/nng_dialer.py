"""The dialler's raw REQ0 socket: one peer, back-pressure that can be interrupted, a clear end."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pynng
from pynng import ffi, lib

from fiber._wire import descriptors, fork, frames, nng_watch
from fiber._wire.identity import Credentials
from fiber._wire.nng import RawSocket, build, check, shared_descriptors, tls
from fiber.exceptions import HandshakeError, TransportError

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
        self._socket.add_pre_pipe_connect_cb(lambda pipe: nng_watch.add(pipe, is_ours))
        self._socket.add_post_pipe_remove_cb(nng_watch.remove)
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
