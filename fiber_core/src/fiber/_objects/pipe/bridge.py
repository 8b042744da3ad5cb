"""Ends of pipes for processes that cannot have a descriptor: on other hosts, or with another authkey.

The process that has the end makes a pipe that lives in it, gives the other one an end of that, and passes
messages on. Other processes that hold the same end as it take part: each message goes to one of them.

Both ends of a pipe as one, a queue, have many readers as a rule: an item is passed on only while the other
process asks for one, and is put back, behind the others, where that ends before it has it.

Apart from :mod:`~fiber._objects.pipe.end`, which needs none of it for processes of its own host.
"""

from __future__ import annotations

import pickle
import queue
import secrets
import select
import threading
from typing import TYPE_CHECKING

from fiber._base.threads import TURN
from fiber._objects.address import NO_REFERENCE, Kind, Shape
from fiber._objects.handle import ChannelObject, decode, encode
from fiber._objects.pipe.packets import PacketLoop, PacketSocket
from fiber._objects.queue.channel import Channel
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._objects.queue.requests import Deliver
from fiber._wire.descriptors import ReadyFd
from fiber._wire.endpoint import Peer

if TYPE_CHECKING:
    from fiber._objects.store import Store

#: ends of the pipe that a bridge makes: of the process that makes it, and of the other one
_NEAR, _FAR = 0, 1


class FarEnd:
    """The end of a bridge that another process has made.

    Args:
        shared: the pipe, which was held for it.
        end: its end.
    """

    def __init__(self, shared: ChannelObject, end: int) -> None:
        self.shared = shared
        #: name of the auth domain that loads what is sent
        self.auth_domain = shared.auth_domain
        self._end = end
        read, written = shared.shape.direction_read_by(end), shared.shape.direction_written_by(end)
        assert read is not None
        assert written is not None
        self._reader, self._writer = shared.reader(read), shared.writer(written)

    def take(self, *, wait: bool = True) -> Item:
        """Take the next item, as from a :class:`PacketSocket`."""
        return self._reader.take(wait, None)

    def put(self, item: Item) -> None:
        """Put an item."""
        self._writer.put(item, True, None)

    def poll(self, timeout: float | None) -> bool:
        """Wait until :meth:`take` would not; False when none came in time."""
        return self._reader.poll(timeout)

    def fileno(self) -> int:
        """A descriptor that is readable while :meth:`take` would not wait."""
        return self._reader.fileno()

    def deliver(self) -> None:
        """Wait until all items arrive even if this process dies."""
        self._writer.deliver()

    def pickled(self, auth_domain: str | None) -> bytes:
        """Pickle of address, end and reference id, for a process that asks this one."""
        reference_id = secrets.randbits(63) | 1
        self.shared.issue(reference_id, self._end, 1)
        return pickle.dumps((self.shared.address_in(auth_domain), self._end, reference_id))

    def close(self) -> None:
        """Let it go; to be called once."""
        self.shared.drop(self._end)


class _Passage(Channel):
    """The pipe that a bridge makes for a queue, which tells of demand."""

    # the next item is not for this process unless it asks again
    _few_in_pipe = 1

    def __init__(self, store: Store) -> None:
        super().__init__(store, Kind.PIPE)
        self._far_reads = self.shape.direction_read_by(_FAR)
        #: readable while the other process asks for an item
        self.demand = ReadyFd()
        #: items that it did not take
        self.left: list[Item] = []

    def changed(self, direction: int) -> None:
        """See :meth:`Channel.changed`."""
        super().changed(direction)
        if direction == self._far_reads:
            self.demand.set(self.states[direction].is_wanting)

    def deliver(self, direction: int, one: Deliver) -> None:
        """See :meth:`Channel.deliver`."""
        super().deliver(direction, one)
        # the other process may ask for nothing more now
        self.changed(direction)

    def _drop_items(self, dropped: list[Item]) -> None:
        self.left += dropped


def lay(process: Store, way: PacketSocket | FarEnd, shape: Shape, peer: Peer) -> bytes:
    """Pickle of address, end and reference id of an end for a peer, which is counted as its holder."""
    if isinstance(way, FarEnd):
        return way.pickled(peer.auth_domain)
    channel = _Passage(process) if isinstance(way, PacketLoop) else process.channel(Kind.PIPE)
    channel.hold(_NEAR)
    address = channel.address_in(peer.auth_domain)
    channel.expect(peer, _FAR)
    bridge = _Bridge(way.duplicate(), channel, is_read=shape.direction_read_by(0) is not None)
    threading.Thread(target=bridge.carry, name="fiber-bridge", daemon=True).start()
    return pickle.dumps((address, _FAR, NO_REFERENCE))


class _Bridge:
    """Passes messages on until either side ends.

    Args:
        near: the end, which belongs to this object from then on.
        channel: the pipe of the other process.
        is_read: False for an end that only writes.
    """

    def __init__(self, near: PacketSocket, channel: Channel, *, is_read: bool) -> None:
        there, back = channel.shape.direction_read_by(_FAR), channel.shape.direction_read_by(_NEAR)
        assert there is not None
        assert back is not None
        self._near = near
        self._channel = channel
        self._writer, self._reader = channel.writer(there), channel.reader(back)
        self._passage = channel if isinstance(channel, _Passage) else None
        self._events = select.POLLIN if is_read else 0

    def carry(self) -> None:
        """Pass messages on; the thread's work."""
        try:
            while True:
                self._pass_some()
        except (EOFError, BrokenPipeError):
            return
        finally:
            self._channel.drop(_NEAR)
            if self._passage is not None:
                self._return_left(self._passage)
            self._near.close()

    def _pass_some(self) -> None:
        poll = select.poll()
        poll.register(self._reader.fileno(), select.POLLIN)
        if self._is_wanted():
            poll.register(self._near.fileno(), self._events)
        elif self._passage is not None:
            poll.register(self._passage.demand.fd, select.POLLIN)
        # in turns: nothing tells of a demand that has ended
        for descriptor, events in poll.poll(1000 * TURN):
            if descriptor == self._reader.fileno():
                self._near.put(self._reader.take(True, None))
            elif descriptor != self._near.fileno():
                continue
            elif not events & select.POLLIN:
                raise EOFError
            elif self._is_wanted():
                self._pass_one()

    def _is_wanted(self) -> bool:
        return self._passage is None or self._passage.demand.is_ready

    def _pass_one(self) -> None:
        try:
            item = self._near.take(wait=False)
        except queue.Empty:
            # another holder of the end was faster
            return
        try:
            self._writer.put(_readable(item, self._channel.auth_domain), True, None)
        except BrokenPipeError:
            if self._passage is not None and not self._passage.left:
                self._passage.left.append(item)
            raise

    def _return_left(self, passage: _Passage) -> None:
        for item in passage.left:
            self._near.put(item)
        passage.demand.close()


def _readable(item: Item, auth_domain: str | None) -> Item:
    """An item for the other process: objects in it have addresses of their own in an auth domain."""
    if auth_domain is None or not isinstance(item, ItemWithReferences):
        return item
    return encode(decode(item), auth_domain=auth_domain)
