"""Large buffers that come again in the arguments of a call: laid once, where workers here map them.

The parameters that a map hands to each task with another seed are one array in many tuples. What
workers make of it is nothing to each other: each task has pages of its own as soon as it writes.

What a pool asks of memory that its workers on this host map, and from which size on it is used.

Functions too large to be sent to each worker: laid once into memory that workers here map.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fiber._wire import frames
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._tasks.call import Call
    from fiber._tasks.session import Session

__all__ = ["BlindError", "Places", "Repeated"]

#: bytes from which on something is laid: below, mapping it costs as much as sending it
LARGE = 2**20
#: bytes that are kept: of functions that no call has for the next call, of arguments for one call;
#: the last function and the first argument are in any case
KEPT = 256 * 2**20


class Laid(Protocol):
    """Bytes in memory that all processes of a host map and none changes."""

    @property
    def place(self) -> bytes:
        """By which others find it."""

    @property
    def size(self) -> int:
        """How many bytes."""

    def view(self) -> memoryview:
        """The bytes, to read."""

    def private(self) -> memoryview:
        """The bytes, to read and to write; what is written is seen nowhere else."""

    def close(self) -> None:
        """Let nobody else find it; views stay valid."""


class Memory(Protocol):
    """Lays bytes, and finds those that others laid."""

    def lay(self, segments: Sequence[frames.Buffer]) -> Laid | None:
        """Lay bytes; None where there is no room for them."""

    def find(self, place: bytes) -> Laid | None:
        """What is at a place; None where it is not to be had here."""


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


class Large:
    """Those of one pool.

    Args:
        memory: where they are laid; None for nowhere.
        kept: bytes of those without a call that are kept.
    """

    def __init__(self, memory: Memory | None, kept: int = KEPT) -> None:
        self._memory = memory
        self._kept = kept
        self._lock = threading.Lock()
        self._used: dict[bytes, tuple[Laid, int]] = {}
        self._idle: OrderedDict[bytes, Laid] = OrderedDict()
        self._closed = False

    def lay(self, call: Call, sessions: Mapping[str, Session]) -> None:
        """Lay a call's function if it is large and some worker may map it, its arguments later.

        Args:
            call: the call; its function is what was laid from now on.
            sessions: the workers that there are so far.
        """
        if self._memory is None:
            return
        if call.count > 1:
            call.repeated = Repeated(self._memory)
        size = sum(map(len, call.function))
        if size < LARGE:
            return
        there = list(sessions.values())
        if there and not any(session.is_near for session in there):
            return
        with self._lock:
            if self._closed:
                return
            laid, calls = self._used.get(call.digest, (None, 0))
            laid = laid or self._idle.pop(call.digest, None) or self._memory.lay(call.function)
            if laid is not None:
                self._used[call.digest] = laid, calls + 1
                call.laid, call.function = laid, [laid.view()]

    def let_go(
        self, call: Call, calls: Mapping[int, Call], sessions: Mapping[str, Session]
    ) -> None:
        """A call is done: have workers forget what is not needed again.

        Args:
            call: the call.
            calls: those that are left.
            sessions: the workers.
        """
        if call.repeated is not None:
            call.repeated.close()
        # what it refers to is held by each worker that has it
        refers = call.release()
        if call.laid is None and not refers:
            return
        gone = self._release(call, keep=not refers)
        if refers:
            gone.append(call.digest)
        for digest in set(gone):
            if all(other.digest != digest for other in calls.values()):
                for session in sessions.values():
                    session.forget(digest)

    def _release(self, call: Call, *, keep: bool) -> list[bytes]:
        """A call has its function no more; digests of those that were dropped."""
        with self._lock:
            laid, call.laid = call.laid, None
            if laid is None:
                return []
            found, count = self._used.pop(call.digest)
            if count > 1:
                self._used[call.digest] = found, count - 1
                return []
            if self._closed or not keep:
                found.close()
                return [call.digest]
            self._idle[call.digest] = found
            gone = []
            while self._is_over():
                digest, idle = self._idle.popitem(last=False)
                idle.close()
                gone.append(digest)
            return gone

    def _is_over(self) -> bool:
        return len(self._idle) > 1 and sum(one.size for one in self._idle.values()) > self._kept

    def close(self) -> None:
        """Keep nothing any more; idempotent."""
        with self._lock:
            self._closed = True
            laid = [*self._idle.values(), *(one for one, _ in self._used.values())]
            self._idle.clear()
            for one in laid:
                one.close()
