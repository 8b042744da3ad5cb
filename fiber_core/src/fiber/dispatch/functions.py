"""The functions that a worker was sent: pickled by digest, unpickled afresh for each call."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Generic, TypeVar

from fiber.transport import codec

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
        self._pickles: _Bounded[bytes, bytes] = _Bounded(pickled)
        self._ready: _Bounded[int, Any] = _Bounded(ready)

    def __contains__(self, digest: object) -> bool:
        return digest in self._pickles

    def learn(self, digest: bytes, pickled: bytes) -> None:
        """Keep a function."""
        self._pickles.put(digest, pickled, len(pickled))

    def of_call(self, call: int) -> Any:
        """The function of a call, or None where it must be loaded (again)."""
        return self._ready.get(call)

    def load(self, call: int, digest: bytes) -> Any:
        """Unpickle the function of a call, one that is kept.

        Raises:
            Exception: what unpickling it raised.
        """
        pickled = self._pickles.get(digest)
        assert pickled is not None
        # a copy: what one call makes of a captured array is nothing to the next
        function = codec.loads(memoryview(bytearray(pickled)))
        self._ready.put(call, function, len(pickled))
        return function

    def forget_calls(self) -> None:
        """Have each call's function loaded again."""
        self._ready.clear()


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

    def clear(self) -> None:
        """Drop everything."""
        self._held.clear()
        self._size = 0
