"""``Queue``, ``JoinableQueue`` and ``SimpleQueue`` between any processes of a run."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fiber._base.entry_points import load_object
from fiber._objects import store
from fiber._objects.address import ANY, Kind
from fiber._objects.handle import ChannelObject, ExtensibleHandle, TaskQueueObject, decode, encode
from fiber._objects.pipe import memories
from fiber._objects.queue.channel import Channel
from fiber._objects.queue.messages import Item
from fiber._objects.queue.tasks import TaskChannel
from fiber._wire import fork

__all__ = ["JoinableQueue", "Queue", "SimpleQueue"]

T = TypeVar("T")


class _QueueHandle(ExtensibleHandle, Generic[T]):
    """Handle of an object with one direction, which all its holders read and write."""

    _object: ChannelObject
    # how often an item may be loaded
    _uses = 1

    def _make(self, maxsize: int) -> None:
        channel = self._new(maxsize)
        channel.hold(0)
        self._attach(channel, 0)

    def _new(self, maxsize: int) -> ChannelObject:
        return Channel(store.current(), Kind.QUEUE, maxsize)

    def _open(self) -> None:
        self._reader = self._object.reader(0)
        self._writer = self._object.writer(0)
        self._closed = False


class SimpleQueue(_QueueHandle[T]):
    """A queue with ``put`` and ``get`` only; the same as ``multiprocessing.SimpleQueue``.

    Any process that gets it, as an argument, in a closure or through another queue, reads and
    writes it. On one host it is a pipe of the kernel, which lasts as long as any process holds it;
    else it lives in the process that made it.
    """

    def __init__(self, *, ctx: Any = None) -> None:
        self._make(0)

    def _new(self, maxsize: int) -> ChannelObject:
        process = store.current()
        if process.has_descriptors:
            made: ChannelObject = load_object("fiber._objects.pipe.end:loop")(process)
            return made
        return super()._new(maxsize)

    def _open(self) -> None:
        super()._open()
        # where the kernel has it
        self._put_value = getattr(self._writer, "put_value", None)

    def put(self, obj: T) -> None:
        """Put a value in; on one host, wait while the kernel's buffer is full.

        Raises:
            Exception: what pickling it raised.
            PeerLostError: the process that the queue lives in, or came from, is gone.
            OSError: this handle is closed.
        """
        self._check()
        if self._put_value is not None:
            self._put_value(obj)
            return
        self._writer.put(encode(obj, auth_domain=self._receiving_domain()), True, None)
        # as in the stdlib, where it is in the pipe by now, it arrives even if this process dies
        self._writer.deliver()

    def get(self) -> T:
        """Wait for the next value and take it.

        Raises:
            PeerLostError: the process that the queue lives in, or came from, is gone; an
                ``EOFError``.
            OSError: this handle is closed.
        """
        self._check()
        value: T = decode(self._reader.take(True, None))
        return value

    def empty(self) -> bool:
        """True where nothing is in it.

        Raises:
            OSError: this handle is closed.
        """
        self._check()
        if self._put_value is not None:
            return not self._reader.poll(0)
        return not self._object.size(0)

    def close(self) -> None:
        """Close this handle; other holders go on using the queue."""
        self._closed = True
        self._release()

    def __enter__(self) -> SimpleQueue[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            msg = f"{self!r}: handle is closed"
            raise OSError(msg)
        if fork.is_forked_child():
            fork.check()


class Queue(_QueueHandle[T]):
    """A queue; the same as ``multiprocessing.Queue``, with any number of readers and writers.

    It lives in the process that made it. Any process that gets it, as an argument, in a closure or
    through another queue, reads and writes it. Values are pickled in ``put``, so that one that
    cannot be is an error there, and may be changed afterwards. Values that a reader has not been
    given by ``get`` are not lost with it.

    Args:
        maxsize: most values in it; 0 or less for any number.
        ctx: accepted for compatibility.
    """

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        self._maxsize = max(0, maxsize)
        self._make(self._maxsize)

    def _state(self) -> tuple[Any, ...]:
        return (self._maxsize,)

    def _restore(self, *state: Any) -> None:
        (self._maxsize,) = state

    def put(self, obj: T, block: bool = True, timeout: float | None = None) -> None:
        """Put a value in; wait for room where there is a ``maxsize``.

        Raises:
            queue.Full: there is no room, or none has come in ``timeout`` seconds.
            Exception: what pickling it raised.
            PeerLostError: the process that the queue lives in is gone.
            ValueError: this handle is closed.
        """
        if self._closed or fork.is_forked_child():
            self._refuse()
        if timeout is not None and timeout <= 0:
            block = False
        self._writer.put(self._item(obj), block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        """Take the next value; wait for it.

        Raises:
            queue.Empty: there is none, or none has come in ``timeout`` seconds.
            PeerLostError: the process that the queue lives in is gone; an ``EOFError``.
            ValueError: this handle is closed.
        """
        if self._closed or fork.is_forked_child():
            self._refuse()
        if timeout is not None and timeout <= 0:
            block = False
        value: T = decode(self._reader.take(block, timeout))
        return value

    def put_nowait(self, obj: T) -> None:
        """The same as ``put(obj, False)``."""
        self.put(obj, False)

    def get_nowait(self) -> T:
        """The same as ``get(False)``."""
        return self.get(False)

    def qsize(self) -> int:
        """Number of values in it, those included that readers have prefetched."""
        if fork.is_forked_child():
            fork.check()
        return self._object.size(0)

    def empty(self) -> bool:
        """True where nothing is in it.

        Raises:
            OSError: this handle is closed.
        """
        if self._closed:
            msg = "handle is closed"
            raise OSError(msg)
        return not self.qsize()

    def full(self) -> bool:
        """True where ``put`` would wait."""
        return self._maxsize > 0 and self.qsize() >= self._maxsize

    def close(self) -> None:
        """Close this handle; what it put still arrives, and other holders go on using the queue."""
        self._closed = True
        self._release()

    def join_thread(self) -> None:
        """Wait until all that was put here is in the queue; after :meth:`close` only."""
        assert self._closed, f"Queue {self!r} not closed"
        self._writer.flush()

    def cancel_join_thread(self) -> None:
        """Do not wait at this process's end until all that was put here is in the queue."""
        self._writer.abandon()

    def _item(self, value: T) -> Item:
        """The pickle of a value, in memory where it is large and all who may get it are on this host."""
        auth_domain = self._receiving_domain()
        if (
            # a task may be given to another reader after one has used its memory
            self._uses == 1
            and auth_domain is None
            and memories.is_larger(value, memories.LARGE)
            and self._object.takes_memory()
        ):
            return _encoder()(value)
        return encode(value, self._uses, auth_domain=auth_domain)

    def _refuse(self) -> None:
        fork.check()
        if self._closed:
            msg = f"Queue {self!r} is closed"
            raise ValueError(msg)


