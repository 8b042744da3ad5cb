"""Large buffers that come again in the arguments of a call: laid once, where workers here map them.

The parameters that a map hands to each task with another seed are one array in many tuples. What
workers make of it is nothing to each other: each task has pages of its own as soon as it writes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fiber._tasks.broadcast import KEPT, LARGE
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._tasks.broadcast import Laid, Memory

__all__ = ["BlindError", "Places", "Repeated"]


class Repeated:
    """Those of one call, whose items all exist until it is done.

    Args:
        memory: where they are laid.
        most: bytes of all of them; the first one is laid in any case.
    """

    def __init__(self, memory: Memory, most: int = KEPT) -> None:
        self._memory = memory
        self._most = self._room = most
        # weakly: the number of an object that is gone is another's
        self._seen: dict[int, tuple[weakref.ref[Any], Laid | None]] = {}

    def place(self, raw: memoryview) -> bytes | None:
        """Where the bytes of a buffer lie; None where they are to be sent.

        Args:
            raw: the buffer; what it belongs to is told by its ``obj``.
        """
        if raw.nbytes < LARGE:
            return None
        owner = raw.obj
        reference, laid = self._seen.get(id(owner), (None, None))
        if reference is None or reference() is not owner:
            try:
                self._seen[id(owner)] = weakref.ref(owner), None
            except TypeError:
                # nobody can tell whether it is the same when it comes again
                return None
            self._release(laid)
            return None
        if laid is None:
            if self._room < min(raw.nbytes, self._most):
                return None
            laid = self._memory.lay([raw])
            if laid is None:
                return None
            self._room -= raw.nbytes
            self._seen[id(owner)] = reference, laid
        return laid.place if laid.size == raw.nbytes else None

    def close(self) -> None:
        """Let nobody find them any more; idempotent."""
        seen, self._seen = self._seen, {}
        for _, laid in seen.values():
            self._release(laid)

    def _release(self, laid: Laid | None) -> None:
        if laid is not None:
            self._room += laid.size
            laid.close()


class BlindError(FiberError):
    """What was laid is not to be found by this process."""


class Places:
    """What a worker has found of the arguments of the call that it works for.

    Args:
        memory: finds what was laid; None for nothing.
    """

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory
        self._call: int | None = None
        self._found: dict[bytes, Laid] = {}

    def of(self, call: int) -> Callable[[bytes], memoryview]:
        """What finds the arguments of a call; those of another are let go."""
        if call != self._call:
            self.close()
            self._call = call
        return self._find

    def close(self) -> None:
        """Let go of all; what tasks still hold stays theirs."""
        found, self._found = self._found, {}
        for laid in found.values():
            laid.close()

    def _find(self, place: bytes) -> memoryview:
        laid = self._found.get(place)
        if laid is None:
            laid = None if self._memory is None else self._memory.find(place)
            if laid is None:
                msg = "the arguments of a task lie in memory that this process cannot map"
                raise BlindError(msg)
            self._found[place] = laid
        return laid.private()
