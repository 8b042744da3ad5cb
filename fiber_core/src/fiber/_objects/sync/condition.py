"""Conditions: the state, the owner's side, and the side of all other processes.

``ConditionState`` is pure. A notification stays counted until the process that it was sent to has
acknowledged it: if that process exits or dies before, another request is woken in its place. The
lock of a condition is an object of its own, which the handle uses.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from fiber._objects.address import Kind
from fiber._objects.sync.owned_waitable import OwnedWaitable
from fiber._objects.sync.protocol import Op
from fiber._objects.sync.remote_waitable import RemoteWaitable, Reply
from fiber._objects.sync.shared_condition import SIZE, Entry, SharedCondition
from fiber._objects.sync.wait_queue import Answer, Answers, Request, Status, Wait, WaitQueue

if TYPE_CHECKING:
    import mmap

    from fiber._objects.store import Store


class ConditionState:
    """The state of one condition, without its lock. Not thread-safe."""

    def __init__(self) -> None:
        self._queue = WaitQueue()
        # notifications that were not acknowledged, by process
        self._unacknowledged: Counter[Hashable] = Counter()

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._queue)

    def wait(self, request: Request) -> Answers:
        """Wait to be notified."""
        self._queue.add(request)
        return []

    def notify(self, count: int) -> Answers:
        """Wake the requests that have waited for longest."""
        out: Answers = []
        while len(out) < count and len(self._queue):
            request = self._queue.first()
            if request.process is not None:
                self._unacknowledged[request.process] += 1
            out.append(Answer(request, Status.OK))
        return out

    def acknowledge(self, process: Hashable) -> None:
        """A notification has arrived."""
        if self._unacknowledged[process] > 1:
            self._unacknowledged[process] -= 1
        else:
            del self._unacknowledged[process]

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Refuse a waiting request; no answer if it was answered before."""
        request = self._queue.remove(process, number)
        return [] if request is None else [Answer(request, Status.REFUSED)]

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally; wake others with its unacknowledged notifications."""
        self._queue.remove_all(process)
        return self.notify(self._unacknowledged.pop(process, 0))

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died, which is no different."""
        return self.process_exited(process, 0)


class PeersConditionState:
    """Owner side of a condition in shared memory, for processes that do not map it.

    Args:
        shared: the condition.
        start: has a thread call a function that waits; called when a request has to.
    """

    def __init__(
        self,
        shared: SharedCondition,
        start: Callable[[Wait], object],
    ) -> None:
        self._shared = shared
        self._start = start
        # requests and their entries
        self._waits: dict[tuple[Hashable, int], tuple[Request, Entry]] = {}
        self._unacknowledged: Counter[Hashable] = Counter()
        # number of the last notification that was looked at
        self._seen = 0

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waits)

    def wait(self, request: Request) -> Answers:
        """Wait to be notified."""
        self._waits[request.process, request.number] = request, self._shared.register()
        self._start(self._wait)
        return []

    def notify(self, count: int) -> Answers:
        """Wake the requests that have waited for longest."""
        self._shared.notify(count, certain=True)
        return self._answers()

    def acknowledge(self, process: Hashable) -> None:
        """A notification has arrived."""
        self._unacknowledged[process] -= 1

    def cancel(self, process: Hashable, number: int, *, expired: bool = False) -> Answers:
        """Refuse a waiting request; no answer if it was answered before."""
        out = self._answers()
        found = self._waits.pop((process, number), None)
        if found is None:
            return out
        request, entry = found
        if self._shared.leave(entry):
            return [*out, self._notified(request)]
        return [*out, Answer(request, Status.REFUSED)]

    def process_exited(self, process: Hashable, held: int) -> Answers:
        """A process exits normally; wake others with its unacknowledged notifications."""
        count = self._unacknowledged.pop(process, 0)
        for key in [key for key in self._waits if key[0] == process]:
            count += self._shared.leave(self._waits.pop(key)[1])
        return self.notify(count)

    def process_died(self, process: Hashable, description: str) -> Answers:
        """A process died, which is no different."""
        return self.process_exited(process, 0)

    def _notified(self, request: Request) -> Answer:
        self._unacknowledged[request.process] += 1
        return Answer(request, Status.OK)

    def _answers(self) -> Answers:
        """Answer those that were notified."""
        self._seen = self._shared.changes
        out: Answers = []
        for key, (request, entry) in list(self._waits.items()):
            if self._shared.is_notified(entry):
                del self._waits[key]
                self._shared.leave(entry)
                out.append(self._notified(request))
        return out

    def _wait(self, seconds: float) -> Callable[[], Answers]:
        self._shared.wait_for_change(self._seen, seconds)
        self._shared.pass_on()
        return self._answers


