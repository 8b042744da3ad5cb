"""Ends of pipes for processes that cannot have a descriptor: on other hosts, or with another authkey.

The process that has the end makes a pipe that lives in it, gives the other one an end of that, and passes
messages on. Other processes that hold the same end as it take part: each message goes to one of them.

Apart from :mod:`~fiber._objects.pipe.end`, which needs none of it for processes of its own host.
"""

from __future__ import annotations

import pickle
import queue
import secrets
import select
import threading
from typing import TYPE_CHECKING

from fiber._objects.address import Kind, Shape
from fiber._objects.handle import ChannelObject, decode, encode
from fiber._objects.pipe.packets import PacketSocket
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._objects.references import NO_REFERENCE
from fiber._wire.endpoint import Peer

if TYPE_CHECKING:
    from fiber._objects.queue.channel import Channel
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


def lay(process: Store, way: PacketSocket | FarEnd, shape: Shape, peer: Peer) -> bytes:
    """Pickle of address, end and reference id of an end for a peer, which is counted as its holder."""
    if isinstance(way, FarEnd):
        return way.pickled(peer.auth_domain)
    channel = process.channel(Kind.PIPE)
    channel.hold(_NEAR)
    address = channel.address_in(peer.auth_domain)
    channel.expect(peer, _FAR)
    threading.Thread(
        target=_carry,
        args=(way.duplicate(), channel, shape.direction_read_by(0) is not None),
        name="fiber-bridge",
        daemon=True,
    ).start()
    return pickle.dumps((address, _FAR, NO_REFERENCE))


def _carry(near: PacketSocket, channel: Channel, is_read: bool) -> None:
    """Pass messages on until either side ends."""
    there, back = channel.shape.direction_read_by(_FAR), channel.shape.direction_read_by(_NEAR)
    assert there is not None
    assert back is not None
    writer, reader = channel.writer(there), channel.reader(back)
    poll = select.poll()
    poll.register(reader.fileno(), select.POLLIN)
    poll.register(near.fileno(), select.POLLIN if is_read else 0)
    try:
        while True:
            for descriptor, events in poll.poll():
                if descriptor != near.fileno():
                    near.put(reader.take(True, None))
                elif events & select.POLLIN:
                    try:
                        item = near.take(wait=False)
                    except queue.Empty:
                        # another holder of the end was faster
                        continue
                    writer.put(_readable(item, channel.auth_domain), True, None)
                else:
                    return
    except (EOFError, BrokenPipeError):
        return
    finally:
        near.close()
        channel.drop(_NEAR)


def _readable(item: Item, auth_domain: str | None) -> Item:
    """An item for the other process: objects in it have addresses of their own in an auth domain."""
    if auth_domain is None or not isinstance(item, ItemWithReferences):
        return item
    return encode(decode(item), auth_domain=auth_domain)
