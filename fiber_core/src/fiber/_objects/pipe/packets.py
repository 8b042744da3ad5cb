"""Messages of pipes on a ``SOCK_SEQPACKET`` socket.

A message is the bytes of an item and, at the end, one byte of flags: ``IN_MEMORY`` where the item is in a
memfd that comes with the message, which has its length; ``REFERENCES`` for an item with references. A
*receipt* comes with those, the writing end of an ``os.pipe``: the receiver writes a byte when it has the
item. Where the message is dropped unread the kernel closes the receipt, which its sender sees.

A socket is shared with other processes, so it stays in blocking mode. It has the kernel's timeouts: a call
that waits returns after :data:`~fiber._base.threads.TURN` seconds, so that handlers of signals are run.

Such sockets, and other descriptors, are also passed to a process of the host that has asked for them by a message. The
receiver has an :class:`Inbox`: an abstract socket, which has no file and disappears with its process. Any user of the host
may send to it. Only messages with a token count, which the receiver sent over the run's connection.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from fiber._base.threads import TURN, Looks, in_turns
from fiber._objects.pipe import memories
from fiber._objects.pipe.memories import ItemInMemory, Memory
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._wire import fork
from fiber._wire.descriptors import OwnedSocket
from fiber._wire.frames import Buffer

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


def send_descriptors(sent: Sequence[int], name: bytes, token: bytes) -> bool:
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


#: most bytes of an item that travel in the message itself: up to about 150 KB that takes less time than memory,
#: and all that a system with small buffers lets a message have is 128
INLINE = 96 * 2**10
IN_MEMORY = 1
REFERENCES = 2
#: numbers, since to combine members of an enumeration costs as much as a system call
_AT_ONCE_FLAGS = CLOSE_ON_EXEC | int(socket.MSG_DONTWAIT)
_SEND_FLAGS = int(socket.MSG_NOSIGNAL)

#: bytes of an item up to which it costs less to copy it than to send two pieces
_SMALL = 1024
_FLAGS = [bytes([number]) for number in range(4)]
_LENGTH = struct.Struct("=Q")
_DESCRIPTOR = struct.Struct("@i")
#: room for a memfd and a receipt
_ANCILLARY = socket.CMSG_SPACE(2 * _DESCRIPTOR.size)
_TURN = struct.pack("@ll", int(TURN), int(TURN % 1 * 1e6))
#: bytes that wait unread: the kernel gives what its limit allows
_BUFFER = 8 * 2**20
_GONE = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ENOTCONN})
#: looks for an answer before a thread sleeps, 1 us each
_MOST_LOOKS = 20
#: seconds between two tries while this user has too many descriptors in messages that nobody has read
_PAUSE = 0.02


class Packet:
    """A message in the making: an item is written to it, then it is sent.

    Pieces are joined by the kernel; from :data:`INLINE` bytes on they go to a memfd at once.
    """

    def __init__(self) -> None:
        self._pieces: list[Buffer] = []
        self._size = 0
        self._memory: Memory | None = None

    def write(self, data: Buffer) -> None:
        """Write a part of the item, which may change afterwards."""
        if type(data) is not bytes:
            data = memoryview(data).cast("B")
        size = len(data)
        if self._memory is None and self._size + size <= INLINE:
            self._pieces.append(data if type(data) is bytes else bytes(data))
        else:
            if self._memory is None:
                self._memory = memories.take(self._size + size)
                self._memory.write(b"".join(self._pieces), 0)
            self._memory.write(data, self._size)
        self._size += size

    def getvalue(self) -> bytes:
        """The item."""
        if self._memory is None:
            return b"".join(self._pieces)
        return self._memory.read(self._size)

    def message(self, flags: int) -> tuple[Sequence[Buffer], tuple[int, ...]]:
        """Pieces and descriptors of the message, which is sent next."""
        if self._memory is None:
            return (*self._pieces, _FLAGS[flags]), ()
        # before it is sent: its receiver may be done with it before the call that sends returns
        self._memory.is_used = True
        return (_LENGTH.pack(self._size), _FLAGS[flags | IN_MEMORY]), (self._memory.fd,)

    def close(self, *, is_sent: bool) -> None:
        """Let go its memory; idempotent."""
        memory, self._memory = self._memory, None
        if memory is not None:
            if not is_sent:
                memory.is_used = False
            memories.give_back(memory)

    def detach(self) -> ItemInMemory | None:
        """The item, which is the caller's from now on; None where it is so small that it is in no memory."""
        memory, self._memory = self._memory, None
        if memory is None:
            return None
        return ItemInMemory(self._size, memory)

    def __del__(self) -> None:
        # of one that could not be pickled; without a lock, which this thread may hold
        if self._memory is not None:
            self._memory.close()


