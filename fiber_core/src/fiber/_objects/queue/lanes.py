"""Lanes: sockets by which two processes of one host exchange the descriptors of items in memory.

An item in memory (:class:`~fiber._objects.pipe.memories.ItemInMemory`) is in no message of a queue: a
*ticket* is, with the number of the descriptor that was sent before by the lane. So it is copied once by who
puts it and once by who gets it, and the owner of the queue passes it on without reading it.

A lane is made when the first item needs it, by one call. Where there is none, or no room or no descriptor
for another item, the item's bytes are in the message.

Apart from the two sides of queues, which both use it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from fiber._base.finalizing import unless_finalizing
from fiber._objects import couriers, protocol
from fiber._objects.couriers import CLOSE_ON_EXEC
from fiber._objects.handle import encode, encode_into
from fiber._objects.pipe import memories
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.pipe.packets import Packet
from fiber._objects.protocol import Op
from fiber._objects.queue.channel import LANE
from fiber._objects.queue.messages import Item, ItemWithReferences, Ticket
from fiber._wire import fork
from fiber._wire.descriptors import NO_ROOM, OwnedSocket
from fiber.exceptions import WireError

if TYPE_CHECKING:
    from fiber._objects.owner_connection import Owner
    from fiber._wire.endpoint import Peer

#: number of a descriptor, bytes of its item
_HEAD = struct.Struct("=QQ")
_DESCRIPTOR = struct.Struct("@i")
_ANCILLARY = socket.CMSG_SPACE(_DESCRIPTOR.size)
_SEND_FLAGS = int(socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0))
_LOOK_FLAGS = CLOSE_ON_EXEC | int(socket.MSG_DONTWAIT | socket.MSG_PEEK)
#: most items whose tickets have not come, since threads that send overtake each other
_MOST_FOUND = 64
#: tries to get a descriptor where none but the spare one is left, which other threads may be faster to use
_TRIES = 100


class Lane:
    """One side of a lane; descriptors go both ways.

    Any thread sends; one receives, the one that takes the messages with tickets.

    Args:
        descriptor: of a ``SOCK_SEQPACKET`` socket, which belongs to this object from then on.

    Raises:
        OSError: there is no descriptor left for it.
    """

    def __init__(self, descriptor: int) -> None:
        # given up for a descriptor that comes while there is no other
        self._spare = -1
        self._socket = OwnedSocket(socket.AF_UNIX, socket.SOCK_SEQPACKET, descriptor)
        self._socket.setblocking(True)
        self._numbers = itertools.count(1)
        # items whose tickets have not come yet, or never will: their sender died in between
        self._found: dict[int, ItemInMemory | bytes] = {}
        #: True once the other side has it, and may be sent tickets
        self.is_met = False
        fork.register(self)
        self._keep_spare()

    @classmethod
    def pair(cls) -> tuple[Lane, socket.socket]:
        """One side, and the socket of the other one."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        here.setblocking(True)
        there.setblocking(True)
        try:
            return cls(here.detach()), there
        except OSError:
            there.close()
            raise

    def sent(self, items: Iterable[Item]) -> list[Item]:
        """Items for a message: tickets in place of those in memory, whose descriptors are sent."""
        return [self._ticket(item) if type(item) is ItemInMemory else item for item in items]

    def arrived(self, items: Iterable[Item]) -> list[Item]:
        """Items of a message: those in memory in place of tickets.

        Raises:
            WireError: a ticket's descriptor was not sent.
        """
        return [self._item(item) if type(item) is Ticket else item for item in items]

    def close(self) -> None:
        """Close it; idempotent."""
        self._socket.release()
        self._give_up_spare()
        self._found.clear()

    # in a process forked by user code
    abandon = close

    @unless_finalizing
    def __del__(self) -> None:
        self.close()

    def _ticket(self, item: ItemInMemory) -> Item:
        number = next(self._numbers)
        head = _HEAD.pack(number, item.size)
        rights = socket.SOL_SOCKET, socket.SCM_RIGHTS, _DESCRIPTOR.pack(item.fileno())
        try:
            self._socket.sendmsg([head], [rights], _SEND_FLAGS)
        except OSError:
            # the receiver is behind, gone, or this user has too many descriptors on their way
            return item.copy()
        return Ticket.to(number, item.size)

    def _item(self, ticket: Ticket) -> Item:
        number, size = ticket.fields()
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


#: in place of name and token: the lane that was asked for is there
_MET = bytes(16)


def meet(owner: Owner, target: int, keep: Callable[[Lane], object]) -> None:
    """Have a lane to the owner of a queue with some target, where there can be one.

    Not on the handler thread: it waits for the owner.

    Args:
        owner: the connection to it.
        target: of the queue.
        keep: given the lane before the owner sends anything by it.

    Raises:
        PeerLostError: the owner is lost.
    """
    with contextlib.suppress(OSError), contextlib.closing(couriers.Inbox()) as inbox:
        pending = owner.call(target, [protocol.MEET.pack(Op.MEET, 0, inbox.name, inbox.token)])
        pending.wait()
        (is_sent,) = protocol.read(protocol.MET, pending.result())
        if is_sent:
            keep(Lane(*inbox.take()))
            # from now on there is somebody to take what comes
            owner.cast(target, [protocol.MEET.pack(Op.MEET, 0, _MET, _MET)])


def met(peer: Peer, name: bytes, token: bytes) -> bool:
    """Make the owner's side of a lane to a process that asks for one; False where it cannot have it."""
    if name == _MET:
        known = peer.state.get(LANE)
        if isinstance(known, Lane):
            known.is_met = True
        return True
    with contextlib.suppress(OSError):
        lane, there = Lane.pair()
        with there:
            if couriers.send([there.fileno()], name, token):
                peer.state[LANE] = lane
                return True
        lane.close()
    return False


def encoded(value: Any) -> Item:
    """Pickle of a large value, in memory as far as it goes."""
    if not memories.are_few():
        return encode(value)
    try:
        packet, references = encode_into(Packet, value)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        return encode(value)
    item = None if references else packet.detach()
    if item is not None:
        return item
    pickled = packet.getvalue()
    packet.close(is_sent=False)
    return ItemWithReferences.of(references, pickled) if references else pickled
