"""Events: the state, the owner's side, the side of all other processes, and events in shared memory.

``EventState`` is pure. ``RemoteEvent`` waits for an answer to each change, so that it is in effect
for all processes when the call returns.

A ``SharedEvent`` is in memory that the processes of one host share; its owner only keeps the memory. Nothing is
locked: each change is one word, so a process may die, and a handler of a signal may use the event,
at any instruction. To set it writes a number that was not there before, which all that wait see even where it
is cleared at once. A waiting thread says so first, so that nobody is woken where nobody waits.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fiber._base.threads import Deadline, turn
from fiber._objects.address import Kind
from fiber._objects.sync.monitor import MOST_LOOKS, SharedState, Word
from fiber._objects.sync.protocol import Answer, Answers, Op, Request, Status, Wait, WaitQueue
from fiber._objects.sync.waitable import OwnedWaitable, RemoteWaitable, Waitable

if TYPE_CHECKING:
    import mmap

    from fiber._objects.store import Store


# Words of the state, 8 bytes each.
_IS_SET = 0
#: the number of the last set; its lower half is the word that threads wait for
_NUMBER = 1
#: 1 once a thread waits, until it is set
_IS_AWAITED = 2
_WORDS = 3
#: bytes of an event
SIZE = 8 * _WORDS


class SharedEvent(SharedState):
    """An event in shared memory, as one process uses it.

    Args:
        memory: shared memory, mapped; zeros at first.
        begin: where it begins there, a multiple of 8; :data:`SIZE` bytes.
    """

    def __init__(self, memory: mmap.mmap, begin: int) -> None:
        self._word = Word(memory, begin + 8 * _NUMBER)
        self._words = memoryview(memory)[begin : begin + SIZE].cast("q")
        # no other process uses the same numbers, and this one none twice in a row
        self._numbers = itertools.count(secrets.randbits(60))

    def is_set(self) -> bool:
        """True where it is set."""
        self.check()
        return bool(self._words[_IS_SET])

    def set(self) -> None:
        """Set it; all waiting threads go on."""
        self.check()
        words, number = self._words, next(self._numbers)
        words[_IS_SET] = 1
        words[_NUMBER] = number
        if words[_IS_AWAITED]:
            words[_IS_AWAITED] = 0
            self._word.wake()

    def clear(self) -> None:
        """Clear it: waits block from now on."""
        self.check()
        self._words[_IS_SET] = 0

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False if not in time."""
        self.check()
        words = self._words
        number = words[_NUMBER]
        if words[_IS_SET]:
            return True
        deadline = Deadline(timeout)
        for _ in range(MOST_LOOKS):
            if words[_NUMBER] != number:
                return True
        while True:
            words[_IS_AWAITED] = 1
            left = deadline.left
            if words[_NUMBER] != number or words[_IS_SET]:
                return True
            if left == 0:
                return False
            self._word.wait(number, turn(left))
            self.check()

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: all uses raise an error from now on."""
        self._lost = error
        self._word.wake()


class EventState:
    """The state of one event. Not thread-safe."""

    def __init__(self) -> None:
        self._is_set = False
        self._queue = WaitQueue()

    @property
    def is_set(self) -> bool:
        """True where waits end at once."""
        return self._is_set

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
        self._is_set = True
        return [Answer(request, Status.OK) for request in self._queue.clear()]

    def clear(self) -> None:
        """Unset it."""
        self._is_set = False

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


class PeersEventState(EventState):
    """Owner side of an event in shared memory, for processes that do not map it.

    Args:
        shared: the event.
        start: has a thread call a function that waits; called when a request has to.
    """

    def __init__(self, shared: SharedEvent, start: Callable[[Wait], object]) -> None:
        super().__init__()
        self._shared = shared
        self._start = start

    @property
    def is_set(self) -> bool:
        """True where waits end at once."""
        return self._shared.is_set()

    def wait(self, request: Request, *, wait: bool) -> Answers:
        """Answer whether it is set; with ``wait``, once it is."""
        answers = super().wait(request, wait=wait)
        if not answers:
            self._start(self._wait)
        return answers

    def set(self) -> Answers:
        """Set it; all waiting requests are answered, even if it is cleared at once."""
        self._shared.set()
        return super().set()

    def clear(self) -> None:
        """Unset it."""
        self._shared.clear()

    def _wait(self, seconds: float) -> Callable[[], Answers]:
        return super().set if self._shared.wait(seconds) else list


class EventCalls(Waitable):
    """What users call of an event, at its owner and in another process."""

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


class OwnedEvent(OwnedWaitable, EventCalls):
    """An event at its owner.

    Args:
        store: of this process.
        is_shared: True to have the state in memory that the processes of this host share.

    Raises:
        OSError: there is no room for that.
    """

    def __init__(self, store: Store, *, is_shared: bool = False) -> None:
        self._event = EventState()
        super().__init__(store, Kind.EVENT, self._event)
        if is_shared:
            self.shared = SharedEvent(*self._allocate(SIZE))
            self._state = self._event = PeersEventState(self.shared, self._wait_for_others)

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        done = Answer(request, Status.OK, int(self._event.is_set))
        if op == Op.WAIT:
            return self._event.wait(request, wait=bool(argument))
        if op == Op.SET:
            return [*self._event.set(), done]
        if op == Op.CLEAR:
            self._event.clear()
            return [done]
        return [done] if op == Op.VALUE else None


class RemoteEvent(RemoteWaitable, EventCalls):
    """An event of another process."""

    def _share(self, memory: mmap.mmap, begin: int) -> SharedEvent:
        return SharedEvent(memory, begin)
