"""Streams into jobs: channels of a host's connection, each joined to one end of a pair of sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import paramiko

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.dial import DROPPED

__all__ = ["Streams", "refusal"]

_LOOPBACK = "127.0.0.1"
_PIECE = 256 * 1024
#: a port at which nobody listens: sshd says so, where it would dial at all
_NOBODY = 1
#: sshd's answer where it is configured to dial nowhere
_PROHIBITED = 1


def refusal(transport: paramiko.Transport, timeout: float) -> str:
    """Why sshd dials no port of its host for us; nothing where it does."""
    try:
        channel = _dial(transport, _NOBODY, timeout)
    except paramiko.ChannelException as error:
        return str(error.text) if error.code == _PROHIBITED else ""
    except DROPPED:
        # whoever opens a stream finds out
        return ""
    channel.close()
    return ""


class Streams:
    """The streams into jobs of one host; thread-safe.

    Args:
        host: its name.
        timeout: seconds for a stream to be opened.
    """

    def __init__(self, host: str, timeout: float) -> None:
        self._host = host
        self._timeout = timeout
        self._lock = threading.Lock()
        self._joints: set[_Joint] = set()
        self._closed = False

    def open(self, transport: paramiko.Transport, port: int) -> socket.socket:
        """A stream to a port of the host's loopback.

        Raises:
            BackendUnavailableError: nobody listens there now, or the connection dropped.
        """
        try:
            channel = _dial(transport, port, self._timeout)
        except DROPPED as error:
            msg = f"no stream to port {port} of host {self._host} can be opened: {error}"
            raise BackendUnavailableError(msg) from error
        ours, theirs = socket.socketpair()
        ours.setblocking(True)
        theirs.setblocking(True)
        joint = _Joint(channel, ours, self._forget)
        with self._lock:
            closed = self._closed
            if not closed:
                self._joints.add(joint)
                joint.begin()
        if closed:
            for end in channel, ours, theirs:
                end.close()
            msg = f"the connection to host {self._host} is closed"
            raise BackendUnavailableError(msg)
        return theirs

    def close(self) -> None:
        """End all. Idempotent."""
        with self._lock:
            self._closed = True
            joints = list(self._joints)
        for joint in joints:
            joint.end()

    def _forget(self, joint: _Joint) -> None:
        with self._lock:
            self._joints.discard(joint)


class _Joint:
    """A channel and a socket; a thread each way, for either may have to wait."""

    def __init__(
        self, channel: paramiko.Channel, sock: socket.socket, over: Callable[[_Joint], None]
    ) -> None:
        self._channel = channel
        self._sock = sock
        self._over = over
        self._there = threading.Thread(
            target=self._copy, args=(sock.recv, channel.sendall), daemon=True
        )
        self._back = threading.Thread(target=self._carry_back, daemon=True)

    def begin(self) -> None:
        self._there.start()
        self._back.start()

    def end(self) -> None:
        """End it, and wait until it has ended."""
        self._part()
        self._back.join(10.0)

    def _carry_back(self) -> None:
        self._copy(self._channel.recv, self._sock.sendall)
        self._there.join()
        self._sock.close()
        self._over(self)

    def _copy(self, read: Callable[[int], bytes], write: Callable[[bytes], None]) -> None:
        with contextlib.suppress(*DROPPED):
            while data := read(_PIECE):
                write(data)
        self._part()

    def _part(self) -> None:
        # what the pair was given is still read at its other end
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        # the connection under it may be closed already
        with contextlib.suppress(*DROPPED):
            self._channel.close()


def _dial(transport: paramiko.Transport, port: int, timeout: float) -> paramiko.Channel:
    return transport.open_channel(
        "direct-tcpip", (_LOOPBACK, port), (_LOOPBACK, 0), timeout=timeout
    )
