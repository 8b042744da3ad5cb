"""Descriptor streams: sockets by which two processes of one host exchange descriptors of large items.

The bytes of an item in memory (:class:`~fiber._objects.pipe.memories.ItemInMemory`) are in no message of a
queue. The message has a *reference*, with the number of the descriptor that was sent before through the stream.
So an item is copied once by the process that puts it and once by the one that gets it; the owner of the queue
passes it on without reading it.

A stream is made by one call, when the first item needs it. If there is none, or no room or no descriptor for
another item, the message has the item's bytes.

Separate from the two sides of queues, because both use it.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fiber._base.interpreter import unless_finalizing
from fiber._base.sockets import NO_ROOM
from fiber._objects import protocol
from fiber._objects.handle import encode, encode_into
from fiber._objects.pipe import memories
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.pipe.packets import CLOSE_ON_EXEC, Inbox, Packet, send_descriptors
from fiber._objects.protocol import Op
from fiber._objects.queue.channel import DESCRIPTOR_STREAM
from fiber._objects.queue.messages import Item, ItemWithReferences, MemoryReference
from fiber._wire import fork
from fiber._wire.descriptors import OwnedSocket
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.remote_object import Owner
    from fiber._wire.endpoint import Peer

#: number of a descriptor, bytes of its item
_HEAD = struct.Struct("=QQ")
_DESCRIPTOR = struct.Struct("@i")
_ANCILLARY = socket.CMSG_SPACE(_DESCRIPTOR.size)
_SEND_FLAGS = int(socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
_LOOK_FLAGS = CLOSE_ON_EXEC | int(socket.MSG_DONTWAIT | socket.MSG_PEEK)
#: most items without a reference yet; there are some, because sending threads overtake each other
_MOST_FOUND = 64
#: tries to get a descriptor where none but the spare one is left, which other threads may be faster to use
_TRIES = 100


class DescriptorStream:
    """One side of a stream; descriptors go both ways.

    Any thread may send. One thread receives: the one that handles the messages with references.

    Args:
        descriptor: of a ``SOCK_SEQPACKET`` socket, which belongs to this object from then on.

    Raises:
        OSError: there is no descriptor left for it.
    """

    def __init__(self, descriptor: int) -> None:
        # closed to make room for a received descriptor when no other is left
        self._spare = -1
        self._socket = OwnedSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET, descriptor)
        self._socket.setblocking(True)
        self._numbers = itertools.count(1)
        # items without a reference yet, or without one for ever, if their sender died in between
        self._found: dict[int, ItemInMemory | bytes] = {}
        #: True once the other side has its socket, so that references may be sent to it
        self.is_open = False
        fork.register(self)
        self._keep_spare()

    @classmethod
    def pair(cls) -> tuple[DescriptorStream, socket.socket]:
        """Make a stream; returns one side, and the socket of the other."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(True)
        there.setblocking(True)
        try:
            return cls(here.detach()), there
        except OSError:
            there.close()
            raise

    def send_items(self, items: Iterable[Item]) -> list[Item]:
        """Send the descriptors of items in memory; returns the items, with references in place of these."""
        return [self._send(item) if type(item) is ItemInMemory else item for item in items]

    def receive_items(self, items: Iterable[Item]) -> list[Item]:
        """Receive the descriptors of references; returns the items, with memory in place of these.

        Raises:
            WireError: the descriptor of a reference was not sent.
        """
        return [self._take(item) if type(item) is MemoryReference else item for item in items]

    def close(self) -> None:
        """Close the stream. Idempotent."""
        self._socket.release()
        self._give_up_spare()
        self._found.clear()

    # in a process forked by user code
    abandon = close

    @unless_finalizing
    def __del__(self) -> None:
        self.close()

    def _send(self, item: ItemInMemory) -> Item:
        number = next(self._numbers)
        head = _HEAD.pack(number, item.size)
        rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(item.fileno())
        try:
            self._socket.sendmsg([head], [rights], _SEND_FLAGS)
        except OSError:
            # the receiver is behind, gone, or this user has too many descriptors on their way
            return item.copy()
        return MemoryReference.to(number, item.size)

    def _take(self, reference: MemoryReference) -> Item:
        number, size = reference.fields()
        while number not in self._found:
            self._receive()
        item = self._found.pop(number)
        if isinstance(item, bytes):
            return item
        if item.holds(size):
            return item if memories.are_few() else item.read()
        msg = f"an item of {size} bytes came in memory that has fewer"
        raise WireError(msg)

    def _receive(self) -> None:
        """Receive one item."""
        for _ in range(_TRIES):
            # looked at first: a descriptor that there is no number for would be lost with its message
            try:
                data, ancillary, flags, _ = self._socket.recvmsg(
                    _HEAD.size, _ANCILLARY, _LOOK_FLAGS
                )
            except ConnectionResetError:
                # the other side is gone with unread messages; ours may still be read
                continue
            except OSError as error:
                msg = "the descriptor of an item in memory did not come"
                raise WireError(msg) from error
            if not flags & socket.MSG_CTRUNC:
                break
            self._give_up_spare()
        else:
            msg = "no descriptor was left for an item of a queue; see `ulimit -n`"
            raise WireError(msg)
        found = [one for _, _, packed in ancillary for (one,) in _DESCRIPTOR.iter_unpack(packed)]
        if len(data) != _HEAD.size or len(found) != 1:
            for one in found:
                os.close(one)
            msg = f"a message of {len(data)} bytes came with {len(found)} descriptors of items"
            raise WireError(msg)
        self._socket.recv(_HEAD.size, socket.MSG_DONTWAIT)
        number, size = _HEAD.unpack(data)
        item = ItemInMemory(size, descriptor=found[0])
        self._found[number] = item if self._spare >= 0 else item.read()
        del item
        self._keep_spare()
        if len(self._found) > _MOST_FOUND:
            # the queue that it was for exists no more
            del self._found[next(iter(self._found))]

    def _give_up_spare(self) -> None:
        spare, self._spare = self._spare, -1
        if spare >= 0:
            os.close(spare)

    def _keep_spare(self) -> None:
        if self._spare < 0:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


