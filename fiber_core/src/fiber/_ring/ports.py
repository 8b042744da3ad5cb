"""A port of this host that stays a member's own until its user code binds it."""

from __future__ import annotations

import socket


class KeptPort:
    """Bound and not listened at, so the system gives it to nobody who asks for any port.

    Who asks for this very port and allows the reuse of addresses, as servers do, gets it.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("", 0))
        except BaseException:
            self._socket.close()
            raise
        #: its number
        self.number: int = self._socket.getsockname()[1]

    def listener(self) -> socket.socket:
        """A listening socket at it; the port stays kept when that is closed."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setblocking(True)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", self.number))
            listener.listen(128)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Give it back; idempotent."""
        self._socket.close()
