"""``Listener`` and ``Client``: connections between programs that share an address and an authkey."""

from __future__ import annotations

import queue
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fiber._objects.auth_listener import Door, enter, open_door
from fiber.pipes import Connection, Pipe

if TYPE_CHECKING:
    from fiber._wire.endpoint import Peer

__all__ = ["Client", "Listener"]


class Listener:
    """Waits at an address for other programs, or processes of this run, to connect.

    The same as ``multiprocessing.connection.Listener``, except for who gets in: nothing that a peer
    sends is looked at before it has proved who it is, so one with another authkey, one that says
    nothing and one that talks nonsense hold up nobody, and :meth:`accept` hears of none of them.

    Args:
        address: a ``(host, port)`` tuple, where port 0 is any, or the path of a socket; None for
            any address that the rest of the run can reach.
        family: ``"AF_INET"`` or ``"AF_UNIX"``; as the address tells where it is None.
        backlog: accepted for compatibility; any number of connections may wait to be accepted.
        authkey: what the other side must know as well. None for processes of this run alone, which
            show that they are.

    Raises:
        OSError: the address cannot be bound.
        TypeError: the authkey is no bytes.
        ValueError: no such family, or an empty authkey.
    """

    def __init__(
        self,
        address: Any = None,
        family: str | None = None,
        backlog: int = 1,
        authkey: bytes | None = None,
    ) -> None:
        # apart from this object, which is closed when nobody has it any more
        came: queue.SimpleQueue[tuple[Connection, Any] | None] = queue.SimpleQueue()

        def welcome(peer: Peer) -> Connection:
            here, there = Pipe()
            # before anybody sends by it: the other end is told to the newcomer afterwards
            here._realm = peer.realm  # noqa: SLF001 - made here
            came.put((here, peer.address))
            return there

        self._came = came
        self._door: Door | None = open_door(address, family, authkey, welcome)
        self._address = self._door.address
        self._last_accepted: Any = None
        self._closing = weakref.finalize(self, _close, self._door, came)
        self._closing.atexit = False

    def accept(self) -> Connection:
        """Wait for the next connection.

        Raises:
            OSError: the listener is closed.
        """
        found = self._came.get() if self._door is not None else None
        if found is None:
            # for others that wait
            self._came.put(None)
            msg = "listener is closed"
            raise OSError(msg)
        connection, self._last_accepted = found
        return connection

    def close(self) -> None:
        """Stop listening; connections that were accepted stay. Idempotent."""
        if self._door is not None:
            self._door = None
            self._closing()

    @property
    def address(self) -> Any:
        """The address that is listened on, with the real port."""
        return self._address

    @property
    def last_accepted(self) -> Any:
        """The address that the last accepted connection came from; empty for a socket's path."""
        return self._last_accepted

    def __enter__(self) -> Listener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def Client(  # noqa: N802 - the stdlib's name
    address: Any, family: str | None = None, authkey: bytes | None = None
) -> Connection:
    """Connect to a :class:`Listener` of another program, or of another process of this run.

    Args:
        address: what the listener's ``address`` says.
        family: as for the listener.
        authkey: the listener's; None where it is of this run.

    Raises:
        AuthenticationError: the other side has another authkey, or is of another run.
        ConnectionRefusedError: nobody listens there; FileNotFoundError where there is no such path.
        TypeError: the authkey is no bytes.
        ValueError: no such family, or an empty authkey.
    """
    connection: Connection = enter(address, family, authkey)
    return connection


def _close(door: Door, came: queue.SimpleQueue[tuple[Connection, Any] | None]) -> None:
    door.close()
    while not came.empty():
        waiting = came.get()
        if waiting is not None:
            waiting[0].close()
    came.put(None)
