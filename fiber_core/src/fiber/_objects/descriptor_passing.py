"""Passing of descriptors from one process of a host to another, which has asked for them by a message.

The receiver has an inbox: an abstract socket, which has no file and disappears with its process. Any user of
the host may send to it. Only messages with a token count, which the receiver sent over the run's connection.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import socket
from collections.abc import Sequence

from fiber._wire import fork
from fiber._wire.descriptors import OwnedSocket

#: received descriptors are not inherited by programs that this process starts
CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))

log = logging.getLogger("fiber")


class Inbox:
    """Socket that receives the descriptors of one object.

    Raises:
        OSError: this process may open no more descriptors.
    """

    def __init__(self) -> None:
        #: name and token that the sender needs
        self.name, self.token = secrets.token_bytes(16), secrets.token_bytes(16)
        self._socket = OwnedSocket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(_abstract(self.name))
        fork.register(self)

    def take(self, count: int = 1) -> list[int]:
        """Receive so many descriptors, which have already been sent.

        Raises:
            OSError: this process may open no more descriptors.
        """
        flags = socket.MSG_DONTWAIT | CLOSE_ON_EXEC
        while True:
            token, found, _, _ = socket.recv_fds(self._socket, len(self.token), count, flags)
            is_ours = secrets.compare_digest(token, self.token)
            if is_ours and len(found) == count:
                return found
            for one in found:
                os.close(one)
            if is_ours:
                msg = "no descriptor is left for what another process sends; see `ulimit -n`"
                raise OSError(errno.EMFILE, msg)

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()

    # in a process forked by user code
    abandon = close


def send(sent: Sequence[int], name: bytes, token: bytes) -> bool:
    """Send descriptors; False where no process of this network namespace has that inbox."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.connect(_abstract(name))
            socket.send_fds(sock, [token], sent)
    except OSError as error:
        log.debug("fiber: descriptors could not be sent: %s", error)
        return False
    return True


def _abstract(name: bytes) -> bytes:
    return b"\0fiber-" + name.hex().encode()