class PacketSocket:
    """One socket of a pair; any thread sends and receives.

    Args:
        descriptor: of the socket, which belongs to this object from then on.
        await_receipt: called for each item with references that was sent, with the descriptor of a
            pipe and the item: a byte comes when somebody has it, the pipe's end when nobody will.
    """

    #: name of the auth domain that loads what is sent: none, since it is of this run
    auth_domain: str | None = None

    def __init__(
        self, descriptor: int, await_receipt: Callable[[int, ItemWithReferences], None]
    ) -> None:
        self._socket = OwnedSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET, descriptor)
        self._socket.setblocking(True)
        self._await_receipt = await_receipt
        self._looks = Looks(_MOST_LOOKS)
        fork.register(self)

    @classmethod
    def pair(
        cls, await_receipt: Callable[[int, ItemWithReferences], None]
    ) -> tuple[PacketSocket, PacketSocket]:
        """Two that are connected with each other."""
        first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (first, second):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TURN)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TURN)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        first.setblocking(True)
        second.setblocking(True)
        return cls(first.detach(), await_receipt), cls(second.detach(), await_receipt)

    @classmethod
    def of(
        cls,
        descriptors: Sequence[int],
        await_receipt: Callable[[int, ItemWithReferences], None],
    ) -> PacketSocket:
        """One, or a :class:`PacketLoop`, of descriptors as of :meth:`filenos`."""
        if len(descriptors) == 1:
            return cls(descriptors[0], await_receipt)
        receiving, sending = descriptors
        return PacketLoop(receiving, sending, await_receipt)

    @property
    def is_hung_up(self) -> bool:
        """True once nobody holds the other end."""
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return bool(poll.poll(0))

    def fileno(self) -> int:
        """Its descriptor, -1 once it is closed."""
        return self._socket.fileno()

    def filenos(self) -> list[int]:
        """Descriptors by which another process has the same."""
        return [self.fileno()]

    def put(self, item: Item) -> None:
        """Send an item; waits while its reader is behind.

        Raises:
            BrokenPipeError: nobody holds the other end.
            OSError: this one is closed, or there is no memory or no descriptor for the item.
        """
        if type(item) is ItemInMemory:
            # of a queue of processes that cannot have the descriptor
            item = item.read()
        if isinstance(item, ItemWithReferences):
            body, with_references = item.body, item
        elif len(item) <= INLINE:
            is_small = len(item) <= _SMALL
            self._send((b"".join((item, _FLAGS[0])),) if is_small else (item, _FLAGS[0]))
            return
        else:
            body, with_references = item, None
        packet = Packet()
        packet.write(body)
        self.send(packet, with_references)

    def send(self, packet: Packet, item: ItemWithReferences | None = None) -> None:
        """Send a packet, and close it.

        Args:
            packet: with an item.
            item: the same, where it has references.

        Raises:
            OSError: as of :meth:`put`.
        """
        is_sent = False
        try:
            if item is None:
                self._send(*packet.message(0))
            else:
                self._send_with_receipt(packet, item)
            is_sent = True
        finally:
            packet.close(is_sent=is_sent)

    def take(self, *, wait: bool = True) -> Item:
        """Take the next item.

        Args:
            wait: for one, if there is none.

        Raises:
            queue.Empty: there is none.
            EOFError: nobody holds the other end, and all that was sent there is read.
            OSError: this one is closed, or there is no descriptor for the item.
        """
        most = looks = self._looks.begin() if wait else 1
        while True:
            flags = _AT_ONCE_FLAGS if looks else CLOSE_ON_EXEC
            try:
                data, ancillary, received, _ = self._socket.recvmsg(INLINE + 1, _ANCILLARY, flags)
            except (BlockingIOError, InterruptedError):
                if not wait:
                    raise queue.Empty from None
                if looks:
                    looks -= 1
                # else a turn has passed
                continue
            except ConnectionResetError:
                # the other end is gone with unread messages; ours may still be read
                continue
            if not data:
                raise EOFError
            if 0 < looks < most:
                self._looks.found()
            return data[:-1] if data[-1] == 0 else _whole(data, ancillary, received)

    def poll(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would not; False when ``timeout`` seconds have passed."""
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        if timeout is not None and timeout <= 0:
            return bool(poll.poll(0))
        return in_turns(lambda turn: bool(poll.poll(1000 * turn)), timeout)

    def duplicate(self) -> PacketSocket:
        """The same by another descriptor."""
        return PacketSocket(os.dup(self._socket.fileno()), self._await_receipt)

    def close(self) -> None:
        """Close the descriptor; idempotent. Others of the socket stay open."""
        self._socket.release()

    def abandon(self) -> None:
        """In a process forked by user code: close the descriptor."""
        self._socket.close()

    def detach(self) -> int:
        """Its descriptor, which is the caller's from now on."""
        return self._socket.detach()

    def _send_with_receipt(self, packet: Packet, item: ItemWithReferences) -> None:
        back, receipt = os.pipe()
        try:
            pieces, descriptors = packet.message(REFERENCES)
            self._send(pieces, (*descriptors, receipt))
        except BaseException:
            os.close(back)
            raise
        finally:
            os.close(receipt)
        self._await_receipt(back, item)

    def _send(self, pieces: Sequence[Buffer], descriptors: Sequence[int] = ()) -> None:
        ancillary: Sequence[tuple[int, int, bytes]] = ()
        if descriptors:
            packed = b"".join(map(_DESCRIPTOR.pack, descriptors))
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed)]
        while True:
            try:
                self._socket.sendmsg(pieces, ancillary, _SEND_FLAGS)
            except (BlockingIOError, InterruptedError):
                # a turn has passed
                continue
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:
                    # no call waits for that
                    threading.Event().wait(_PAUSE)
                    continue
                if error.errno in _GONE:
                    msg = "no process holds the other end of this pipe any more"
                    raise BrokenPipeError(errno.EPIPE, msg) from error
                raise
            else:
                return


