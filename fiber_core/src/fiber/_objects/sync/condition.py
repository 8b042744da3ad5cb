"""Conditions: the state, the owner's side, the side of all other processes, and shared memory.

``ConditionState`` is pure. A notification stays counted until the process that it was sent to has
acknowledged it: if that process exits or dies before, another request is woken in its place. The
lock of a condition is an object of its own, which the handle uses.

A ``SharedCondition`` is in memory that the processes of one host share. Each thread that waits has an *entry*: the
identity of its process, a number that tells who has waited for longest, and a word that says whether it was
notified, which it waits for: it looks at that for a while, and says there that it sleeps before it does, so that
nobody is woken who is awake. A thread that was notified frees its entry; where its process dies before, those that
wait pass the notification on, as they look from time to time whether the processes of the entries live.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from fiber._base.threads import Deadline, give_way
from fiber._objects.address import Kind
from fiber._objects.sync.monitor import MOST_LOOKS, Monitored, Turns, Word
from fiber._objects.sync.monitor import SIZE as MONITOR_SIZE
from fiber._objects.sync.protocol import Answer, Answers, Op, Request, Status, Wait, WaitQueue
from fiber._objects.sync.shared_semaphore import is_dead, own_identity
from fiber._objects.sync.waitable import OwnedWaitable, RemoteWaitable, Reply, Waitable

if TYPE_CHECKING:
    import mmap

    from fiber._objects.store import Store


# Words of the state, 8 bytes each, behind the monitor.
#: number of the next wait
_NEXT = 0
#: changed by each notification, for threads that stand in for others
_CHANGES = 1
#: entries up to here may be in use
_HIGH = 2
#: 1 once a thread has waited for a change, which is woken by each from then on
_IS_WATCHED = 3
_ENTRIES = 4
#: words of an entry: identity; number of the wait; state; number of the next wait when it was notified
_IDENTITY, _NUMBER, _STATE, _LIMIT, _ENTRY = 0, 1, 2, 3, 4
_FREE, _NOTIFIED, _WAITING, _ASLEEP = 0, 1, 2, 3
_MOST = 256
#: bytes of a condition
SIZE = MONITOR_SIZE + 8 * (_ENTRIES + _ENTRY * _MOST)
#: where an entry is, and the number of its wait
Entry: TypeAlias = tuple[int, int]


class SharedCondition(Monitored):
    """A condition in shared memory, as one process uses it.

    Args:
        memory: shared memory, mapped.
        begin: where it begins there, a multiple of 8; :data:`SIZE` bytes.
        is_new: True to make it, of zeros.
    """

    def __init__(self, memory: mmap.mmap, begin: int, *, is_new: bool = False) -> None:
        super().__init__(memory, begin, is_new=is_new)
        self._words = memoryview(memory)[begin + MONITOR_SIZE : begin + SIZE].cast("q")
        # words that were woken or waited for
        self._known: dict[int, Word] = {}
        self._changes = self._word(_CHANGES)
        # entries of threads of this process that wait
        self._waits: set[int] = set()

    # -- for the user's threads

    def wait(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Call ``release`` and wait until notified; False if not in time.

        Raises:
            RuntimeError: too many threads of this host wait.
        """
        entries: list[Entry] = []
        was_notified = False
        try:
            entry = self.register(entries)
            self._waits.add(entry[0])
            release()
            self._wait(entry[0], timeout)
            was_notified = self.is_notified(entry)
            return self.leave(entry)
        except BaseException:
            # another one is woken in its place
            if entries and self._lost is None and (self.leave(entries[0]) or was_notified):
                self.notify(1, certain=True)
            raise
        finally:
            for at, _ in entries:
                self._waits.discard(at)

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake so many, those that have waited for longest."""
        if not self._words[_HIGH]:
            # nobody waits: whoever does registered before it released the lock, which the caller has
            if self._lost is not None:
                self.check()
            return
        self._wake(functools.partial(self._notify, count, self._words[_NEXT] + 1))

    def waiting(self) -> int:
        """Number of waiting threads."""
        self.check()
        words = self._words
        return sum(words[at + _STATE] >= _WAITING for at in self._all())

    def _wait(self, at: int, timeout: float | None) -> None:
        words, state = self._words, at + _STATE
        for _ in range(0 if timeout is not None and timeout <= 0 else MOST_LOOKS):
            if words[state] == _NOTIFIED:
                return
            give_way()
        deadline, turns = Deadline(timeout), Turns()
        self._inside(functools.partial(self._fall_asleep, state))
        while words[state] != _NOTIFIED:
            self.check()
            left = deadline.left
            if left == 0:
                return
            if turns.wait(self._word(state), _ASLEEP, left):
                self.pass_on()

    def _wake(self, notify: Callable[[], tuple[bool, list[int]]]) -> None:
        """Notify with the monitor entered, and wake those that sleep."""
        has_changed, asleep = self._inside(notify)
        for state in asleep:
            self._word(state).wake()
        if has_changed and self._words[_IS_WATCHED]:
            self._changes.wake()

    # -- entries

    def register(self, entries: list[Entry] | None = None) -> Entry:
        """Begin to wait.

        Args:
            entries: a list that the entry is appended to, before any interrupt can come.

        Raises:
            RuntimeError: too many threads of this host wait.
        """
        kept: list[Entry] = [] if entries is None else entries
        self._inside(functools.partial(self._register, kept))
        if not kept:
            msg = f"more than {_MOST} threads wait for one condition on this host"
            raise RuntimeError(msg)
        return kept[0]

    def leave(self, entry: Entry) -> bool:
        """Wait no more; True where it was notified. Idempotent.

        Called by the thread that waits: nobody else changes an entry that was notified.
        """
        words, state = self._words, entry[0] + _STATE
        if words[state] == _NOTIFIED and words[entry[0] + _NUMBER] == entry[1]:
            words[state] = _FREE
            return True
        return self._inside(functools.partial(self._leave, *entry))

    def is_notified(self, entry: Entry) -> bool:
        """True where a wait was notified."""
        return self._words[entry[0] + _STATE] == _NOTIFIED

    @property
    def changes(self) -> int:
        """Number that each notification changes."""
        return self._words[_CHANGES]

    def wait_for_change(self, number: int, seconds: float) -> None:
        """Wait until :attr:`changes` is another number than this; may return early."""
        self._words[_IS_WATCHED] = 1
        self._changes.wait(number, seconds)

    def pass_on(self) -> None:
        """Free the entries of dead processes, and wake others with notifications that these had."""
        words = self._words
        own = own_identity()
        used = {words[at + _IDENTITY] for at in self._all() if words[at + _STATE]} - {own}
        for identity in filter(is_dead, used):
            self._free(identity)

    def _free(self, identity: int) -> None:
        """Free the entries of a process that waits no more."""
        words = self._words
        for at in [at for at in self._all() if words[at + _IDENTITY] == identity]:
            limit = words[at + _LIMIT]
            # several threads may find it
            if self._inside(functools.partial(self._leave, at, words[at + _NUMBER])):
                # to those that waited when it was notified
                self._wake(functools.partial(self._notify, 1, limit))

    def _word(self, index: int) -> Word:
        found = self._known.get(index)
        if found is None:
            memory, begin = self._where
            found = self._known[index] = Word(memory, begin + MONITOR_SIZE + 8 * index)
        return found

    def _all(self) -> Iterator[int]:
        return iter(range(_ENTRIES, _ENTRIES + _ENTRY * self._words[_HIGH], _ENTRY))

    # -- with the monitor entered

    def _register(self, entries: list[Entry]) -> None:
        words = self._words
        high = words[_HIGH]
        at = next((at for at in self._all() if not words[at + _STATE]), _ENTRIES + _ENTRY * high)
        if high == _MOST and at == _ENTRIES + _ENTRY * high:
            return
        identity, high = own_identity(), max(high, (at - _ENTRIES) // _ENTRY + 1)
        entry = at, words[_NEXT]
        # from here on there is no call until all is changed
        words[_NEXT] += 1
        words[_HIGH] = high
        words[at + _IDENTITY], words[at + _NUMBER] = identity, entry[1]
        words[at + _STATE] = _WAITING
        entries.append(entry)

    def _leave(self, at: int, number: int) -> bool:
        words = self._words
        if words[at + _NUMBER] != number:
            # it is another one's by now
            return False
        was_notified = words[at + _STATE] == _NOTIFIED
        words[at + _STATE] = _FREE
        self._lower()
        return was_notified

    def _lower(self) -> None:
        words = self._words
        while words[_HIGH] and not words[_ENTRIES + _ENTRY * (words[_HIGH] - 1) + _STATE]:
            words[_HIGH] -= 1

    def _fall_asleep(self, state: int) -> None:
        if self._words[state] == _WAITING:
            self._words[state] = _ASLEEP

    def _notify(self, count: int, before: int) -> tuple[bool, list[int]]:
        """Notify so many of those whose number is lower: whether there were any, and words for which some sleep."""
        words = self._words
        self._lower()
        waiting = [
            at
            for at in self._all()
            if words[at + _STATE] >= _WAITING and words[at + _NUMBER] < before
        ]
        if len(waiting) > 1:
            waiting.sort(key=lambda at: words[at + _NUMBER])
        asleep = []
        for at in waiting[:count]:
            if words[at + _STATE] == _ASLEEP:
                asleep.append(at + _STATE)
            words[at + _LIMIT] = words[_NEXT]
            words[at + _STATE] = _NOTIFIED
        words[_CHANGES] += 1
        return bool(waiting), asleep

    def _repair(self) -> None:
        """Nothing to do: an entry is in use or not by one word, which is the last to be written."""

    # -- the ends of this process, and of its connection to the owner

    def on_exit(self) -> None:
        """This process exits normally, while threads of it may wait."""
        if self._waits:
            self._free(own_identity())

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: all uses raise an error from now on."""
        self._refuse(error)
        for at in list(self._waits):
            self._word(at + _STATE).wake()


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


