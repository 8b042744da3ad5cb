"""Two ends of a bypass (:mod:`fiber._objects.queue.bypass`): a ``SOCK_SEQPACKET`` socket from a writer to a reader.

A message is the number of an item in the bypass, ``Q``, and its pickle.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fiber._base.threads import Looks
from fiber._objects import protocol
from fiber._objects.pipe.packets import CLOSE_ON_EXEC, Inbox, send_descriptors
from fiber._objects.protocol import Op
from fiber._wire import fork
from fiber._wire.descriptors import OwnedSocket
from fiber._wire.frames import Buffer

if TYPE_CHECKING:
    from fiber._wire.client import PendingCall

#: bytes of the largest item: a copy of it is sent as well
LARGEST = 16 * 2**10
#: seconds between two puts of a thread that does nothing else, and how many in a row go through a bypass
_TOGETHER = 0.000005
_MOST_TOGETHER = 16
#: looks before a thread sleeps, 2 us each
_MOST_LOOKS = 60
_NUMBER = struct.Struct("<Q")
_RECEIVE = int(socket.MSG_DONTWAIT) | CLOSE_ON_EXEC
_SEND = int(socket.MSG_DONTWAIT) | int(getattr(socket, "MSG_NOSIGNAL", 0))


class BypassEnd:
    """One end."""

    def __init__(self, number: int, descriptor: int) -> None:
        #: of the bypass
        self.number = number
        self._socket = OwnedSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET, descriptor)
        self._socket.setblocking(True)
        fork.register(self)

    def close(self) -> None:
        """Close it at once for the other side and for threads that wait; the descriptor with its last user. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """In a process forked by user code: close the descriptor."""
        self._socket.close()


class WritingEnd(BypassEnd):
    """A writer's end; for one thread at a time."""

    def __init__(self, number: int, descriptor: int) -> None:
        super().__init__(number, descriptor)
        #: number of the last item, and bytes of the largest one
        self.count, self.largest = 0, LARGEST
        self._together = 0

    def is_quick(self, since: float) -> bool:
        """False where puts follow so closely, the last one at ``since``, that it is better to send several at once."""
        is_together = time.perf_counter() - since < _TOGETHER
        self._together = self._together + 1 if is_together else 0
        return self._together <= _MOST_TOGETHER

    def send(self, item: bytes) -> bool:
        """Send an item; False where its reader has left, or is far behind."""
        # before it is sent: two items never have the same number, whenever an interrupt comes
        self.count += 1
        try:
            self._socket.send(_NUMBER.pack(self.count) + item, _SEND)
        except OSError:
            return False
        return True


class ReadingEnd(BypassEnd):
    """A reader's end; one thread at a time receives, any number wait."""

    def __init__(self, number: int, descriptor: int) -> None:
        super().__init__(number, descriptor)
        self._looks = Looks(_MOST_LOOKS)

    def receive(self, count: int) -> bytes | None:
        """The next item, number ``count``; None where there is none now.

        Raises:
            EOFError: the writer has left, or what is to come next was lost by an interrupt.
        """
        found = 0
        while found < count:
            # earlier ones came by way of the owner
            try:
                data = self._socket.recv(_NUMBER.size + LARGEST, _RECEIVE)
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as error:
                raise EOFError from error
            if len(data) < _NUMBER.size:
                raise EOFError
            (found,) = _NUMBER.unpack_from(data)
        if found > count:
            raise EOFError
        return data[_NUMBER.size :]

    def wait(self, seconds: float) -> None:
        """Wait until there is an item or the bypass has ended, or time has passed."""
        poll, looks = select.poll(), self._looks
        poll.register(self._socket.fileno(), select.POLLIN)
        most = left = looks.begin() if seconds > 0 else 0
        while left:
            if poll.poll(0):
                if left < most:
                    looks.found()
                return
            left = left - 1 if looks.give_way() else 0
        poll.poll(1000 * seconds)


def pair() -> tuple[OwnedSocket, OwnedSocket]:
    """Two ends, at the owner.

    Raises:
        OSError: this process may open no more descriptors.
    """
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.setblocking(True)
    second.setblocking(True)
    made = [OwnedSocket(one.family, one.type, one.detach()) for one in (first, second)]
    return made[0], made[1]


def lend(end: OwnedSocket, name: bytes, token: bytes) -> bool:
    """Send an end to the process that has asked for it, and close it here; False where it does not get it."""
    with end:
        return send_descriptors([end.fileno()], name, token)


def fetch(
    call: Callable[[Sequence[Buffer]], PendingCall], direction: int, number: int, *, writes: bool
) -> WritingEnd | ReadingEnd | None:
    """This process's end, from the owner; None where it cannot be had. Not on the handler thread.

    Raises:
        PeerLostError: the owner is lost.
    """
    # perhaps there is no descriptor left
    with contextlib.suppress(OSError), contextlib.closing(Inbox()) as inbox:
        message = protocol.FETCH_BYPASS.pack(
            Op.FETCH_BYPASS, direction, number, inbox.name, inbox.token
        )
        pending = call([message])
        pending.wait()
        (was_sent,) = protocol.read(protocol.FETCHED, pending.result())
        if was_sent:
            return (WritingEnd if writes else ReadingEnd)(number, *inbox.take())
    return None
