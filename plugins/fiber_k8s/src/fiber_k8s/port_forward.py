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
from collections.abc import Callable

from fiber._base.sockets import Buffered
from fiber._base.threads import Reactor
from fiber.exceptions import BackendError, BackendUnavailableError
from fiber_k8s.client import Client
from fiber_k8s.websocket_client import WebSocket, open_websocket

log = logging.getLogger("fiber")

_PROTOCOL = "v4.channel.k8s.io"
#: most bytes in a message
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
    """Bridge between a WebSocket and one end of a socket pair; used on the reactor's thread alone."""

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
        self._websocket = websocket
        self._pair = local
        self._forget = forget
        # channels whose first message, the number of the port, was received
        self._opened_channels: set[int] = set()
        # True while the WebSocket is not read, for what came has not been passed on
        self._paused = False
        # True once the server said that the port, or the connection to it, failed
        self._has_failed = False
        self._ended = False

    def begin(self) -> None:
        """Register both sockets."""
        self._local = Buffered(
            self._reactor,
            self._pair,
            on_data=lambda data: self._guard(lambda: self._send(data)),
            # the other end of the pair was closed, or nobody reads what is left
            on_end=lambda _: self.end(),
            on_room=self._go_on,
        )
        # data that came with the handshake may be in the TLS layer, where poll does not see it
        self._guard(self._read_websocket)

    def end(self) -> None:
        """Close both sockets; data in the pair can still be read from its other end."""
        if self._ended:
            return
        self._ended = True
        self._reactor.watch(self._websocket.fileno(), None, None)
        self._websocket.close()
        self._local.close()
        self._forget(self)

    def _guard(self, act: Callable[[], None]) -> None:
        if self._ended:
            return
        try:
            act()
        except (OSError, BackendError) as error:
            log.debug("fiber: the stream into %s ends: %s", self._pod, error)
            self.end()
        self._watch()

    def _watch(self) -> None:
        if self._ended:
            return
        part = functools.partial
        self._paused = not self._may_read
        self._reactor.watch(
            self._websocket.fileno(),
            None if self._paused else part(self._guard, self._read_websocket),
            part(self._guard, self._websocket.flush) if self._websocket.wants_write else None,
        )
        self._local.read(self._websocket.buffered < _MAX_BUFFERED)

    @property
    def _is_over(self) -> bool:
        """True once the server sends no more data."""
        return self._has_failed or self._websocket.is_closed

    @property
    def _may_read(self) -> bool:
        return not self._is_over and self._local.waiting < _MAX_BUFFERED

    def _send(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            self._websocket.send(bytes([_DATA]) + data[start : start + _CHUNK])

    def _go_on(self) -> None:
        """Once all that was received is passed on: read what had to wait, or end."""
        if self._local.waiting:
            return
        if self._is_over:
            self.end()
        elif self._paused:
            # what is in the TLS layer makes no descriptor readable
            self._paused = False
            self._reactor.call_soon(functools.partial(self._guard, self._read_websocket))

    def _read_websocket(self) -> None:
        while not self._ended and self._may_read:
            messages = self._websocket.receive()
            if messages is None:
                return
            # at once: the last of them may be the end, which comes when nothing waits any more
            self._local.write([data for message in messages if (data := self._data_of(message))])
        if self._is_over and not self._local.waiting:
            self.end()

    def _data_of(self, body: bytes) -> bytes:
        """Return the data in a message; empty where it is about something else."""
        if not body or self._has_failed:
            return b""
        channel = body[0]
        if channel not in self._opened_channels:
            self._opened_channels.add(channel)
            return b""
        if channel == _ERROR:
            words = body[1:].decode("utf-8", "replace")
            log.debug("fiber: the stream into %s: %s", self._pod, words)
            self._has_failed = True
        return body[1:] if channel == _DATA else b""
