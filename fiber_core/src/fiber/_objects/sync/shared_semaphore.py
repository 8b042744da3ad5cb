"""Locks and semaphores in memory that the processes of one host share; their owner only keeps the memory.

The state is in the memory, behind a :class:`~fiber._objects.sync.monitor.Monitor`. Each process that holds
permits has an *entry*: its identity (process id and start time), how many it holds, and when it acquired
one last. The number of its permits is the one word that a process changes to acquire or release one; all
else that depends on it is computed from the entries where a process died inside the monitor. So a process
may die at any instruction.

*Deaths* are noticed by those who wait: from time to time they look whether the processes of the entries
live. The permits of one that does not are recovered, where the semaphore does so, and its death is reported
to the next that acquires one.

*Order*: a permit that becomes free is taken by whoever comes first, a waiting thread or another one, since
to hand it to a thread that sleeps takes longer than most locks are held. Once a thread has waited for a
millisecond, nobody but waiting threads gets a permit (the way of Go's ``sync.Mutex``).

Apart from :mod:`~fiber._objects.sync.semaphore`, which is about messages.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fiber._base.threads import TURN, Deadline
from fiber._objects.address import Kind, shape_of
from fiber._objects.sync.hold import LocalHold, Permits
from fiber._objects.sync.monitor import MOST_LOOKS, Monitored, Turns, Word
from fiber._objects.sync.monitor import SIZE as MONITOR_SIZE
from fiber._objects.sync.protocol import Status
from fiber.backend_parts.liveness import Liveness, Owner, start_time, this_place

if TYPE_CHECKING:
    import mmap


# Words of the state, 8 bytes each, behind the monitor.
#: free permits; computed from the total and the entries where a process died
_FREE = 0
#: threads that wait, or will; the time (monotonic, ns) after which no living one does
WAITERS, UNTIL = 1, 2
#: time until which permits are for waiting threads only
RESERVED = 3
#: changed whenever a thread is to wake; its lower half is the word that threads wait for
_CHANGES = 4
#: bytes of the report of a death that nobody was told of; 0 for none
REPORT = 5
#: permits in all, but for those that are held without an entry
_TOTAL = 6
_MAXIMUM = 7
OPTIONS = 8
COUNT = 9
_WORDS = 10
_REPORT_SIZE = 128
#: words that locks have, too
HEAD = _WORDS + _REPORT_SIZE // 8
#: where the entries begin, of three words each: identity, permits, time of the last acquire
_ENTRIES = HEAD
_ENTRY = 3
#: processes beyond these hold permits that are not recovered
_MAX_ENTRIES = 128

#: options; the last two are those of :mod:`~fiber._objects.sync.shared_lock`
_RECOVER, REPORT_DEATHS, REFUSE, SEATED, UNTRACKED = 1, 2, 4, 8, 16

#: identity in the entry of permits that stay taken after a normal exit
NOBODY = 1
#: bits of a start time; and the bit of what a process holds on behalf of others
_START_BITS = 40
FOR_OTHERS = 1 << 62

#: nanoseconds after its wait until which a thread must have looked again, else it is dead or stopped
GRACE = 1_000_000_000
#: nanoseconds for which a thread that has waited long reserves permits at a time
RESERVATION = 20_000_000
#: nanoseconds between two looks of a process that does not wait at whether the holders live
_PAUSE = 50_000_000

#: status, and the report of a death or the word that is to be waited for
Outcome: TypeAlias = tuple[Status, str, int]
ACQUIRED: Outcome = (Status.OK, "", 0)
REFUSED: Outcome = (Status.REFUSED, "", 0)


class Beginning(Protocol):
    """Permits and policy of a lock or semaphore to begin with; its state machine has them."""

    @property
    def value(self) -> int: ...
    @property
    def maximum(self) -> int: ...
    @property
    def recover(self) -> bool: ...
    @property
    def track_holders(self) -> bool: ...
    @property
    def report_deaths(self) -> bool: ...
    @property
    def refuse_after_death(self) -> bool: ...


def size_of(entries: int) -> int:
    """Bytes of a semaphore with so many entries."""
    return MONITOR_SIZE + 8 * (_ENTRIES + _ENTRY * entries)


def head_of(memory: mmap.mmap, begin: int) -> memoryview:
    """The words that all have."""
    return memoryview(memory)[begin + MONITOR_SIZE : begin + size_of(0)].cast("q")


def entries_for(maximum: int, *, track_holders: bool) -> int:
    """Entries of a semaphore; processes beyond these hold permits that are not recovered."""
    return min(maximum, _MAX_ENTRIES) if track_holders else 0


def own_identity() -> int:
    """Identity of this process: process id and start time."""
    return _identity_of(os.getpid())


@functools.cache
def _identity_of(pid: int) -> int:
    return pid << _START_BITS | int(start_time(pid) or 0) & (1 << _START_BITS) - 1


def is_dead(identity: int) -> bool:
    """True where it is proven that a process does not live."""
    pid = (identity & ~FOR_OTHERS) >> _START_BITS
    started = float(identity & (1 << _START_BITS) - 1)
    here = _place_of(os.getpid())
    return Owner(here, pid, started).liveness(here) is Liveness.DEAD


@functools.cache
def _place_of(_pid: int) -> str:
    return this_place()


def description_of(identity: int, host: str) -> str:
    """Description of a process for messages to users."""
    return f"process {(identity & ~FOR_OTHERS) >> _START_BITS} on {host}"


def options_of(state: Beginning) -> int:
    """Policy of a state about deaths, as bits of one word."""
    return (
        state.recover * _RECOVER
        | state.report_deaths * REPORT_DEATHS
        | state.refuse_after_death * REFUSE
    )


class SharedHold(LocalHold):
    """The permits that this process holds, by its entry."""

    def __init__(self, kind_name: str, *, recursive: bool, count: Callable[[], int]) -> None:
        super().__init__(kind_name, recursive=recursive)
        self._held = count

    @property
    def held(self) -> int:  # type: ignore[override] # nobody but the semaphore changes it
        """Permits that this process holds."""
        return self._held()


class SharedPermits(Monitored, Permits):
    """Base class of locks and semaphores in shared memory.

    Args:
        memory: shared memory, mapped.
        begin: where the state begins there, a multiple of 8.
        host: name of this host, in messages to users.
        identity: of this process.
        is_new: True to make it, of zeros.
    """

    # where to see whether a permit is free, and the word that those who wait for one wait for
    _free: tuple[memoryview, int]
    _changes: Word
    # places that note who has a permit
    _all: Sequence[int]

    def __init__(
        self, memory: mmap.mmap, begin: int, *, host: str, identity: int, is_new: bool
    ) -> None:
        super().__init__(memory, begin, is_new=is_new)
        self._identity = identity
        self._host = host
        # when this process looked whether the holders live
        self._looked = 0

    def _map(self, size: int) -> None:
        memory, begin = self._where
        view = memoryview(memory)[begin + MONITOR_SIZE : begin + size]
        self._words = view.cast("q")
        self._report = view[8 * _WORDS : 8 * _ENTRIES]

    def for_others(self) -> SharedPermits:
        """The same, as this process uses it for processes that do not map the memory."""
        raise NotImplementedError

    def on_exit(self, code: int) -> None:
        """This process exits: what it holds stays taken, or is recovered after another code than 0."""
        raise NotImplementedError

    def wait_for_permit(self, timeout: float | None, looks: int | None = None) -> Outcome:
        """Acquire a permit, waiting for so many seconds; the outcome.

        Args:
            timeout: seconds; None for ever.
            looks: at whether one is free, before it sleeps; None for as many as there are.
        """
        deadline = Deadline(timeout)
        if deadline.left == 0:
            outcome = self._take()
            if outcome is REFUSED and self._look_again() and self._recover_dead():
                outcome = self._take()
            return outcome
        words, free = self._free
        for _ in range(MOST_LOOKS if looks is None else looks):
            if words[free] > 0:
                outcome = self._take()
                if outcome is not REFUSED:
                    return outcome
        # where nobody's death matters there is nothing to look for
        turns = Turns() if self._all else Turns(int(TURN * 1e9))
        outcome = self._take(wait=turns.turn)
        try:
            while outcome[0] is Status.REFUSED:
                left = deadline.left
                if left == 0:
                    if self._look_again():
                        self._recover_dead()
                    return self._take(has_waited=True)
                if turns.wait(self._changes, outcome[2], left):
                    self._recover_dead()
                # once a turn has passed it has waited long
                outcome = self._take(has_waited=True, wait=turns.turn, reserve=not turns.is_first)
        except BaseException:
            # it may have been this thread that was woken
            self._changes.wake(1)
            raise
        return outcome

    def _acquired(self, outcome: Outcome) -> bool:
        """Report a death to the user, as a warning or an error; True where a permit was acquired."""
        if outcome[1]:
            self.warn(outcome[0], outcome[1])
        return outcome[0] is not Status.REFUSED

    def _take(self, *, has_waited: bool = False, wait: int = 0, reserve: bool = False) -> Outcome:
        """Acquire a permit if one is free.

        Args:
            has_waited: True for a thread that was counted as waiting.
            wait: nanoseconds for which the thread waits now, if there is none.
            reserve: True to reserve the next one for waiting threads.
        """
        raise NotImplementedError

    def _recover_dead(self) -> bool:
        """Recover the permits of dead processes; True where there were any."""
        raise NotImplementedError

    def _look_again(self) -> bool:
        """True where it is time to look whether the holders live."""
        now = time.monotonic_ns()
        is_time = now - self._looked >= _PAUSE
        if is_time:
            self._looked = now
        return is_time

    def recover(self, count: int, text: str) -> None:
        """Release so many permits of a process that died, and have its death reported."""
        if self._words[OPTIONS] & REPORT_DEATHS:
            self.report_again(text)
        for _ in range(count):
            self.release()

    def report_again(self, text: str) -> None:
        """Report a death again, whose acquirer gave up before it saw the report."""
        self._inside(functools.partial(self._report_death, text))

    def _report_death(self, text: str) -> None:
        """Report a death to the next acquirer."""
        known = bytes(self._report[: self._words[REPORT]])
        new = text.encode()
        if new in known:
            # whoever was to report it died in between
            return
        data = b", ".join(filter(None, (known, new)))[:_REPORT_SIZE]
        self._report[: len(data)] = data
        self._words[REPORT] = len(data)


class SharedSemaphore(SharedPermits):
    """A semaphore in shared memory, as one process uses it.

    Args:
        memory: shared memory, mapped.
        begin: where it begins there, a multiple of 8; :func:`size_of` bytes.
        kind: a lock's, a recursive lock's or a semaphore's.
        host: name of this host, in messages to users.
        identity: of this process.
        state: the one to make of zeros; None where another process has made it.
        entries: number of its entries, to make it.
    """

    def __init__(
        self,
        memory: mmap.mmap,
        begin: int,
        kind: Kind,
        *,
        host: str,
        identity: int,
        state: Beginning | None = None,
        entries: int = 0,
    ) -> None:
        super().__init__(memory, begin, host=host, identity=identity, is_new=state is not None)
        self._changes = Word(memory, begin + MONITOR_SIZE + 8 * _CHANGES)
        if state is None:
            entries = head_of(memory, begin)[COUNT]
        self._map(size_of(entries))
        self._free = self._words, _FREE
        self._all = range(_ENTRIES, _ENTRIES + _ENTRY * entries, _ENTRY)
        self._is_single = entries == 1
        self._recursive = kind is Kind.RLOCK
        # where the entry is that this process had last; permits that it holds without one
        self._entry = _ENTRIES if entries else 0
        self._untracked = 0
        #: permits that this process holds
        self.local_hold = SharedHold(
            shape_of(kind, 0).name, recursive=self._recursive, count=self._held
        )
        if state is not None:
            self._words[_FREE] = self._words[_TOTAL] = state.value
            self._words[_MAXIMUM], self._words[COUNT] = state.maximum, entries
            self._words[OPTIONS] = options_of(state)

    def for_others(self) -> SharedSemaphore:
        """The same, as this process uses it for processes that do not map the memory."""
        identity = self._identity | FOR_OTHERS
        return SharedSemaphore(*self._where, Kind.SEMAPHORE, host=self._host, identity=identity)

    # -- for the user's threads

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire a permit; False if none is free, or became free in time."""
        if self._recursive and self.local_hold.thread == get_ident():
            # nobody else can have released it
            self.local_hold.depth += 1
            return True
        outcome = self._take()
        if outcome is ACQUIRED:
            return True
        if outcome is REFUSED:
            wait = block and (timeout is None or timeout > 0)
            outcome = self.wait_for_permit(timeout if wait else 0)
        return self._acquired(outcome)

    def release(self) -> None:
        """Release a permit."""
        hold = self.local_hold
        if self._recursive:
            if hold.thread != get_ident():
                self.check()
                msg = "attempt to release recursive lock not owned by thread"
                raise AssertionError(msg)
            hold.depth -= 1
            if hold.depth:
                return
        if not self._give_back():
            msg = "semaphore or lock released too many times"
            raise ValueError(msg)

    def value(self) -> int:
        """Number of free permits."""
        self.check()
        return max(0, self._words[_FREE])

    # -- the steps

    def _take(self, *, has_waited: bool = False, wait: int = 0, reserve: bool = False) -> Outcome:
        words = self._words
        acquired, text, status = False, "", Status.OK
        # Handlers of signals run behind calls and nowhere else: no change is torn by an interrupt.
        try:
            code = self._try_lock(self._mutex)
            if code:
                self._enter(code)
            at = self._entry
            if has_waited or words[WAITERS] or words[REPORT] or words[_FREE] <= 0:
                now = time.monotonic_ns()
                if has_waited and words[WAITERS]:
                    words[WAITERS] -= 1
                if words[_FREE] <= 0 or not (has_waited or now > words[RESERVED]):
                    if wait:
                        words[WAITERS] += 1
                        words[UNTIL] = now + wait + GRACE
                        words[RESERVED] = now + RESERVATION if reserve else words[RESERVED]
                    changes = words[_CHANGES]
                    self._unlock(self._mutex)
                    return (Status.REFUSED, "", changes) if wait else REFUSED
                if words[REPORT]:
                    text = bytes(self._report[: words[REPORT]]).decode(errors="replace")
                    refuse = words[OPTIONS] & REFUSE
                    status = Status.REFUSED_HOLDER_DIED if refuse else Status.OK_HOLDER_DIED
                words[RESERVED] = 0
            if not self._is_single and self._all:
                at = self._find_entry()
                if at:
                    words[at + 2] = time.monotonic_ns()
            thread, hold = get_ident(), self.local_hold
            # from here on there is no call until all is changed
            if status is not Status.REFUSED_HOLDER_DIED:
                acquired = True
                if at:
                    words[at] = self._identity
                    words[at + 1] += 1
                else:
                    words[_TOTAL] -= 1
                    self._untracked += 1
                words[_FREE] -= 1
                hold.thread, hold.depth = thread, 1
            if text:
                words[REPORT] = 0
            self._unlock(self._mutex)
        except BaseException:
            self._back_out()
            if text and not words[REPORT]:
                self.report_again(text)
            if acquired:
                self._give_back()
            raise
        return (status, text, 0) if text else ACQUIRED

    def _give_back(self) -> bool:
        """Release a permit, of another process where this one has none; False beyond the maximum."""
        words = self._words
        changed, waiting = False, 0
        try:
            code = self._try_lock(self._mutex)
            if code:
                self._enter(code)
            at = self._entry
            if not (at and words[at] == self._identity and words[at + 1]):
                at = self._entry_to_release()
                if at < 0:
                    self._unlock(self._mutex)
                    return False
            # from here on there is no call until all is changed
            changed = True
            if at:
                words[at + 1] -= 1
            else:
                words[_TOTAL] += 1
                self._untracked -= self._untracked > 0
            words[_FREE] += 1
            if self._is_single:
                self.local_hold.thread = 0
            waiting = words[WAITERS]
            if waiting:
                words[_CHANGES] += 1
            self._unlock(self._mutex)
            if waiting:
                self._wake_one()
        except BaseException:
            self._back_out()
            if not changed and self._lost is None:
                self._give_back()
            elif waiting:
                self._wake_one()
            raise
        return True

    def _wake_one(self) -> None:
        if not self._changes.wake(1) and self._words[UNTIL] < time.monotonic_ns():
            # those that were counted have died
            self._words[WAITERS] = 0

    def _repair(self) -> None:
        """Compute what depends on the entries, of which each is right at any time."""
        words = self._words
        words[_FREE] = words[_TOTAL] - sum(words[at + 1] for at in self._all)

    # -- entries; with the monitor entered

    def _find_entry(self) -> int:
        """The entry of this process, perhaps a new one; 0 where there is none left."""
        words, identity = self._words, self._identity
        if words[self._entry] == identity:
            return self._entry
        free = 0
        for at in self._all:
            if words[at] == identity:
                free = at
                break
            if not words[at + 1]:
                free = free or at
        self._entry = free or self._entry
        return free

    def _entry_to_release(self) -> int:
        """The entry whose permit is released; 0 for none, -1 where no more may be released."""
        words = self._words
        if self._untracked > 0:
            return 0
        taken = [at for at in self._all if words[at + 1] > 0]
        for at in taken:
            if words[at] == self._identity:
                return at
        if words[_FREE] >= words[_MAXIMUM]:
            return -1
        return min(taken, key=lambda at: words[at + 2], default=0)

    def _held(self) -> int:
        """Permits of this process."""
        words, at = self._words, self._entry
        if self._is_single:
            return words[at + 1] if words[at] == self._identity else 0
        held = sum(words[at + 1] for at in self._all if words[at] == self._identity)
        return held + self._untracked

    def _recover_dead(self) -> bool:
        words = self._words
        others = {words[at] for at in self._all if words[at + 1]} - {NOBODY, self._identity}
        dead = [identity for identity in others if is_dead(identity)]
        recovered = [self._inside(functools.partial(self._recover, one)) for one in dead]
        return any(recovered)

    def _recover(self, identity: int) -> bool:
        """Free the permits of a process, or leave them taken by nobody."""
        words = self._words
        found = [at for at in self._all if words[at] == identity and words[at + 1]]
        if not words[OPTIONS] & _RECOVER:
            self._leave_taken(identity)
            return False
        for at in found:
            if words[OPTIONS] & REPORT_DEATHS:
                self._report_death(description_of(identity, self._host))
            words[at + 1] = 0
        self._repair()
        words[_CHANGES] += 1
        self._changes.wake()
        return bool(found)

    def _leave_taken(self, identity: int) -> None:
        words = self._words
        for at in self._all:
            if words[at] == identity and words[at + 1]:
                words[at] = NOBODY

    # -- the ends of this process, and of its connection to the owner

    def on_exit(self, code: int) -> None:
        """This process exits: what it holds stays taken, or is recovered after another code than 0."""
        if self._held():
            end = self._recover if code else self._leave_taken
            self._inside(functools.partial(end, self._identity))

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: it holds nothing any more, and all uses raise an error."""
        if self._lost is not None:
            return
        self._inside(functools.partial(self._recover, self._identity))
        self.local_hold.thread = 0
        self._refuse(error)
        self._changes.wake()
