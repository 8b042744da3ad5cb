"""``shared``: a value that is made once and read by any number of processes."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from fiber._objects import store
from fiber._objects.blocks.block import Block, RemoteBlock
from fiber._objects.blocks.contents import Cell
from fiber._objects.handle import Handle
from fiber._objects.memory.backing import HEAD, Place

__all__ = ["Shared", "shared"]

T = TypeVar("T")


class Shared(Handle, Generic[T]):
    """Holds a value that all processes read and none changes. Made by :func:`shared`.

    It is small however large the value is, and goes wherever an object can go: arguments and
    results, closures, queues, managers. The value is freed when no process holds it any more.
    """

    _object: Block | RemoteBlock
    _cell: Cell
    _place: Place

    @property
    def value(self) -> T:
        """The value. The same object each time in one process; arrays in it cannot be written to.

        Raises:
            PeerLostError: its maker ended before this host had it; an ``EOFError``.
            OSError: there is no room for it on this host.
            Exception: what unpickling it raised.
        """
        found: T = self._cell.value()
        return found

    @property
    def nbytes(self) -> int:
        """Bytes that it takes, once a host."""
        return self._place.size - HEAD

    def _open(self) -> None:
        if isinstance(self._object, RemoteBlock):
            self._object.meet(self._place)
        self._cell = self._object.reading.cell()

    def _state(self) -> tuple[Any, ...]:
        place = self._place
        return place.name, place.pid, place.size, place.mark

    def _restore(self, *place: Any) -> None:
        self._place = Place(*place)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} value of {self.nbytes} bytes>"

    # what cannot change needs no copy

    def __copy__(self) -> Shared[T]:
        return self

    def __deepcopy__(self, memo: Any) -> Shared[T]:
        return self


def shared(value: T) -> Shared[T]:
    """Make a value that many processes read: once, with one copy on each host.

    The value is pickled here and now, so what becomes of it afterwards is seen nowhere. Arrays and
    other buffers in it are not copied again: on a host all processes see the same memory, which
    nobody can write to. What is not a buffer is unpickled in each process on first use.

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
    place = block.place
    handle._restore(place.name, place.pid, place.size, place.mark)  # noqa: SLF001 - its own
    handle._take_hold(block, 0)  # noqa: SLF001 - its own
    return handle
