"""The functions that a worker was sent: pickled by digest, unpickled afresh for each call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fiber._wire import codec

if TYPE_CHECKING:
    from fiber._tasks.broadcast import Laid

K = TypeVar("K")
V = TypeVar("V")

#: bytes of pickled functions that a worker keeps
PICKLED = 256 * 2**20
#: bytes, as pickled, of the functions that are ready to be called
READY = 64 * 2**20
#: what one costs besides its bytes
_OVERHEAD = 1024


class Functions:
    """A cache bounded in bytes; what was dropped is asked for again.

    Args:
        pickled: bytes of pickles that are kept; the last one is, whatever its size.
        ready: bytes, as pickled, of functions that are kept unpickled, likewise.
    """

    def __init__(self, pickled: int = PICKLED, ready: int = READY) -> None:
        self._pickles: _Bounded[bytes, bytes | Laid] = _Bounded(pickled)
        # with their digests
        self._ready: _Bounded[int, tuple[Any, bytes]] = _Bounded(ready)

    def __contains__(self, digest: object) -> bool:
        return digest in self._pickles

    def learn(self, digest: bytes, pickled: bytes | Laid) -> None:
        """Keep a function."""
        self._pickles.put(digest, pickled, _size(pickled))

    def of_call(self, call: int) -> Any:
        """The function of a call, or None where it must be loaded (again)."""
        found = self._ready.get(call)
        return None if found is None else found[0]

    def load(self, call: int, digest: bytes) -> Any:
        """Unpickle the function of a call, one that is kept.

        Raises:
            Exception: what unpickling it raised.
        """
        pickled = self._pickles.get(digest)
        assert pickled is not None
        # a copy: what one call makes of a captured array is nothing to the next
        if isinstance(pickled, bytes):
            private = memoryview(bytearray(pickled))
        else:
            # page by page, and of those alone that are written to
            private = pickled.private()
        function = codec.loads(private)
        self._ready.put(call, (function, digest), _size(pickled))
        return function

    def forget(self, digest: bytes) -> None:
        """Drop a function."""
        self._pickles.drop(lambda key, _: key == digest)
        self._ready.drop(lambda _, ready: ready[1] == digest)

    def forget_calls(self) -> None:
        """Have each call's function loaded again."""
        self._ready.clear()


def _size(pickled: bytes | Laid) -> int:
    return len(pickled) if isinstance(pickled, bytes) else pickled.size


class _Bounded(Generic[K, V]):
    """Values by key; the least recently used ones go first, and the last one stays in any case."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def get(self, key: K) -> V | None:
        """The value, used just now."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value in place of any other of its key."""
        former = self._held.pop(key, None)
        if former is not None:
            self._size -= former[1]
        size += _OVERHEAD
        self._held[key] = value, size
        self._size += size
        while self._size > self._limit and len(self._held) > 1:
            _, (_, dropped) = self._held.popitem(last=False)
            self._size -= dropped

    def drop(self, is_unwanted: Callable[[K, V], bool]) -> None:
        """Drop some."""
        for key in [key for key, (value, _) in self._held.items() if is_unwanted(key, value)]:
            self._size -= self._held.pop(key)[1]

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
        self._size = 0
