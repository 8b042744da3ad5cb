"""Locks and semaphores in memory that the processes of one host share, taken by the standard library's C code.

*Locks*. The *permit* is a semaphore of the C library. Each process has a *seat*, another one, which it raises before it
takes the permit and lowers when it has given it back or has not got it. So whoever's seat is down has not the
permit, at whatever instruction it is killed. A lock that nobody waits for costs four calls of functions in C,
and nothing else: no mutex is entered, and nothing is noted.

A lock that *another process releases* is marked as such at the seat of the one that had it, which stays up; that
process takes it again without raising its seat.

A seat can be *frozen*, so that its process cannot raise it and goes through the monitor, where all else is done:
waiting, reservations, reports of deaths. A seat stays frozen until its process finds nothing of the kind there.

*Deaths*: who waits looks whether the processes live whose seats are up. Where one does not, it freezes all seats.
If then the seats of all living processes are down and the permit is not there, it was a dead one's. A process may
have been just about to raise its seat when that was frozen, and does so once: therefore this is looked at once
more often than there are seats. (The interpreter's lock is held in between, so it is one thread of a process.)

*Processes beyond the number of seats* use a common one, which is always frozen; it is noted there who does.

*Semaphores whose permits are lost with their holder* need nobody's seat: who has a permit matters to nobody else.
Each process counts its own. One more semaphore, the *gate*, is up while permits are for waiting threads only.

Order is that of :mod:`~fiber._objects.sync.shared_semaphore`, which is about semaphores whose permits are recovered,
and all where the system has no such semaphores.

*The semaphores*: ``multiprocessing`` has a class in C, ``SemLock``, that takes and raises a semaphore in a quarter
of the time that a function takes which is called through ctypes. Here the semaphores are in memory of ours and have
no name. What is relied on: that a semaphore's value is the lower half of its first 64 bits, and that the C library
wakes a thread that waits for that word (``futex(2)``) where the upper half is not 0. So it is in glibc from 2.21 on;
:func:`is_possible` tries it out.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import operator
import os
import time
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any, TypeVar, cast

from fiber._base.threads import give_way
from fiber._objects.address import Kind, shape_of
from fiber._objects.sync import monitor, shared_semaphore
from fiber._objects.sync.monitor import MOST_LOOKS, Word
from fiber._objects.sync.monitor import SIZE as MONITOR_SIZE
from fiber._objects.sync.protocol import Status
from fiber._objects.sync.shared_semaphore import (
    ACQUIRED,
    COUNT,
    FOR_OTHERS,
    GRACE,
    HEAD,
    NOBODY,
    OPTIONS,
    REFUSE,
    REFUSED,
    REPORT,
    REPORT_DEATHS,
    RESERVATION,
    RESERVED,
    SEATED,
    UNTIL,
    UNTRACKED,
    WAITERS,
    Beginning,
    Outcome,
    SharedHold,
    SharedPermits,
    SharedSemaphore,
    entries_for,
    options_of,
)
from fiber._wire import fork

#: bytes of a semaphore
SIZE = 32
#: a bit of the value that :meth:`Semaphore.freeze` sets
FROZEN = 1024

# kinds of a SemLock: one that its thread alone may raise, one that any thread may
_OWN_THREAD, _ANY_THREAD = 0, 1
# futex(2): operation that changes a word atomically; what it does with FROZEN
_WAKE_OP = 5
_OR, _AND_NOT = 2 << 28 | FROZEN << 12, 3 << 28 | FROZEN << 12


class Semaphore:
    """A semaphore of the C library; one whose value is 0 or 1 can be frozen.

    Args:
        memory: shared memory, mapped.
        begin: where it begins there, a multiple of 8; :data:`SIZE` bytes.
    """

    def __init__(self, memory: mmap.mmap, begin: int) -> None:
        # keeps it mapped
        self._memory = (ctypes.c_char * SIZE).from_buffer(memory, begin)
        self._reference = ctypes.byref(self._memory)
        self._address = ctypes.addressof(self._memory)
        self._functions = monitor.functions()
        self._post = self._functions.post

    def make(self, value: int) -> None:
        """Make it, with a value."""
        self._functions.init_semaphore(self._reference, 1, value)

    def opened(self, maximum: int = 1, kind: int = _ANY_THREAD) -> Any:
        """A new ``SemLock`` of it, which counts what is done by it, and raises the value up to a maximum."""
        from _multiprocessing import SemLock  # type: ignore[import-not-found] # it has no stubs

        return SemLock._rebuild(self._address, kind, maximum, None)  # noqa: SLF001

    def post(self) -> None:
        """Raise the value, uncounted."""
        self._post(self._reference)

    def freeze(self) -> None:
        """Make ``SemLock.release`` fail, whatever the value, until :meth:`thaw`; ``acquire`` continues to work."""
        self._change(_OR)

    def thaw(self) -> None:
        """Undo :meth:`freeze`."""
        self._change(_AND_NOT)

    def _change(self, how: int) -> None:
        self._functions.wake(monitor.NUMBER, self._address, _WAKE_OP, 0, None, self._address, how)


@functools.cache
def is_possible() -> bool:
    """True where this system has such semaphores; False where it is not known to be so."""
    if not monitor.is_possible() or not hasattr(ctypes.PyDLL(None), "gnu_get_libc_version"):
        # another C library may not close one that has no name
        return False
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    halves = memoryview(memory).cast("i")
    semaphore = Semaphore(memory, 0)
    try:
        semaphore.make(0)
        user = semaphore.opened()
    except (ImportError, AttributeError, TypeError):
        return False
    seen = []
    halves[1] = 1
    for step in (semaphore.post, semaphore.freeze, user.acquire, user.release, semaphore.thaw):
        try:
            step()
        except ValueError:
            seen.append(-1)
        seen.append(halves[0])
    return [*seen, halves[1]] == [1, FROZEN + 1, FROZEN, -1, FROZEN, 0, 1]


T = TypeVar("T")


def calls(
    acquire: Callable[..., bool], *, after: Callable[[], None] | None = None
) -> Iterator[bool]:
    """Iterator each of whose steps is a call that does not wait, perhaps behind another one.

    Python runs handlers of signals, and other threads, behind a call, before it stores what that returns. Behind a
    step of a ``for`` loop it runs nothing.
    """
    no = itertools.repeat(False)
    if after is None:
        return map(acquire, no)
    # what that returns is the timeout: none
    return map(acquire, no, itertools.starmap(after, itertools.repeat(())))


# Words of the state, 8 bytes each, behind those that semaphores have too; in cache lines of their own.
#: the permit
_PERMIT = 32
#: seats, of so many words each: identity of its process; 1 where another one has released what that had; semaphore
_SEATS, _SEAT, _IS_RELEASED, _SEMAPHORE = 40, 8, 1, 2
#: seat of all that have none
_COMMON = _SEATS
#: of semaphores without seats: the gate; the most permits that may be free
_GATE, _MAXIMUM = _SEATS, _SEATS + 4
_LEAST, _MOST = 16, 64

#: looks at whether another process has released what this thread has, 1 us each, before it waits through the monitor
_MOST_LOOKS_AGAIN = 50
#: nanoseconds after which a look was long; number of the waits after that in which it looks once
_LONG, _BUSY = 100_000, 100

_TOO_MANY = "semaphore or lock released too many times"
assert HEAD <= _PERMIT


def seats() -> int:
    """Number of seats of a lock that is made here."""
    return max(_LEAST, min(_MOST, 2 + (os.cpu_count() or 1)))


def size_of(count: int) -> int:
    """Bytes of a lock with so many seats."""
    return MONITOR_SIZE + 8 * (_SEATS + _SEAT * count)


class _Hold(SharedHold):
    """Hold of this process on a semaphore, by what its ``SemLock`` counts."""

    def __init__(self, kind_name: str, *, recursive: bool, used: QuickPermits) -> None:
        self._used = used
        super().__init__(kind_name, recursive=recursive, count=used.held)

    @property
    def is_held_by_thread(self) -> bool:
        """True where this thread acquired it last and it was not released."""
        return self.held > 0 and self._used.is_mine()


class _LockHold(_Hold):
    """Hold of this process on a lock."""

    _used: SharedLock

    @property
    def depth(self) -> int:
        """Number of times that its thread has acquired a recursive lock."""
        return self._used.depth()

    @depth.setter
    def depth(self, depth: int) -> None:
        self._used.set_depth(depth)


class QuickPermits(SharedPermits):
    """Base class of those that the standard library's C code takes."""

    #: acquires it; as :meth:`SharedPermits.acquire`
    acquire: Callable[..., bool]
    #: releases it; takes the arguments of an ``__exit__``, too, which it has no use for
    release: Callable[..., None]
    #: True where this thread acquired it last
    is_mine: Callable[[], bool]
    # has the functions above use SemLocks
    _bind: Callable[..., None]
    _permit: Any

    def held(self) -> int:
        """Permits that this process holds."""
        raise NotImplementedError

    def value(self) -> int:
        """Number of free permits."""
        self.check()
        return int(self._halves[2 * _PERMIT])

    def wait(self, block: bool, timeout: float | None, looks: int | None = None) -> bool:
        """Acquire it through the monitor, where the quick way ends; ``looks`` as of :meth:`wait_for_permit`."""
        self.check()
        wait = block and (timeout is None or timeout > 0)
        return self._acquired(self.wait_for_permit(timeout if wait else 0, looks))

    def abandon(self) -> None:
        """In a process forked by user code: refuse all uses."""
        super().abandon()
        self._close(fork.check)

    def _close(self, refuse: Callable[[], object]) -> None:
        """Close the quick way with an error."""
        raise NotImplementedError

    def _map(self, size: int) -> None:
        super()._map(size)
        memory, begin = self._where
        self._halves = self._words.cast("B").cast("i")
        self._free = self._halves, 2 * _PERMIT
        self._changes = Word(memory, begin + MONITOR_SIZE + 8 * _PERMIT)
        self._permit_at = self._semaphore(_PERMIT)

    def _semaphore(self, word: int) -> Semaphore:
        memory, begin = self._where
        return Semaphore(memory, begin + MONITOR_SIZE + 8 * word)

    def _is_mine(self) -> bool:
        return bool(self._permit._is_mine())  # noqa: SLF001 - multiprocessing's locks use it

    # -- with the monitor entered

    def _repair(self) -> None:
        """Nothing to do: each change is one of a word, and may be the last."""

    def _count_waiting(self, now: int, *, has_waited: bool) -> None:
        """Count threads that wait: one less, where it has, and none that has died."""
        words = self._words
        if words[WAITERS]:
            words[WAITERS] = words[WAITERS] - has_waited if now <= words[UNTIL] else 0
            self._halves[2 * _PERMIT + 1] = words[WAITERS] > 0

    def _begin_to_wait(self, until: int) -> None:
        words = self._words
        words[WAITERS] += 1
        words[UNTIL] = until + GRACE
        # the one that raises the permit wakes one that waits
        self._halves[2 * _PERMIT + 1] = 1