class ConditionCalls(Waitable):
    """What users call of a condition without its lock, at its owner and in another process."""

    def wait(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Call ``release`` and wait until notified; False if not in time.

        With ``certain``, the owner knows of the wait before ``release`` is called.
        """
        before_wait = self._registered(release) if certain else release
        answer = self.request(Op.WAIT, 0, timeout, rollback=self._rollback, before_wait=before_wait)
        if answer.status is not Status.OK:
            return False
        self.send(Op.WOKEN)
        return True

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake so many; with ``certain``, that is done on return."""
        count = min(count, sys.maxsize)
        if certain:
            self.request(Op.NOTIFY, count)
        else:
            self.send(Op.NOTIFY, count)

    def waiting(self) -> int:
        """Number of waiting threads."""
        return self.request(Op.VALUE).value

    def _registered(self, release: Callable[[], object]) -> Callable[[], object]:
        """A call of ``release`` once the owner knows of the wait."""
        return release

    def _rollback(self, answer: Answer | Reply) -> None:
        if answer.status is Status.OK:
            self.send(Op.WOKEN, 1)


class OwnedCondition(OwnedWaitable, ConditionCalls):
    """A condition at its owner.

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

    def _handle_request(self, op: int, request: Request, argument: int) -> Answers | None:
        waiting = self._condition.waiting if self.shared is None else self.shared.waiting()
        done = [Answer(request, Status.OK, waiting)]
        if op == Op.WAIT:
            return self._condition.wait(request)
        if op == Op.NOTIFY:
            return self._condition.notify(argument) + (done if request.number else [])
        if op == Op.WOKEN:
            self._condition.acknowledge(request.process)
            return self._condition.notify(1) if argument else []
        return done if op == Op.VALUE else None


class RemoteCondition(RemoteWaitable, ConditionCalls):
    """A condition of another process."""

    def _share(self, memory: mmap.mmap, begin: int) -> SharedCondition:
        return SharedCondition(memory, begin)

    def _registered(self, release: Callable[[], object]) -> Callable[[], object]:
        def sync_and_release() -> None:
            # the next holder of the lock, whose owner is another process, must find this one waiting
            self.sync()
            release()

        return sync_and_release

    def on_exit(self, code: int) -> None:
        """Report the exit of this process while it waits."""
        if self._error is None and self._shared is not None:
            self._shared.on_exit()
        if self._error is None and self._requests:
            self.submit(functools.partial(self.send, Op.ENDING))
