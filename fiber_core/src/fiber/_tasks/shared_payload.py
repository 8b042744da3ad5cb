"""Large functions and arguments, written once to shared memory that workers of this host map.

Buffers of 1 MB or more that recur in a call's arguments (one array in many tuples) and functions of
that size are not sent to each worker: messages carry a *locator* instead. Workers map them
privately (copy-on-write), so a task cannot change another task's data. Workers on other hosts are
sent the bytes.
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
    from fiber._tasks.dispatcher import Session

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


class SharedFunctions:
    """Large functions of one pool in shared memory; some are kept for later calls. Thread-safe.

    Args:
        store: writes them; None for no sharing.
        kept: bytes of functions without a call that are kept.
    """

    def __init__(self, store: PayloadStore | None, kept: int = CACHE_BYTES) -> None:
        self._store = store
        self._kept = kept
        self._lock = threading.Lock()
        self._used: dict[bytes, tuple[SharedPayload, int]] = {}
        self._idle: OrderedDict[bytes, SharedPayload] = OrderedDict()
        self._closed = False

    def share(self, call: Call, sessions: Mapping[str, Session]) -> None:
        """Share a call's function if it is large and a worker may map it; prepare for its arguments.

        Args:
            call: the call; its function is the shared one from now on.
            sessions: the workers so far.
        """
        if self._store is None:
            return
        if call.count > 1:
            call.repeated_buffers = RepeatedBuffers(self._store)
        size = sum(map(len, call.function))
        if size < SHARE_THRESHOLD:
            return
        known = list(sessions.values())
        if known and not any(session.shares_memory for session in known):
            return
        with self._lock:
            if self._closed:
                return
            payload, calls = self._used.get(call.digest, (None, 0))
            payload = (
                payload or self._idle.pop(call.digest, None) or self._store.write(call.function)
            )
            if payload is not None:
                self._used[call.digest] = payload, calls + 1
                call.shared_function, call.function = payload, [payload.view()]

    def call_done(
        self, call: Call, calls: Mapping[int, Call], sessions: Mapping[str, Session]
    ) -> None:
        """Release the memory of a call that is done; workers are told to forget dropped functions.

        Args:
            call: the call.
            calls: the calls that are left.
            sessions: the workers.
        """
        if call.repeated_buffers is not None:
            call.repeated_buffers.close()
        # objects that the function refers to are held by each worker that has it
        refers = call.release()
        if call.shared_function is None and not refers:
            return
        gone = self._release(call, keep=not refers)
        if refers:
            gone.append(call.digest)
        for digest in set(gone):
            if all(other.digest != digest for other in calls.values()):
                for session in sessions.values():
                    session.forget(digest)

    def _release(self, call: Call, *, keep: bool) -> list[bytes]:
        """Take the function from a call; returns the digests of functions that were dropped."""
        with self._lock:
            payload, call.shared_function = call.shared_function, None
            if payload is None:
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
        """Release everything; idempotent."""
        with self._lock:
            self._closed = True
            payloads = [*self._idle.values(), *(one for one, _ in self._used.values())]
            self._idle.clear()
            for one in payloads:
                one.close()
