"""Large functions and arguments, written once to shared memory that workers of this host map.

Buffers of 1 MB or more that recur in a call's arguments (one array in many tuples) and functions of
that size are not sent to each worker: messages carry a *locator* instead. Workers map them
privately (copy-on-write), so a task cannot change another task's data. Workers on other hosts are
sent the bytes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from fiber._wire import frames
from fiber.exceptions import FiberError

#: bytes from which on a buffer is shared: below, mapping it costs as much as sending it
SHARE_THRESHOLD = 2**20
#: most bytes in shared memory: of functions kept for later calls, of arguments of one call;
#: the last function and the first argument are kept whatever their size
CACHE_BYTES = 256 * 2**20


class SharedPayload(Protocol):
    """Bytes in shared memory that every process of the host may map and none changes."""

    @property
    def locator(self) -> bytes:
        """Opaque bytes by which other processes find it."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    def view(self) -> memoryview:
        """A read-only view of the bytes."""

    def private(self) -> memoryview:
        """A writable copy-on-write view of the bytes."""

    def close(self) -> None:
        """Make it unavailable to other processes; views stay valid."""


class PayloadStore(Protocol):
    """Writes payloads, and finds those of other processes of the host."""

    def write(self, segments: Sequence[frames.Buffer]) -> SharedPayload | None:
        """Write bytes; None where there is no room for them."""

    def find(self, locator: bytes) -> SharedPayload | None:
        """Find a payload by its locator; None where this process cannot map it."""


class RepeatedBuffers:
    """Large buffers that recur in the arguments of one call.

    A buffer is sent the first time it is seen and shared from the second time on.

    Args:
        store: writes them.
        most: bytes of all of them; the first one is shared whatever its size.
    """

    def __init__(self, store: PayloadStore, most: int = CACHE_BYTES) -> None:
        self._store = store
        self._most = self._room = most
        # by id() and weakly: the id of an object that is gone may be another's
        self._seen: dict[int, tuple[weakref.ref[Any], SharedPayload | None]] = {}

    def locate(self, raw: memoryview) -> bytes | None:
        """The locator of a buffer; None where its bytes are to be sent.

        Args:
            raw: the buffer; its ``obj`` is the object it belongs to.
        """
        if raw.nbytes < SHARE_THRESHOLD:
            return None
        owner = raw.obj
        reference, payload = self._seen.get(id(owner), (None, None))
        if reference is None or reference() is not owner:
            try:
                self._seen[id(owner)] = weakref.ref(owner), None
            except TypeError:
                # whether it is the same object the next time cannot be known
                return None
            self._release(payload)
            return None
        if payload is None:
            if self._room < min(raw.nbytes, self._most):
                return None
            payload = self._store.write([raw])
            if payload is None:
                return None
            self._room -= raw.nbytes
            self._seen[id(owner)] = reference, payload
        return payload.locator if payload.size == raw.nbytes else None

    def close(self) -> None:
        """Make them unavailable to workers; idempotent."""
        seen, self._seen = self._seen, {}
        for _, payload in seen.values():
            self._release(payload)

    def _release(self, payload: SharedPayload | None) -> None:
        if payload is not None:
            self._room += payload.size
            payload.close()


class PayloadNotFoundError(FiberError):
    """A payload that this process cannot map."""


class MappedArguments:
    """Arguments in shared memory that a worker has mapped, of the call it works for.

    Args:
        store: finds them; None where there is none.
    """

    def __init__(self, store: PayloadStore | None) -> None:
        self._store = store
        self._call: int | None = None
        self._found: dict[bytes, SharedPayload] = {}

    def finder_for(self, call: int) -> Callable[[bytes], memoryview]:
        """A function from locators to the arguments of ``call``; those of other calls are unmapped."""
        if call != self._call:
            self.close()
            self._call = call
        return self._find

    def close(self) -> None:
        """Unmap all; views that tasks hold stay valid."""
        found, self._found = self._found, {}
        for payload in found.values():
            payload.close()

    def _find(self, locator: bytes) -> memoryview:
        payload = self._found.get(locator)
        if payload is None:
            payload = None if self._store is None else self._store.find(locator)
            if payload is None:
                msg = "the arguments of a task lie in memory that this process cannot map"
                raise PayloadNotFoundError(msg)
            self._found[locator] = payload
        return payload.private()
