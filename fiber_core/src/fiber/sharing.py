"""``shared``: a value that is made once and read by any number of processes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from fiber._objects import store
from fiber._objects.blocks.block import Block, LazyValue, RemoteBlock
from fiber._objects.handle import Handle
from fiber._objects.memory.backing import HEAD, Location

__all__ = ["Shared", "shared"]

T = TypeVar("T")


class Shared(Handle, Generic[T]):
    """Handle of a value that all processes read and none changes. Made by :func:`shared`.

    It is small however large the value is, and goes wherever an object can go: arguments and
    results, closures, queues, managers. The value is freed when no process holds it any more.
    """

    _object: Block | RemoteBlock
    _lazy: LazyValue
    _location: Location

    @property
    def value(self) -> T:
        """The value. The same object each time in one process; arrays in it cannot be written to.

        Raises:
            PeerLostError: its maker ended before this host had a copy; an ``EOFError``.
            OSError: there is no room for it on this host.
            Exception: what unpickling it raised.
        """
        found: T = self._lazy.value()
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes on each host."""
        return self._location.size - HEAD

    def _open(self) -> None:
        if isinstance(self._object, RemoteBlock):
            self._object.map_if_local(self._location)
        self._lazy = self._object.cache.lazy_value()

    def _state(self) -> tuple[Any, ...]:
        location = self._location
        return location.name, location.pid, location.size, location.tag

    def _restore(self, *location: Any) -> None:
        self._location = Location(*location)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} value of {self.nbytes} bytes>"

    # immutable: a copy is the object itself

    def __copy__(self) -> Shared[T]:
        return self

    def __deepcopy__(self, memo: Any) -> Shared[T]:
        return self


def shared(value: T) -> Shared[T]:
    """Make a value that many processes read: once, with one copy on each host.

    The value is pickled at once, so changes made to it afterwards are not shared. Arrays and
    other buffers in it are not copied again: on a host all processes see the same memory, which
    no process can write to. What is not a buffer is unpickled in each process on first use.

    Args:
        value: an array, a ``memoryview``, or anything that can be pickled, lambdas and the like
            included.

    Raises:
        PicklingError: it cannot be pickled.
        OSError: there is no room for it.
    """
    block = Block(store.current(), value)
    block.hold(0)
    handle: Shared[T] = Shared.__new__(Shared)
    location = block.location
    handle._restore(location.name, location.pid, location.size, location.tag)  # noqa: SLF001 - its own
    handle._attach(block, 0)  # noqa: SLF001 - its own
    return handle