#: in place of name and token: the requested stream has arrived
_OPENED = bytes(16)


def open_stream(owner: Owner, target: int, keep: Callable[[DescriptorStream], object]) -> None:
    """Open a stream to the owner of a queue, where that is possible.

    Not on the handler thread, because it waits for the owner.

    Args:
        owner: connection to the owner.
        target: target of the queue.
        keep: called with the stream, before the owner sends anything through it.

    Raises:
        PeerLostError: the owner is lost.
    """
    with contextlib.suppress(OSError), contextlib.closing(Inbox()) as inbox:
        pending = owner.call(
            target, [protocol.OPEN_STREAM.pack(Op.OPEN_STREAM, 0, inbox.name, inbox.token)]
        )
        pending.wait()
        (is_sent,) = protocol.read(protocol.STREAM_OPENED, pending.result())
        if is_sent:
            keep(DescriptorStream(*inbox.take()))
            # from now on somebody receives
            owner.cast(target, [protocol.OPEN_STREAM.pack(Op.OPEN_STREAM, 0, _OPENED, _OPENED)])


def accept_stream(peer: Peer, name: bytes, token: bytes) -> bool:
    """Make the owner's side of a stream that a process requests; False where that is not possible."""
    if name == _OPENED:
        known = peer.state.get(DESCRIPTOR_STREAM)
        if isinstance(known, DescriptorStream):
            known.is_open = True
        return True
    with contextlib.suppress(OSError):
        stream, there = DescriptorStream.pair()
        with there:
            if send_descriptors([there.fileno()], name, token):
                peer.state[DESCRIPTOR_STREAM] = stream
                return True
        stream.close()
    return False


def encoded(value: Any) -> Item:
    """Pickle of a large value, in memory where there is room and the value has no references."""
    if not memories.are_few():
        return encode(value)
    try:
        packet, references = encode_into(Packet, value)
    except OSError as error:
        # memory counts as a file of that size
        if error.errno not in NO_ROOM | {errno.EFBIG, errno.ENOSPC}:
            raise
        return encode(value)
    item = None if references else packet.detach()
    if item is not None:
        return item
    pickled = packet.getvalue()
    packet.close(is_sent=False)
    return ItemWithReferences.of(references, pickled) if references else pickled