class OwnedCondition(OwnedWaitable):
    """A condition at its owner; see :class:`~fiber.synchronize.ConditionObject`.

    Args:
        store: of this process.
        is_shared: True to have the state in memory that the processes of this host share.

    Raises:
        OSError: there is no room for that.
    """

    def __init__(self, store: Store, *, is_shared: bool = False) -> None:
        self._condition: ConditionState | PeersConditionState = ConditionState()
        super().__init__(store, Kind.CONDITION, self._condition)
        if is_shared:
            self.shared = SharedCondition(*self._allocate(SIZE), is_new=True)
            self._state = self._condition = PeersConditionState(self.shared, self._wait_for_others)

    # -- for threads of this process

    def wait(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Call ``release`` and wait until notified; False if not in time."""
        answer = self.request(self._condition.wait, timeout, self._rollback, release)
        return answer.status is Status.OK

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake so many."""
        with self.lock:
            self.deliver_answers(self._condition.notify(count))

    def waiting(self) -> int:
        """Number of waiting threads."""
        return self._condition.waiting if self.shared is None else self.shared.waiting()

    def _rollback(self, answer: Answer) -> Answers:
        return self._condition.notify(1) if answer.status is Status.OK else []

    # -- other processes

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        done = [Answer(request, Status.OK, self.waiting())]
        if op == Op.WAIT:
            return self._condition.wait(request)
        if op == Op.NOTIFY:
            return self._condition.notify(argument) + (done if request.number else [])
        if op == Op.WOKEN:
            self._condition.acknowledge(request.process)
            return self._condition.notify(1) if argument else []
        return done if op == Op.VALUE else None


class RemoteCondition(RemoteWaitable):
    """A condition of another process; see :class:`~fiber.synchronize.ConditionObject`."""

    def _share(self, memory: mmap.mmap, begin: int) -> SharedCondition:
        return SharedCondition(memory, begin)

    def wait(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Call ``release`` and wait until notified; False if not in time.

        With ``certain``, the owner knows of the wait before ``release`` is called.
        """
        before_wait = functools.partial(self._release, release) if certain else release
        reply = self.request(Op.WAIT, 0, timeout, rollback=self._rollback, before_wait=before_wait)
        if reply.status is not Status.OK:
            return False
        self.send(Op.WOKEN)
        return True

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake so many; with ``certain``, that is done on return."""
        if certain:
            self.request(Op.NOTIFY, count)
        else:
            self.send(Op.NOTIFY, count)

    def waiting(self) -> int:
        """Number of waiting threads."""
        return self.request(Op.VALUE).value

    def _release(self, release: Callable[[], object]) -> None:
        # the next holder of the lock, whose owner is another process, must find this one waiting
        self.sync()
        release()

    def _rollback(self, reply: Reply) -> None:
        if reply.status is Status.OK:
            self.send(Op.WOKEN, 1)

    def on_exit(self, code: int) -> None:
        """Report the exit of this process while it waits."""
        if self._error is None and self._shared is not None:
            self._shared.on_exit()
        if self._error is None and self._requests:
            self.submit(functools.partial(self.send, Op.ENDING))
