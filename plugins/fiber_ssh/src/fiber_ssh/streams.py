"""Streams into jobs: ``direct-tcpip`` channels of a host's connection, joined to socket pairs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import paramiko

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.connect import CONNECTION_ERRORS

_LOOPBACK = "127.0.0.1"
_PIECE = 256 * 1024
#: a port without a listener: sshd reports a refused connection, or that it is not allowed to dial
_UNUSED_PORT = 1
#: SSH_OPEN_ADMINISTRATIVELY_PROHIBITED of RFC 4254, section 5.1
_PROHIBITED = 1


def stream_refusal(transport: paramiko.Transport, timeout: float) -> str:
    """Why sshd does not forward to ports of its host; empty where it does."""
    try:
        channel = _dial(transport, _UNUSED_PORT, timeout)
    except paramiko.ChannelException as error:
        return str(error.text) if error.code == _PROHIBITED else ""
    except CONNECTION_ERRORS:
        # opening a stream fails with the reason
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
        self._splices: set[_Splice] = set()
        self._closed = False

    def open(self, transport: paramiko.Transport, port: int) -> socket.socket:
        """Open a stream to a port of the host's loopback; the socket is the caller's.

        Raises:
            BackendUnavailableError: the port has no listener, or the connection dropped.
        """
        try:
            channel = _dial(transport, port, self._timeout)
        except CONNECTION_ERRORS as error:
            msg = f"no stream to port {port} of host {self._host} can be opened: {error}"
            raise BackendUnavailableError(msg) from error
        local, remote = socket.socketpair()
        local.setblocking(True)
        remote.setblocking(True)
        splice = _Splice(channel, local, self._forget)
        with self._lock:
            closed = self._closed
            if not closed:
                self._splices.add(splice)
                splice.start()
        if closed:
            for end in channel, local, remote:
                end.close()
            msg = f"the connection to host {self._host} is closed"
            raise BackendUnavailableError(msg)
        return remote

    def close(self) -> None:
        """Close all streams. Idempotent."""
        with self._lock:
            self._closed = True
            splices = list(self._splices)
        for splice in splices:
            splice.end()

    def _forget(self, splice: _Splice) -> None:
        with self._lock:
            self._splices.discard(splice)


class _Splice:
    """A channel joined to a socket, with a thread for each direction."""

    def __init__(
        self, channel: paramiko.Channel, sock: socket.socket, on_end: Callable[[_Splice], None]
    ) -> None:
        self._channel = channel
        self._sock = sock
        self._on_end = on_end
        self._outbound = threading.Thread(
            target=self._copy, args=(sock.recv, channel.sendall), daemon=True
        )
        self._inbound = threading.Thread(target=self._copy_inbound, daemon=True)

    def start(self) -> None:
        self._outbound.start()
        self._inbound.start()

    def end(self) -> None:
        """Close both, and wait for the threads."""
        self._shut_down()
        self._inbound.join(10.0)

    def _copy_inbound(self) -> None:
        self._copy(self._channel.recv, self._sock.sendall)
        self._outbound.join()
        self._sock.close()
        self._on_end(self)

    def _copy(self, read: Callable[[int], bytes], write: Callable[[bytes], None]) -> None:
        with contextlib.suppress(*CONNECTION_ERRORS):
            while data := read(_PIECE):
                write(data)
        self._shut_down()

    def _shut_down(self) -> None:
        # the peer still reads what was written before
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        # the transport may be closed already
        with contextlib.suppress(*CONNECTION_ERRORS):
            self._channel.close()


def _dial(transport: paramiko.Transport, port: int, timeout: float) -> paramiko.Channel:
    return transport.open_channel(
        "direct-tcpip", (_LOOPBACK, port), (_LOOPBACK, 0), timeout=timeout
    )
