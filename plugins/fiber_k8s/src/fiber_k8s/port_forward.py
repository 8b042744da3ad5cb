"""Port-forward streams: one thread copies between any number of WebSockets and socket pairs.

The first byte of each message is its channel: 0 data, 1 error (protocol ``v4.channel.k8s.io``). The
official client's port-forward is not used: it takes a thread for each stream, which waits by
``select`` (no descriptor beyond 1023), and drops buffered data when one side ends.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable

from fiber._wire.reactor import Reactor
from fiber.exceptions import BackendError, BackendUnavailableError
from fiber_k8s.client import Client
from fiber_k8s.websocket_client import WebSocket, open_websocket

__all__ = ["PortForwarder"]

log = logging.getLogger("fiber")

_PROTOCOL = "v4.channel.k8s.io"
#: most bytes read at once, and in a message
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
                opened.close()
                msg = "this backend is closed; make another one"
                raise BackendUnavailableError(msg)
            if self._reactor is None:
                self._reactor = Reactor("fiber-k8s-streams")
            inner, outer = socket.socketpair()
            inner.setblocking(False)
            outer.setblocking(True)
            forward = _Forward(self._reactor, pod, opened, inner, self._forwards.discard)
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
        websocket: WebSocket,
        local: socket.socket,
        forget: Callable[[_Forward], object],
    ) -> None:
        self._reactor = reactor
        self._pod = pod
        self._websocket, self._local = websocket, local
        self._forget = forget
        # channels whose first message, the number of the port, was received
        self._opened_channels: set[int] = set()
        self._to_local: deque[memoryview] = deque()
        self._local_bytes = 0
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
            part(self._guard, self._websocket.flush) if self._websocket.wants_write else None,
        )
        self._reactor.watch(
            self._local.fileno(),
            part(self._guard, self._read_local)
            if self._websocket.buffered < _MAX_BUFFERED
            else None,
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
            messages = self._websocket.receive()
            if messages is None:
                return
            for message in messages:
                self._handle_message(message)
            if self._websocket.is_closed:
                self.end()

    def _handle_message(self, body: bytes) -> None:
        if not body or self._ended:
            return
        channel = body[0]
        if channel not in self._opened_channels:
            self._opened_channels.add(channel)
        elif channel == _ERROR:
            words = body[1:].decode("utf-8", "replace")
            log.debug("fiber: the stream into %s: %s", self._pod, words)
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
            self._websocket.send(bytes([_DATA]) + data)
        else:
            # the other end of the pair was closed
            self.end()

    def _flush_local(self) -> None:
        while self._to_local:
            try:
                sent = self._local.send(self._to_local[0])
            except BlockingIOError:
                return
            self._local_bytes -= sent
            if sent < len(self._to_local[0]):
                self._to_local[0] = self._to_local[0][sent:]
            else:
                self._to_local.popleft()
        if not self._ended and self._websocket.has_unread:
            self._reactor.call_soon(functools.partial(self._guard, self._read_websocket))
