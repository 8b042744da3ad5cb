"""Calls of one thread to the managed objects of another process of its host, through a pipe of their own.

The caller's thread sends and receives, and so does the thread that runs its calls: no other thread of either
process takes part. A pipe that ends tells both sides that the other one is gone, or waits no more.

Apart from both sides of managed objects, as it is for processes of one host and imports pipes.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.handle import Handle, decode, encode
from fiber._objects.managed import calls
from fiber._objects.managed.calls import Answer, Outcome
from fiber._objects.pipe.end import End
from fiber._objects.pipe.memories import ItemInMemory
from fiber._objects.pipe.packets import Packet, PacketSocket
from fiber._objects.queue.messages import Item, ItemWithReferences
from fiber._wire.frames import Buffer
from fiber.exceptions import PeerLostError

if TYPE_CHECKING:
    from fiber._objects.remote_object import RemoteObject
    from fiber._objects.store import Store

log = logging.getLogger("fiber")

_TARGET = struct.Struct("<Q")
_KIND = struct.Struct("<B")


class _FarEnd(Handle):
    """Handle of the end for the process that runs the calls."""

    _object: End

    @classmethod
    def of(cls, end: End) -> _FarEnd:
        """Handle of a new end."""
        handle = cls.__new__(cls)
        end.hold(0)
        handle._attach(end, 0)  # noqa: SLF001 - its own
        return handle

    def detach(self) -> PacketSocket | None:
        """The end's socket, once it has come; None where the processes have no descriptors in common."""
        try:
            return self._object.detach()
        finally:
            self.close()

    def close(self) -> None:
        """Drop the end."""
        self._release()


class Channel:
    """Caller's side of a pipe for calls.

    Args:
        way: socket of the near end.
    """

    def __init__(self, way: PacketSocket) -> None:
        self._way = way
        #: True during a call
        self.is_busy = False
        #: closes it, callable from finalizers; idempotent
        self.close = way.close

    def call(self, target: int, item: Item) -> Outcome:
        """Make a call and wait for its outcome.

        Raises:
            EOFError: the other process is gone.
        """
        self.is_busy = True
        try:
            _send(self._way, _TARGET.pack(target), item)
            head, answer = _receive(self._way, _KIND)
        except BrokenPipeError as error:
            raise EOFError from error
        finally:
            self.is_busy = False
        return Answer(head), answer


def opened(store: Store, remote: RemoteObject, caller: int) -> Channel | None:
    """Open a channel to the process of an object; None where that is not of this host.

    Args:
        store: of this process.
        remote: any object of that process.
        caller: number of the caller.

    Raises:
        PeerLostError: that process, or the object, is gone.
    """
    if remote.auth_domain is not None or not remote.is_same_host or not store.has_descriptors:
        return None
    near, far = PacketSocket.pair(store.await_receipt)
    channel = Channel(near)
    try:
        handle = _FarEnd.of(End(store, Kind.SOCKET, far))
        pending = remote.call(calls.call(caller, encode(handle), calls.OPEN))
        pending.wait()
        is_open = bool(pending.result()[0])
        handle.close()
    except BaseException:
        channel.close()
        raise
    if not is_open:
        channel.close()
    return channel if is_open else None


def far_end(item: Item) -> PacketSocket | None:
    """The far end that an ``OPEN`` brings; None where it did not come."""
    handle: _FarEnd = decode(item)
    try:
        return handle.detach()
    except (OSError, PeerLostError) as error:
        log.debug("fiber: calls go by messages, for the end of a pipe did not come: %s", error)
        return None


def serve(way: PacketSocket, run: Callable[[int, Item, Callable[[], bool]], Outcome]) -> None:
    """Run the calls that come, until the caller has closed its end.

    Args:
        way: socket of the far end, which is closed in the end.
        run: runs a call: target, item, and whether the caller still waits.
    """
    try:
        while True:
            target, item = _receive(way, _TARGET)
            kind, answer = run(target, item, lambda: not way.is_hung_up)
            try:
                _send(way, _KIND.pack(kind), answer)
            except BrokenPipeError:
                return
            except OSError as error:
                # no room for it
                _send(way, _KIND.pack(Answer.FAILED), encode((str(error), error)))
            # its references must not live until the next call
            del item, answer
    except (EOFError, BrokenPipeError):
        return
    finally:
        way.close()


def _send(way: PacketSocket, head: bytes, item: Item) -> None:
    packet = Packet()
    packet.write(head)
    if isinstance(item, ItemWithReferences):
        packet.write(item.body)
        way.send(packet, item)
    else:
        packet.write(item)
        way.send(packet)


def _receive(way: PacketSocket, head: struct.Struct) -> tuple[int, Item]:
    item = way.take()
    if type(item) is ItemInMemory:
        item = item.read()
    body: Buffer = item.body if isinstance(item, ItemWithReferences) else item
    (number,) = head.unpack_from(body)
    rest = memoryview(body)[head.size :]
    return int(number), ItemWithReferences(rest) if isinstance(item, ItemWithReferences) else rest