class SharedLock(QuickPermits):
    """A lock in shared memory, as one process uses it.

    Args:
        memory: shared memory, mapped.
        begin: where it begins there, a multiple of 8; :func:`size_of` bytes.
        kind: a lock's, a recursive lock's, or that of a semaphore of one permit.
        host: name of this host, in messages to users.
        identity: of this process.
        state: the one to make of zeros; None where another process has made it.
        count: number of its seats, to make it.
    """

    #: how often its thread has acquired it; sets that
    depth: Callable[[], int]
    set_depth: Callable[[int], None]
    # counts it as not acquired where another process has released it; True where that was so
    _lose: Callable[[], bool]

    def __init__(
        self,
        memory: mmap.mmap,
        begin: int,
        kind: Kind,
        *,
        host: str,
        identity: int,
        state: Beginning | None = None,
        count: int = 0,
    ) -> None:
        super().__init__(memory, begin, host=host, identity=identity, is_new=state is not None)
        self._map(size_of(count or shared_semaphore.head_of(memory, begin)[COUNT]))
        self._known: dict[int, Semaphore] = {}
        if state is not None:
            self._words[OPTIONS], self._words[COUNT] = SEATED | options_of(state), count
            self._permit_at.make(state.value)
            self._known_at(_COMMON).make(0)
            self._known_at(_COMMON).freeze()
        self._all = range(_SEATS, _SEATS + _SEAT * self._words[COUNT], _SEAT)
        # of each seat the byte that has no bit of FROZEN
        self._ups = self._words.cast("B")[8 * (_SEATS + _SEMAPHORE) :: 8 * _SEAT]
        #: True where its thread may acquire it again
        self.is_recursive = kind is Kind.RLOCK
        self._seat = _COMMON
        self._user = self._known_at(_COMMON).opened()
        self._permit, self._unheld = self._opened(), self._permit_at.opened()
        _make_uses(self, recursive=self.is_recursive)
        self._bind(self._user, self._permit)
        # while it is a recursive lock that it belongs to, no other SemLock takes its place
        self.is_mine = self._permit._is_mine if self.is_recursive else self._is_mine  # noqa: SLF001 - as below
        #: what this process has of it
        self.local_hold = _LockHold(shape_of(kind, 0).name, recursive=self.is_recursive, used=self)

    def for_others(self) -> SharedLock:
        """The same, as this process uses it for processes that do not map the memory."""
        identity = self._identity | FOR_OTHERS
        return SharedLock(*self._where, Kind.SEMAPHORE, host=self._host, identity=identity)

    def held(self) -> int:
        """Permits that this process holds."""
        words, seat = self._words, self._seat
        if words[seat] != self._identity or words[seat + _IS_RELEASED]:
            return 0
        return int(self.depth() > 0)

    # -- where the quick way ends

    def release_for_another(self) -> None:
        """Release it, which this process, or this thread, has not acquired."""
        self.check()
        if self.is_recursive:
            msg = "attempt to release recursive lock not owned by thread"
            raise AssertionError(msg)
        if not self._inside(self._release_for_another):
            raise ValueError(_TOO_MANY)

    def released_before(self) -> ValueError:
        """Put in order what this process has where another one released it: the error of doing so again."""
        self._inside(self._reset)
        return ValueError(_TOO_MANY)

    def _take(self, *, has_waited: bool = False, wait: int = 0, reserve: bool = False) -> Outcome:
        words, halves = self._words, self._halves
        text, status, is_raised, count = "", Status.REFUSED, False, 0
        try:
            code = self._try_lock(self._mutex)
            if code:
                self._enter(code)
            now = time.monotonic_ns()
            self._settle(now, has_waited=has_waited)
            seat, free = self._seat, halves[2 * _PERMIT]
            in_use = self._is_up(seat)
            if in_use and not self.depth():
                # by another process that has no seat of its own
                free = -free
            is_reserved = words[WAITERS] and not has_waited and now <= words[RESERVED]
            if free > 0 and not in_use and not is_reserved:
                if words[REPORT]:
                    text = bytes(self._report[: words[REPORT]]).decode(errors="replace")
                if text and words[OPTIONS] & REFUSE:
                    status = Status.REFUSED_HOLDER_DIED
                else:
                    words[seat] = self._identity
                    count = self._permit._count()  # noqa: SLF001 - multiprocessing's locks use it
                    is_raised = True
                    self._known_at(seat).post()
                    if self._permit.acquire(False):
                        self.set_depth(1)
                        status = Status.OK_HOLDER_DIED if text else Status.OK
                    else:
                        is_raised = not self._user.acquire(False)
            if status is Status.REFUSED:
                if wait:
                    self._begin_to_wait(now + wait)
                    if reserve:
                        words[RESERVED] = now + RESERVATION
                        self._freeze()
                self._unlock(self._mutex)
                return (Status.REFUSED, "", free) if wait else REFUSED
            words[RESERVED] = 0
            if text:
                words[REPORT] = 0
            self._thaw()
            self._unlock(self._mutex)
        except BaseException:
            self._back_out()
            if text and not words[REPORT]:
                self.report_again(text)
            if is_raised:
                self.set_depth(0)
                if self._permit._count() > count:  # noqa: SLF001 - as above
                    self._permit.release()
                self._user.acquire(False)
            raise
        return (status, text, 0) if text else ACQUIRED

    # -- with the monitor entered

    def _settle(self, now: int, *, has_waited: bool) -> None:
        """Find a seat for this process, and forget threads that waited and died."""
        words = self._words
        self._count_waiting(now, has_waited=has_waited)
        if self._lose():
            self._reset()
        if self._seat == _COMMON and not (
            words[_COMMON] == self._identity and self._is_up(_COMMON)
        ):
            found = self._find_seat()
            if found:
                self._sit(found)

    def _find_seat(self) -> int:
        """A seat for this process; 0 where there is none left."""
        words = self._words
        own = [at for at in self._all[1:] if words[at] == self._identity]
        free = own or [at for at in self._all[1:] if not words[at]]
        if not free and self._look_again():
            free = [at for at in self._all[1:] if not self._is_up(at) and self._is_dead(at)]
        if free and not own:
            words[free[0]] = words[free[0] + _IS_RELEASED] = 0
            self._known_at(free[0]).make(0)
            self._known_at(free[0]).freeze()
            words[free[0]] = self._identity
        return free[0] if free else 0

    def _sit(self, seat: int) -> None:
        self._seat = seat
        self._user = self._known_at(seat).opened()
        self._bind(self._user, self._permit)

    def _freeze(self) -> None:
        """Freeze all seats."""
        for at in self._all:
            if self._words[at] and not self._halves[2 * (at + _SEMAPHORE)] & FROZEN:
                self._known_at(at).freeze()

    def _thaw(self) -> None:
        """Unfreeze this process's seat, unless there is something for which it has to enter the monitor."""
        words = self._words
        if self._seat != _COMMON and not (words[RESERVED] or words[REPORT]):
            self._known_at(self._seat).thaw()

    def _release_for_another(self) -> bool:
        words = self._words
        if self._halves[2 * _PERMIT]:
            return False
        # First the permit: who dies in between leaves a process that finds it free though it has it.
        raised = list(self._raised())
        self._unheld.release()
        for at in raised:
            if words[at] in (0, self._identity):
                continue
            if at == _COMMON or words[at] == NOBODY:
                self._empty(at)
            else:
                words[at + _IS_RELEASED] = 1
                if not self._halves[2 * (at + _SEMAPHORE)] & FROZEN:
                    self._known_at(at).freeze()
        return True

    def _reset(self) -> None:
        """Forget the permit: another process has released it."""
        self.set_depth(0)
        self._permit = self._opened()
        self._bind(self._user, self._permit)
        if self._words[self._seat] == self._identity and self._is_up(self._seat):
            self._user.acquire(False)
        self._words[self._seat + _IS_RELEASED] = 0

    # -- deaths

    def _recover_dead(self) -> bool:
        words = self._words
        up = {words[at] for at in self._raised()} - {0, NOBODY, self._identity}
        dead = {identity for identity in up if shared_semaphore.is_dead(identity)}
        return bool(dead) and self._inside(functools.partial(self._recover, dead))

    def _recover(self, dead: set[int]) -> bool:
        """Free the permit if one of these processes, which are dead, has it."""
        words = self._words
        self._freeze()
        suspects = [at for at in self._all if words[at] in dead and self._is_up(at)]
        others = [at for at in self._all if at not in suspects]
        for _ in self._all:
            if self._halves[2 * _PERMIT] or any(map(self._is_up, others)):
                return False
        for at in suspects:
            self._report_identity(words[at])
        self._permit_at.post()
        for at in suspects:
            self._empty(at)
        return True

    def _report_identity(self, identity: int) -> None:
        if self._words[OPTIONS] & REPORT_DEATHS:
            self._report_death(shared_semaphore.description_of(identity, self._host))

    def _report_death(self, text: str) -> None:
        """Report a death to the next acquirer, whose seat is frozen so that it enters the monitor."""
        super()._report_death(text)
        self._freeze()

    def _raised(self) -> Iterator[int]:
        """The seats that are up."""
        return itertools.compress(self._all, self._ups.tolist())

    def _is_up(self, at: int) -> bool:
        return self._words[at] != 0 and self._halves[2 * (at + _SEMAPHORE)] & 1 == 1

    def _is_dead(self, at: int) -> bool:
        return self._words[at] != NOBODY and shared_semaphore.is_dead(self._words[at])

    def _empty(self, at: int) -> None:
        """Free a seat."""
        self._words[at] = 0
        if at == _COMMON:
            self._known_at(at).make(FROZEN)

    # -- the ends of this process, and of its connection to the owner

    def on_exit(self, code: int) -> None:
        """This process exits: what it holds stays taken, or is recovered after another code than 0."""
        if self.held():
            # a thread that goes on comes by the monitor, and finds another seat
            refuse = self._known_at(_COMMON).opened().release
            self._inside(functools.partial(self._end, refuse, stays_taken=not code))

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: it holds nothing any more, and all uses raise an error."""
        if self._lost is not None:
            return
        self._lost = error
        self._inside(functools.partial(self._end, self.check))
        self._refuse(error)
        self._changes.wake()

    def _close(self, refuse: Callable[[], object]) -> None:
        """Close the quick way with an error."""
        self._user = closed = _closed(refuse)
        self._bind(closed, closed)

    def _end(self, refuse: Callable[[], object], *, stays_taken: bool = False) -> None:
        """Free what this process has, or leave it taken by nobody, and close the quick way with an error."""
        words, seat, held = self._words, self._seat, self.held()
        self._close(refuse)
        self._permit = self._user if self._lost else self._opened()
        self.set_depth(0)
        self._seat = _COMMON
        if words[seat] != self._identity:
            return
        if stays_taken:
            words[seat] = NOBODY
            return
        if held:
            self._report_identity(self._identity)
            # of any thread
            self._permit_at.post()
        self._empty(seat)

    def _opened(self) -> Any:
        """The permit, as it is taken and raised by this process."""
        return self._permit_at.opened(kind=_OWN_THREAD if self.is_recursive else _ANY_THREAD)

    def _known_at(self, seat: int) -> Semaphore:
        found = self._known.get(seat)
        if found is None:
            found = self._known[seat] = self._semaphore(seat + _SEMAPHORE)
        return found


def _make_uses(lock: SharedLock, *, recursive: bool) -> None:
    """Make the functions by which a lock is used, the quick way."""
    takes = gives = leaves = retakes = is_mine = cast("Any", None)
    words, values = lock._words, lock._halves  # noqa: SLF001 - its own
    depth = up = flag = busy = 0

    def bind(seat: Any, permit: Any) -> None:
        nonlocal takes, gives, leaves, retakes, is_mine, up, flag
        up, flag = 2 * (lock._seat + _SEMAPHORE), lock._seat + _IS_RELEASED  # noqa: SLF001 - its own
        takes = calls(permit.acquire, after=seat.release)
        retakes = calls(permit.acquire, after=functools.partial(operator.setitem, words, flag, 0))
        gives = calls(seat.acquire, after=permit.release)
        leaves = calls(seat.acquire)
        is_mine = permit._is_mine  # noqa: SLF001 - multiprocessing's locks use it

    # These are written out: a call more costs a fifth, and a test of a variable that functions share, as each further
    # one of those that a function has, some hundredths. A seat that cannot be raised is in use, or frozen.

    def acquire(block: bool = True, timeout: float | None = None) -> bool:
        nonlocal depth
        try:
            for is_taken in takes:
                if is_taken:
                    depth = 1
                    return True
                for _ in leaves:
                    break
                break
        except ValueError:
            pass
        return persist(block, timeout)

    def acquire_again(block: bool = True, timeout: float | None = None) -> bool:
        nonlocal depth
        if depth and is_mine():
            depth += 1
            return True
        try:
            for is_taken in takes:
                if is_taken:
                    depth = 1
                    return True
                for _ in leaves:
                    break
                break
        except ValueError:
            pass
        return persist(block, timeout)

    def persist(block: bool, timeout: float | None) -> bool:
        # after the first try
        nonlocal depth
        if depth and retake(_MOST_LOOKS_AGAIN if block and timeout is None else 1):
            return True
        looks: int | None = None
        try:
            while block and (looks := look(looks)):
                for is_taken in takes:
                    if is_taken:
                        depth = 1
                        return True
                    for _ in leaves:
                        break
                    break
        except ValueError:
            pass
        return lock.wait(block, timeout, looks)

    def release(_kind: object = None, _error: object = None, _trace: object = None, /) -> None:
        nonlocal depth
        if depth == 1:
            try:
                for _ in gives:
                    depth = 0
                    break
            except ValueError:
                depth = 0
                for _ in leaves:
                    break
                raise lock.released_before() from None
        elif depth and lock.is_mine():
            depth -= 1
        else:
            lock.release_for_another()

    def look(looks: int | None) -> int:
        # how many are left; 0 where it is not free
        looks = MOST_LOOKS if looks is None else looks
        while looks:
            looks -= 1
            if values[2 * _PERMIT] > 0:
                break
        return looks

    def retake(looks: int) -> bool:
        # what another process has released, with the seat of this one up: two that hand a lock to each other do little else
        nonlocal depth, busy
        if looks > 1 and busy:
            busy, looks = busy - 1, 1
        for look in range(looks if is_mine() else 0):
            if look:
                before = time.monotonic_ns()
                give_way()
                if time.monotonic_ns() - before > _LONG:
                    # a third one had the CPU: the kernel runs a thread that was woken sooner than one that gave way
                    busy, looks = _BUSY, 0
            if not (depth and values[up] & 1):
                break
            if words[flag] and values[2 * _PERMIT] > 0:
                if words[RESERVED] or words[REPORT]:
                    break
                for is_taken in retakes:
                    if is_taken:
                        return True
                    depth = 0
                    for _ in leaves:
                        break
                    break
                break
            if not looks:
                break
        return False

    def lose() -> bool:
        # without a call in between, behind which another thread may run
        nonlocal depth
        if words[flag] or (depth and values[2 * _PERMIT]):
            depth = 0
            return True
        return False

    def set_depth(number: int) -> None:
        nonlocal depth
        depth = number

    lock.acquire, lock.release = acquire_again if recursive else acquire, release
    lock.depth, lock.set_depth = lambda: depth, set_depth
    lock._bind, lock._lose = bind, lose  # noqa: SLF001 - its own


class UntrackedSemaphore(QuickPermits):
    """A semaphore in shared memory whose permits are lost with their holder, as one process uses it.

    A release is taken for one of a permit of this process where it has any. One beyond the maximum is an error,
    unless two processes make it at the same instant, as in the standard library.

    Args:
        memory: shared memory, mapped.
        begin: where it begins there, a multiple of 8; :attr:`SIZE` bytes.
        kind: a semaphore's.
        host: name of this host, in messages to users.
        identity: of this process.
        state: the one to make of zeros; None where another process has made it.
    """

    #: bytes of it
    SIZE = size_of(1)

    def __init__(
        self,
        memory: mmap.mmap,
        begin: int,
        kind: Kind = Kind.SEMAPHORE,
        *,
        host: str,
        identity: int,
        state: Beginning | None = None,
    ) -> None:
        super().__init__(memory, begin, host=host, identity=identity, is_new=state is not None)
        self._map(self.SIZE)
        self._gate_at = self._semaphore(_GATE)
        if state is not None:
            self._words[OPTIONS] = UNTRACKED | options_of(state)
            self._words[_MAXIMUM] = state.maximum
            self._permit_at.make(state.value)
            self._gate_at.make(0)
        # nobody's death matters
        self._all = ()
        # permits that this process holds
        self._held = 0
        # takes a permit; True where there was one
        self._takes: Iterator[bool]
        maximum = self._words[_MAXIMUM]
        self._permit = self._permit_at.opened(maximum)
        self._make_uses()
        self._bind(self._gate_at.opened(), self._permit, self._permit_at.opened(maximum))
        self.is_mine = self._is_mine
        #: what this process has of it
        self.local_hold = _Hold(shape_of(kind, 0).name, recursive=False, used=self)

    def for_others(self) -> UntrackedSemaphore:
        """The same, as this process uses it for processes that do not map the memory."""
        return UntrackedSemaphore(*self._where, host=self._host, identity=self._identity)

    def held(self) -> int:
        """Permits that this process holds."""
        return self._held

    def _take(self, *, has_waited: bool = False, wait: int = 0, reserve: bool = False) -> Outcome:
        words, halves, is_taken = self._words, self._halves, False
        try:
            code = self._try_lock(self._mutex)
            if code:
                self._enter(code)
            now = time.monotonic_ns()
            self._count_waiting(now, has_waited=has_waited)
            free, is_reserved = halves[2 * _PERMIT], now <= words[RESERVED]
            if not is_reserved:
                halves[2 * _GATE] = 0
            if has_waited or not is_reserved:
                # as the quick way
                for is_taken in self._takes:
                    self._held += is_taken
                    break
            if is_taken:
                words[RESERVED] = halves[2 * _GATE] = 0
            elif wait:
                self._begin_to_wait(now + wait)
                if reserve:
                    words[RESERVED] = now + RESERVATION
                    halves[2 * _GATE] = 1
            self._unlock(self._mutex)
        except BaseException:
            self._back_out()
            if is_taken:
                self.release()
            raise
        if is_taken:
            return ACQUIRED
        return (Status.REFUSED, "", free) if wait else REFUSED

    def _recover_dead(self) -> bool:
        return False

    def on_exit(self, code: int) -> None:
        """This process exits: what it holds stays taken."""

    def cut_off(self, error: Callable[[], BaseException]) -> None:
        """This process has lost the owner: it holds nothing any more, and all uses raise an error."""
        if self._lost is not None:
            return
        self._refuse(error)
        self._close(self.check)
        self._held = 0
        self._changes.wake()

    def _close(self, refuse: Callable[[], object]) -> None:
        """Close the quick way with an error."""
        closed = _closed(refuse)
        self._bind(closed, closed, closed)

    def _make_uses(self) -> None:
        """Make the functions by which it is used, the quick way."""
        is_open = give = give_unheld = takes = cast("Any", None)

        def bind(gate: Any, permit: Any, unheld: Any) -> None:
            nonlocal is_open, give, give_unheld, takes
            is_open = gate._is_zero  # noqa: SLF001 - multiprocessing's semaphores have it, too
            give, give_unheld = permit.release, unheld.release
            takes = self._takes = calls(permit.acquire)

        def acquire(block: bool = True, timeout: float | None = None) -> bool:
            if is_open():
                for is_taken in takes:
                    if is_taken:
                        self._held += 1
                        return True
                    break
            return self.wait(block, timeout)

        def release(_kind: object = None, _error: object = None, _trace: object = None, /) -> None:
            if self._held > 0:
                self._held -= 1
                give()
            else:
                give_unheld()

        self.acquire, self.release, self._bind = acquire, release, bind


def keeping(function: Callable[..., T], kept: object) -> Callable[..., T]:
    """The same function, as quick, which keeps an object from being collected."""
    assert isinstance(function, FunctionType)
    made = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    vars(made)["kept"] = kept
    return made


def _closed(refuse: Callable[[], object]) -> SimpleNamespace:
    """Stand-in for the SemLocks of a lock that must not be used: raises an error."""
    return SimpleNamespace(
        acquire=lambda *_: False,
        release=refuse,
        _is_mine=lambda: False,
        _count=lambda: 0,
        _is_zero=refuse,
    )


def make(
    allocate: Callable[[int], tuple[mmap.mmap, int]],
    kind: Kind,
    state: Beginning,
    *,
    host: str,
) -> SharedPermits:
    """Make a lock or semaphore in shared memory.

    Args:
        allocate: allocates so many bytes, all zeros: the memory, and where they begin.
        kind: its kind.
        state: to begin with.
        host: name of this host.

    Raises:
        OSError: there is no room for it.
    """
    identity = shared_semaphore.own_identity()
    if kind is not Kind.SEMAPHORE and is_possible():
        where = allocate(size_of(seats()))
        return SharedLock(*where, kind, host=host, identity=identity, state=state, count=seats())
    if not state.recover and is_possible():
        where = allocate(UntrackedSemaphore.SIZE)
        return UntrackedSemaphore(*where, kind, host=host, identity=identity, state=state)
    entries = entries_for(state.maximum, track_holders=state.track_holders)
    where = allocate(shared_semaphore.size_of(entries))
    return SharedSemaphore(*where, kind, host=host, identity=identity, state=state, entries=entries)


def find(memory: mmap.mmap, begin: int, kind: Kind, *, host: str) -> SharedPermits:
    """Attach to a lock or semaphore that another process has made."""
    identity = shared_semaphore.own_identity()
    options = shared_semaphore.head_of(memory, begin)[OPTIONS]
    found: Callable[..., SharedPermits] = SharedSemaphore
    if options & (SEATED | UNTRACKED):
        found = SharedLock if options & SEATED else UntrackedSemaphore
    return found(memory, begin, kind, host=host, identity=identity)
