"""Events: the state, the owner's side, and the side of all other processes.

``EventState`` is pure. ``RemoteEvent`` waits for an answer to each change, so that it is in effect
for all processes when the call returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.owned_waitable import OwnedWaitable, Place
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote_waitable import RemoteWaitable
from fiber._objects.sync.shared_event import SIZE, SharedEvent
from fiber._objects.sync.wait_queue import Answer, Answers, Request, Status, WaitQueue

if TYPE_CHECKING:
    from fiber._objects.store import Store


class EventState:
    """The state of one event. Not thread-safe."""

    def __init__(self) -> None:
        #: True where waits end at once
        self.is_set = False
        self._queue = WaitQueue()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    def wait(self, request: Request, *, wait: bool) -> Answers:
        """Answer whether it is set; with ``wait``, once it is."""
        if self.is_set or not wait:
            return [Answer(request, Status.OK if self.is_set else Status.REFUSED)]
        self._queue.add(request)
        return []

    def set(self) -> Answers:
        """Set it; all waiting requests are answered, even if it is cleared at once."""
        self.is_set = True
        return [Answer(request, Status.OK) for request in self._queue.clear()]

    def clear(self) -> None:
        """Unset it."""
        self.is_set = False

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Refuse a waiting request; no answer if it was answered before."""
        request = self._queue.remove(process, number)
        return [] if request is None else [Answer(request, Status.REFUSED)]

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally; its requests are forgotten."""
        self._queue.remove_all(process)
        return []

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died; its requests are forgotten."""
        self._queue.remove_all(process)
        return []


class OwnedEvent(OwnedWaitable):
    """An event at its owner; see :class:`~fiber.synchronize.EventObject`.

    Args:
        store: of this process.
        is_shared: True to have the state in memory that the processes of this host share; then the
            state here is for requests of processes that do not map it.

    Raises:
        OSError: there is no room for that.
    """

    def __init__(self, store: Store, *, is_shared: bool = False) -> None:
        self._event = EventState()
        super().__init__(store, Kind.EVENT, self._event)
        #: the event in shared memory
        self.shared = SharedEvent(*self._allocate(SIZE)) if is_shared else None

    def map(self, where: Place | None) -> SharedEvent | None:
        """The event in shared memory, if it is there."""
        return self.shared

    # -- for threads of this process

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False if not in time."""
        if self._event.is_set:
            return True
        wait = timeout is None or timeout > 0
        answer = self.request(functools.partial(self._event.wait, wait=wait), timeout)
        return answer.status is Status.OK

    def set(self) -> None:
        """Set it; all waiting threads go on."""
        with self.lock:
            self.deliver_answers(self._event.set())

    def clear(self) -> None:
        """Clear it: waits block from now on."""
        with self.lock:
            self._event.clear()

    def is_set(self) -> bool:
        """True where it is set."""
        return self._event.is_set

    # -- other processes

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        shared = self.shared
        if shared is not None:
            self._event.is_set = shared.is_set()
        done = Answer(request, Status.OK, int(self._event.is_set))
        if op == Op.WAIT:
            answers = self._event.wait(request, wait=bool(argument))
            if shared is not None and not answers:
                self._wait_for_others(self._wait_shared)
            return answers
        if op == Op.SET:
            if shared is not None:
                shared.set()
            return [*self._event.set(), done]
        if op == Op.CLEAR:
            if shared is not None:
                shared.clear()
            self._event.clear()
            return [done]
        return [done] if op == Op.VALUE else None

    def _wait_shared(self, seconds: float) -> Callable[[], Answers]:
        assert self.shared is not None
        return self._event.set if self.shared.wait(seconds) else list


class RemoteEvent(RemoteWaitable):
    """An event of another process; see :class:`~fiber.synchronize.EventObject`."""

    _shared: SharedEvent | None = None

    def map(self, where: Place | None) -> SharedEvent | None:
        """The event in shared memory; None where this process does not map that."""
        with self._lock:
            if self._shared is None:
                found = self._mapped(where)
                self._shared = found and SharedEvent(*found)
            return self._shared

    def fail(self, error: BaseException) -> None:
        """The owner is lost: all uses raise an error."""
        super().fail(error)
        if self._shared is not None:
            self._shared.cut_off(self._raise)

    def _raise(self) -> None:
        raise self.error_to_raise(self._error) from self._error

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False if not in time."""
        wait = timeout is None or timeout > 0
        return self.request(Op.WAIT, wait, timeout if wait else None).status is Status.OK

    def set(self) -> None:
        """Set it; all waiting threads go on."""
        self.request(Op.SET)

    def clear(self) -> None:
        """Clear it: waits block from now on."""
        self.request(Op.CLEAR)

    def is_set(self) -> bool:
        """True where it is set."""
        return bool(self.request(Op.VALUE).value)