@functools.cache
def _encoder() -> Callable[[Any], Item]:
    """What pickles large values, imported for the first one."""
    found: Callable[[Any], Item] = load_object("fiber._objects.queue.descriptor_stream:encoded")
    return found


class JoinableQueue(Queue[T]):
    """A queue of tasks; the same as ``multiprocessing.JoinableQueue``.

    What a reader has got and not called :meth:`task_done` for goes to another reader when its
    process dies, and is not counted as done.

    Args:
        maxsize: most values in it; 0 or less for any number.
        ctx: accepted for compatibility.
    """

    _object: TaskQueueObject
    _uses = ANY

    def task_done(self) -> None:
        """Mark a task as done; tasks are done in the order in which this process got them.

        Raises:
            ValueError: it is called more often than values were put in.
            PeerLostError: the process that the queue lives in is gone.
        """
        fork.check()
        if not self._object.finish(self._reader):
            msg = "task_done() called too many times"
            raise ValueError(msg)

    def join(self) -> None:
        """Wait until :meth:`task_done` was called for every value that was put in.

        Raises:
            PeerLostError: the process that the queue lives in is gone.
        """
        fork.check()
        self._object.join()

    def _new(self, maxsize: int) -> TaskQueueObject:
        return TaskChannel(store.current(), maxsize)


# raised by the methods above, as from the stdlib's module of this name
Empty, Full = queue.Empty, queue.Full
