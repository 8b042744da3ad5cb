"""Streams into pods by port-forward: one thread joins any number of WebSockets to socket pairs.

The official client has a port-forward too. It starts a thread for each, which waits by ``select`` (no
descriptor beyond 1023), and drops what is on its way when one side ends.
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
from fiber_k8s.channels import open_channels
from fiber_k8s.client import Client
from fiber_k8s.websocket import BINARY, CLOSE, PING, PONG, Frames, frame

__all__ = ["Streams"]

log = logging.getLogger("fiber")

_PROTOCOL = "v4.channel.k8s.io"
#: bytes taken at once, which is what a frame carries
_PIECE = 64 * 2**10
#: bytes for one side that it has not taken, from which on the other side is not read
_FULL = 2**20
_DATA, _ERROR = 0, 1


class Streams:
    """The streams of one backend; thread-safe.

    Args:
        client: the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._reactor: Reactor | None = None
        self._joints: set[_Joint] = set()
        self._closed = False

    def open(self, pod: str, port: int) -> socket.socket:
        """A stream to a port of a pod.

        Raises:
            BackendUnavailableError: the cluster cannot be asked, or this backend is closed.
            BackendError: it refused.
        """
        query = [("ports", str(port))]
        opened = open_channels(self._client, pod, "portforward", query, [_PROTOCOL])
        with self._lock:
            if self._closed:
                opened.sock.close()
                msg = "this backend is closed; make another one"
                raise BackendUnavailableError(msg)
            if self._reactor is None:
                self._reactor = Reactor("fiber-k8s-streams")
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(True)
            joint = _Joint(self._reactor, pod, opened.sock, ours, self._joints.discard)
            self._joints.add(joint)
            self._reactor.call_soon(joint.begin)
        return theirs

    def close(self) -> None:
        """End all. Idempotent."""
        with self._lock:
            self._closed = True
            reactor, self._reactor = self._reactor, None
        if reactor is not None:
            reactor.call_and_wait(self._end_all)
            reactor.stop()

    def _end_all(self) -> None:
        for joint in list(self._joints):
            joint.end()


class _Joint:
    """One WebSocket and the end of a pair; for the reactor's thread."""

    def __init__(
        self,
        reactor: Reactor,
        pod: str,
        far: socket.socket,
        near: socket.socket,
        forget: Callable[[_Joint], object],
    ) -> None:
        self._reactor = reactor
        self._pod = pod
        self._far, self._near = far, near
        self._forget = forget
        self._frames = Frames()
        # the first message of each channel is the number of its port
        self._greeted: set[int] = set()
        self._to_far: deque[memoryview] = deque()
        self._to_near: deque[memoryview] = deque()
        self._far_waiting = self._near_waiting = 0
        self._far_writes = False
        self._over = False

    def begin(self) -> None:
        """Go to work."""
        self._watch()
        # what came with the answer is in the TLS layer, of which no descriptor tells
        self._guard(self._from_far)

    def end(self) -> None:
        """Close both; what the pair has been given is still read there."""
        if self._over:
            return
        self._over = True
        for sock in (self._far, self._near):
            self._reactor.watch(sock.fileno(), None, None)
        with contextlib.suppress(OSError, ValueError):
            self._far.send(frame(CLOSE, b"\x03\xe8"))
        self._far.close()
        self._near.close()
        self._forget(self)

    def _watch(self) -> None:
        if self._over:
            return
        part = functools.partial
        self._reactor.watch(
            self._far.fileno(),
            part(self._guard, self._from_far) if self._near_waiting < _FULL else None,
            part(self._guard, self._flush_far) if self._to_far or self._far_writes else None,
        )
        self._reactor.watch(
            self._near.fileno(),
            part(self._guard, self._from_near) if self._far_waiting < _FULL else None,
            part(self._guard, self._flush_near) if self._to_near else None,
        )

    def _guard(self, act: Callable[[], None]) -> None:
        if self._over:
            return
        try:
            act()
        except (OSError, BackendError) as error:
            log.debug("fiber: the stream into %s ends: %s", self._pod, error)
            self.end()
        self._watch()

    def _from_far(self) -> None:
        while not self._over and self._near_waiting < _FULL:
            try:
                data = self._far.recv(_PIECE)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except ssl.SSLWantWriteError:
                # the TLS layer has something to say first
                self._far_writes = True
                return
            if not data:
                self.end()
                return
            for opcode, body in self._frames.feed(data):
                self._take(opcode, body)

    def _take(self, opcode: int, body: bytes) -> None:
        if opcode == PING:
            self._send_far(frame(PONG, body))
        elif opcode == CLOSE:
            self.end()
        elif opcode == BINARY and body and not self._over:
            channel = body[0]
            if channel not in self._greeted:
                self._greeted.add(channel)
            elif channel == _ERROR:
                log.debug(
                    "fiber: the stream into %s: %s", self._pod, body[1:].decode("utf-8", "replace")
                )
                self.end()
            elif channel == _DATA:
                self._to_near.append(memoryview(body)[1:])
                self._near_waiting += len(body) - 1
                self._flush_near()

    def _from_near(self) -> None:
        try:
            data = self._near.recv(_PIECE)
        except BlockingIOError:
            return
        if data:
            self._send_far(frame(BINARY, b"\0", data))
        else:
            # whoever had the other end has closed it
            self.end()

    def _send_far(self, data: bytes) -> None:
        if not self._over:
            self._to_far.append(memoryview(data))
            self._far_waiting += len(data)
            self._flush_far()

    def _flush_far(self) -> None:
        self._far_writes = False
        while self._to_far:
            try:
                sent = self._far.send(self._to_far[0])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            self._far_waiting -= sent
            _drop(self._to_far, sent)

    def _flush_near(self) -> None:
        while self._to_near:
            try:
                sent = self._near.send(self._to_near[0])
            except BlockingIOError:
                return
            self._near_waiting -= sent
            _drop(self._to_near, sent)
        # what the TLS layer holds is told of by no descriptor
        if isinstance(self._far, ssl.SSLSocket) and not self._over and self._far.pending():
            self._reactor.call_soon(functools.partial(self._guard, self._from_far))


def _drop(pieces: deque[memoryview], count: int) -> None:
    if count == len(pieces[0]):
        pieces.popleft()
    else:
        pieces[0] = pieces[0][count:]