class PacketLoop(PacketSocket):
    """Both sockets of a pair as one: what anybody sends, one of those that receive gets.

    Args:
        receiving: descriptor of the socket that is received from.
        sending: of the one that is sent to.
        await_receipt: as of a :class:`PacketSocket`.
    """

    def __init__(
        self,
        receiving: int,
        sending: int,
        await_receipt: Callable[[int, ItemWithReferences], None],
    ) -> None:
        super().__init__(receiving, await_receipt)
        self._way_in = PacketSocket(sending, await_receipt)

    @classmethod
    def new(cls, await_receipt: Callable[[int, ItemWithReferences], None]) -> PacketLoop:
        """A new one."""
        receiving, sending = PacketSocket.pair(await_receipt)
        return cls(receiving.detach(), sending.detach(), await_receipt)

    def filenos(self) -> list[int]:
        """Descriptors by which another process has the same."""
        return [self.fileno(), self._way_in.fileno()]

    def send(self, packet: Packet, item: ItemWithReferences | None = None) -> None:
        """Send a packet, see :meth:`PacketSocket.send`."""
        self._way_in.send(packet, item)

    def put(self, item: Item) -> None:
        """Send an item, see :meth:`PacketSocket.put`."""
        self._way_in.put(item)

    def duplicate(self) -> PacketLoop:
        """The same by other descriptors."""
        receiving = super().duplicate()
        return PacketLoop(
            receiving.detach(), self._way_in.duplicate().detach(), self._await_receipt
        )

    def close(self) -> None:
        """Close the descriptors; idempotent. Others of the sockets stay open."""
        super().close()
        self._way_in.close()


def _whole(data: bytes, ancillary: list[tuple[int, int, bytes]], received: int) -> Item:
    """The item of a message that came with descriptors."""
    flags, body = data[-1], memoryview(data)[:-1]
    descriptors = [one for _, _, packed in ancillary for (one,) in _DESCRIPTOR.iter_unpack(packed)]
    try:
        if received & socket.MSG_CTRUNC:
            msg = "no descriptor was left for an item of a pipe, which is lost; see `ulimit -n`"
            raise OSError(errno.EMFILE, msg)
        if flags & IN_MEMORY:
            # closed with the item
            (size,) = _LENGTH.unpack(body)
            item = ItemInMemory(size, descriptor=descriptors.pop(0))
            if not flags & REFERENCES:
                return item
            body = item.pickled
        # its sender may be gone
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptors[-1], b"\1")
        return ItemWithReferences(body)
    finally:
        for one in descriptors:
            os.close(one)
