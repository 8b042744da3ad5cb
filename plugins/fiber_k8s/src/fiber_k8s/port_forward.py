"""Port-forward streams: one thread copies between any number of WebSockets and socket pairs.

The first byte of each message is its channel: 0 data, 1 error (protocol ``v4.channel.k8s.io``). The
official client's port-forward is not used: it takes a thread for each stream, which waits by
``select`` (no descriptor beyond 1023), and drops buffered data when one side ends.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable

from fiber._wire.reactor import Reactor
from fiber.exceptions import BackendError, BackendUnavailableError
from fiber_k8s.client import Client
from fiber_k8s.websocket_client import open_websocket
from fiber_k8s.websocket_frames import BINARY, CLOSE, PING, PONG, FrameParser, encode_frame

__all__ = ["PortForwarder"]

log = logging.getLogger("fiber")

_PROTOCOL = "v4.channel.k8s.io"
#: most bytes read at once, and in a frame
_CHUNK = 64 * 2**10
#: buffered bytes for one side from which on the other side is not read
_MAX_BUFFERED = 2**20
_DATA, _ERROR = 0, 1


class PortForwarder:
    """The port-forward streams of one backend, and their reactor's thread; thread-safe.

    Args:
        client: the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._reactor: Reactor | None = None
        self._forwards: set[_Forward] = set()
        self._closed = False

    def open(self, pod: str, port: int) -> socket.socket:
        """Return a blocking socket that is connected to a port of a pod.

        Raises:
            BackendUnavailableError: the cluster cannot be reached, or this backend is closed.
            BackendError: the cluster refused.
        """
        query = [("ports", str(port))]
        opened = open_websocket(self._client, pod, "portforward", query, [_PROTOCOL])
        with self._lock:
            if self._closed:
                opened.sock.close()
                msg = "this backend is closed; make another one"
                raise BackendUnavailableError(msg)
            if self._reactor is None:
                self._reactor = Reactor("fiber-k8s-streams")
            inner, outer = socket.socketpair()
            inner.setblocking(False)
            outer.setblocking(True)
            forward = _Forward(self._reactor, pod, opened.sock, inner, self._forwards.discard)
            self._forwards.add(forward)
            self._reactor.call_soon(forward.begin)
        return outer

    def close(self) -> None:
        """End all streams and the thread. Idempotent."""
        with self._lock:
            self._closed = True
            reactor, self._reactor = self._reactor, None
        if reactor is not None:
            reactor.call_and_wait(self._end_all)
            reactor.stop()

    def _end_all(self) -> None:
        for forward in list(self._forwards):
            forward.end()


class _Forward:
    """One WebSocket and one end of a socket pair; used on the reactor's thread alone."""

    def __init__(
        self,
        reactor: Reactor,
        pod: str,
        websocket: socket.socket,
        local: socket.socket,
        forget: Callable[[_Forward], object],
    ) -> None:
        self._reactor = reactor
        self._pod = pod
        self._websocket, self._local = websocket, local
        self._forget = forget
        self._frames = FrameParser()
        # channels whose first message, the number of the port, was received
        self._opened_channels: set[int] = set()
        self._to_websocket: deque[memoryview] = deque()
        self._to_local: deque[memoryview] = deque()
        self._websocket_bytes = self._local_bytes = 0
        self._websocket_wants_write = False
        self._ended = False

    def begin(self) -> None:
        """Register both sockets."""
        self._watch()
        # data that came with the handshake may be in the TLS layer, where poll does not see it
        self._guard(self._read_websocket)

    def end(self) -> None:
        """Close both sockets; data in the pair can still be read from its other end."""
        if self._ended:
            return
        self._ended = True
        for sock in (self._websocket, self._local):
            self._reactor.watch(sock.fileno(), None, None)
        with contextlib.suppress(OSError, ValueError):
            self._websocket.send(encode_frame(CLOSE, b"\x03\xe8"))
        self._websocket.close()
        self._local.close()
        self._forget(self)

    def _watch(self) -> None:
        if self._ended:
            return
        part = functools.partial
        self._reactor.watch(
            self._websocket.fileno(),
            part(self._guard, self._read_websocket) if self._local_bytes < _MAX_BUFFERED else None,
            part(self._guard, self._flush_websocket)
            if self._to_websocket or self._websocket_wants_write
            else None,
        )
        self._reactor.watch(
            self._local.fileno(),
            part(self._guard, self._read_local) if self._websocket_bytes < _MAX_BUFFERED else None,
            part(self._guard, self._flush_local) if self._to_local else None,
        )

    def _guard(self, act: Callable[[], None]) -> None:
        if self._ended:
            return
        try:
            act()
        except (OSError, BackendError) as error:
            log.debug("fiber: the stream into %s ends: %s", self._pod, error)
            self.end()
        self._watch()

    def _read_websocket(self) -> None:
        while not self._ended and self._local_bytes < _MAX_BUFFERED:
            try:
                data = self._websocket.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except ssl.SSLWantWriteError:
                # the TLS layer has to send first
                self._websocket_wants_write = True
                return
            if not data:
                self.end()
                return
            for opcode, body in self._frames.feed(data):
                self._handle_message(opcode, body)

    def _handle_message(self, opcode: int, body: bytes) -> None:
        if opcode == PING:
            self._send_websocket(encode_frame(PONG, body))
        elif opcode == CLOSE:
            self.end()
        elif opcode == BINARY and body and not self._ended:
            channel = body[0]
            if channel not in self._opened_channels:
                self._opened_channels.add(channel)
            elif channel == _ERROR:
                log.debug(
                    "fiber: the stream into %s: %s", self._pod, body[1:].decode("utf-8", "replace")
                )
                self.end()
            elif channel == _DATA:
                self._to_local.append(memoryview(body)[1:])
                self._local_bytes += len(body) - 1
                self._flush_local()

    def _read_local(self) -> None:
        try:
            data = self._local.recv(_CHUNK)
        except BlockingIOError:
            return
        if data:
            self._send_websocket(encode_frame(BINARY, b"\0", data))
        else:
            # the other end of the pair was closed
            self.end()

    def _send_websocket(self, data: bytes) -> None:
        if not self._ended:
            self._to_websocket.append(memoryview(data))
            self._websocket_bytes += len(data)
            self._flush_websocket()

    def _flush_websocket(self) -> None:
        self._websocket_wants_write = False
        while self._to_websocket:
            try:
                sent = self._websocket.send(self._to_websocket[0])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._websocket_bytes -= sent
            _drop(self._to_websocket, sent)

    def _flush_local(self) -> None:
        while self._to_local:
            try:
                sent = self._local.send(self._to_local[0])
            except BlockingIOError:
                return
            self._local_bytes -= sent
            _drop(self._to_local, sent)
        # poll does not see data in the TLS layer
        if (
            isinstance(self._websocket, ssl.SSLSocket)
            and not self._ended
            and self._websocket.pending()
        ):
            self._reactor.call_soon(functools.partial(self._guard, self._read_websocket))


def _drop(pieces: deque[memoryview], count: int) -> None:
    if count == len(pieces[0]):
        pieces.popleft()
    else:
        pieces[0] = pieces[0][count:]
