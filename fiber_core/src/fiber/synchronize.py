"""``Lock RLock Semaphore BoundedSemaphore Condition Event Barrier`` between any processes of a run.

Each lives in the process that made it. Any process that gets it, as an argument, in a closure or
through a queue, uses it.

What locks and semaphores have in common for the user.

What a handle does with something that is waited for, the same at the owner and elsewhere.

A handle of something that is waited for.
"""

from __future__ import annotations

import errno
import operator
import os
import sys
import time
from collections.abc import Callable
from threading import BrokenBarrierError
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from fiber._objects import store
from fiber._objects.address import Kind
from fiber._objects.handle import Handle, Holdable
from fiber._objects.owned import Shared
from fiber._objects.sync.barrier import SharedBarrier
from fiber._objects.sync.condition import SharedCondition
from fiber._objects.sync.event import SharedEvent
from fiber._objects.sync.permits import Holding, Permits, SharedPermits
from fiber._objects.sync.wait_queue import Verdict
from fiber._wire import fork
from fiber.exceptions import FiberError, HolderDiedError, HolderDiedWarning

__all__ = ["BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"]


class Locking(Holdable, Protocol):
    """A lock or semaphore."""

    @property
    def home(self) -> str:
        """Identity of the owner where that is another process."""

    @property
    def mine(self) -> Holding:
        """What this process has of it."""

    def acquire(self, block: bool, timeout: float | None) -> bool:
        """Take a permit; False where there is none, or none has come in time.

        Raises:
            HolderDiedError: the process that had it died, and so it was not taken.
            LeaseLostError: this process had it when the connection to the owner was lost.
            PeerLostError: the owner is gone.
        """

    def release(self) -> None:
        """Give a permit back.

        Raises:
            AssertionError: another thread took it, and only that may release it.
            ValueError: there are as many as there may be.
            LeaseLostError: this process had it when the connection to the owner was lost.
            PeerLostError: the owner is gone.
        """

    def release_fully(self) -> int:
        """Give it back however often this thread has taken it; how often that was."""

    def check(self) -> None:
        """Raise what an operation would raise where the owner is gone."""

    def value(self) -> int:
        """How many permits can be taken."""


class Signalling(Holdable, Protocol):
    """An event."""

    def wait(self, timeout: float | None) -> bool:
        """Wait until it is set; False where it was not in time."""

    def set(self) -> None:
        """Set it; whoever waits goes on."""

    def clear(self) -> None:
        """Have others wait from now on."""

    def is_set(self) -> bool:
        """True where it is set."""


class Waking(Holdable, Protocol):
    """Those who wait for a condition."""

    @property
    def home(self) -> str:
        """Identity of the owner where that is another process."""

    def sleep(self, release: Callable[[], object], timeout: float | None, *, certain: bool) -> bool:
        """Wait, call ``release`` once that is known, until notified; False if not in time.

        ``certain`` where the owner must have heard before ``release``; it does not see to that.
        """

    def notify(self, count: int, *, certain: bool) -> None:
        """Wake some; ``certain`` where that must be done on return."""

    def sleepers(self) -> int:
        """How many wait."""


class Gathering(Holdable, Protocol):
    """A barrier."""

    def arrive(self, timeout: float | None, *, acts: bool) -> tuple[Verdict, int]:
        """One more is there; how it ended, and its place or, to run the action, that's number."""

    def ran(self, number: int) -> Verdict:
        """The action went well; how the barrier ended."""

    def failed(self, number: int) -> None:
        """The action did not go well."""

    def reset(self) -> None:
        """Begin anew; those who wait are told that it broke."""

    def abort(self) -> None:
        """Break it."""

    def state(self) -> tuple[bool, int]:
        """True where it is broken; how many wait."""


Side = TypeVar("Side", bound=Holdable)


class Waitable(Handle, Generic[Side]):
    """Held until it is collected."""

    _object: Side

    def _own(self, shared: Shared) -> None:
        """Become the first handle of a new object."""
        shared.hold(0)
        self._take_hold(shared, 0)

    def _there(self) -> Side:
        """The object, to be used.

        Raises:
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_stranger():
            fork.check()
        return self._object


#: most permits of a semaphore; that of ``multiprocessing``
SEM_VALUE_MAX = 2**31 - 1


class SemLock(Waitable[Locking]):
    """A handle of permits, held until it is collected."""

    def _make(self, kind: Kind, permits: Permits) -> None:
        self._own(SharedPermits(store.current(), kind, permits))

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it; wait for it.

        Args:
            block: False to take it only where that is possible now.
            timeout: seconds to wait; negative ones are none, None is any number.

        Returns:
            False where it was not to be had (in time).

        Raises:
            HolderDiedError: a process died with it, and ``on_holder_death`` is "raise".
            LeaseLostError: this process had it when the connection to its owner was lost.
            PeerLostError: the process that it lives in is gone.
        """
        if fork.is_stranger():
            fork.check()
        return self._object.acquire(block, timeout)

    def release(self) -> None:
        """Give it back.

        Raises:
            AssertionError: a recursive lock that another thread has.
            ValueError: it was released too many times.
            LeaseLostError: this process had it when the connection to its owner was lost.
            PeerLostError: the process that it lives in is gone.
        """
        if fork.is_stranger():
            fork.check()
        self._object.release()

    if sys.version_info >= (3, 14):

        def locked(self) -> bool:
            """True where it could not be taken now."""
            return not self._value()

    def __enter__(self) -> bool:
        if fork.is_stranger():
            fork.check()
        return self._object.acquire(True, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _value(self) -> int:
        return self._there().value()

    # -- for conditions

    def _is_mine(self) -> bool:
        return self._object.mine.is_mine

    def _release_save(self) -> int:
        return self._object.release_fully()

    def _acquire_restore(self, depth: int) -> None:
        news = None
        # an interrupt may have come before it was released
        while not self._is_mine():
            try:
                self._object.acquire(True, None)
            except (HolderDiedError, HolderDiedWarning) as error:
                # whoever waits has the lock again whatever happens
                news = error
        self._object.mine.entered_fully(depth)
        if news is not None:
            raise news

    # -- for people

    def _owner_name(self) -> tuple[str, Any]:
        """Who has it, and how often."""
        from fiber.process import current_process

        mine = self._object.mine
        if mine.is_mine:
            import threading

            thread = threading.current_thread().name
            name = current_process().name
            return (name if thread == "MainThread" else f"{name}|{thread}"), mine.count
        if self._value():
            return "None", 0
        return ("SomeOtherThread" if mine.held > 0 else "SomeOtherProcess"), "nonzero"


T = TypeVar("T")


class _Mutex(SemLock):
    """Held by one process at a time."""

    def _make_mutex(self, kind: Kind, on_holder_death: str) -> None:
        if on_holder_death not in ("warn", "raise"):
            msg = f"on_holder_death is {on_holder_death!r}, expected 'warn' or 'raise'"
            raise ValueError(msg)
        self._make(kind, Permits(1, 1, refuse=on_holder_death == "raise"))


class Lock(_Mutex):
    """A lock that any thread of any process may release; as ``multiprocessing.Lock``.

    It is fair: it goes to those who wait in the order in which they came. When a process that has
    it dies, it goes to the next one, which is told.

    Args:
        ctx: accepted for compatibility.
        on_holder_death: how the next one is told: "warn", it acquires the lock with a
            ``HolderDiedWarning``, or "raise", its ``acquire`` raises ``HolderDiedError``.
    """

    def __init__(self, *, ctx: Any = None, on_holder_death: str = "warn") -> None:
        self._make_mutex(Kind.LOCK, on_holder_death)

    def __repr__(self) -> str:
        try:
            name, _ = self._owner_name()
        except FiberError:
            name = "unknown"
        return f"<{type(self).__name__}(owner={name})>"


class RLock(_Mutex):
    """A lock that its thread may take again; as ``multiprocessing.RLock``.

    It is fair, and passed on when a process that has it dies, as :class:`Lock` is.

    Args:
        ctx: accepted for compatibility.
        on_holder_death: as for :class:`Lock`.
    """

    def __init__(self, *, ctx: Any = None, on_holder_death: str = "warn") -> None:
        self._make_mutex(Kind.RLOCK, on_holder_death)

    def __repr__(self) -> str:
        try:
            name, count = self._owner_name()
        except FiberError:
            name = count = "unknown"
        return f"<{type(self).__name__}({name}, {count})>"


class Semaphore(SemLock):
    """Permits that any process takes and gives back; as ``multiprocessing.Semaphore``.

    Args:
        value: permits to begin with.
        ctx: accepted for compatibility.
        recover: give back what a process had taken when it dies. A permit that another process
            gives back is taken off the process that has had one for longest.
    """

    def __init__(self, value: int = 1, *, ctx: Any = None, recover: bool = False) -> None:
        self._make_semaphore(value, SEM_VALUE_MAX, recover)

    def _make_semaphore(self, value: int, maximum: int, recover: bool) -> None:
        if operator.index(value) > SEM_VALUE_MAX:
            msg = f"a semaphore has at most {SEM_VALUE_MAX} permits, not {value}"
            raise OverflowError(msg)
        if value < 0:
            # what the stdlib raises, with a text that says why
            text = f"{os.strerror(errno.EINVAL)}: a semaphore of {value} permits"
            raise OSError(errno.EINVAL, text)
        # who has one matters only where there is a limit to keep or something to recover
        trace = recover or maximum < SEM_VALUE_MAX
        permits = Permits(value, maximum, recover=recover, trace=trace, tell=False)
        self._make(Kind.SEMAPHORE, permits)

    def get_value(self) -> int:
        """How many permits can be taken."""
        return self._value()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self._value_text()})>"

    def _value_text(self) -> str:
        try:
            return str(self._value())
        except FiberError:
            return "unknown"


class BoundedSemaphore(Semaphore):
    """A semaphore that never has more permits than in the beginning."""

    def __init__(self, value: int = 1, *, ctx: Any = None, recover: bool = False) -> None:
        self._maximum = value
        self._make_semaphore(value, value, recover)

    def _state(self) -> tuple[Any, ...]:
        return (self._maximum,)

    def _restore(self, *state: Any) -> None:
        (self._maximum,) = state

    def __repr__(self) -> str:
        value = self._value_text()
        return f"<{type(self).__name__}(value={value}, maxvalue={self._maximum})>"


class Condition(Waitable[Waking]):
    """A lock, and those who wait to be notified; as ``multiprocessing.Condition``.

    Args:
        lock: a lock or semaphore of Fiber's, wherever it lives; if omitted, a new RLock.
        ctx: accepted for compatibility.
    """

    def __init__(self, lock: SemLock | None = None, *, ctx: Any = None) -> None:
        self._lock = _checked(RLock() if lock is None else lock)
        self._own(SharedCondition(store.current()))

    def _open(self) -> None:
        #: takes the lock
        self.acquire = self._lock.acquire
        #: gives the lock back
        self.release = self._lock.release
        # True where the owner of the lock may act on it before ours has heard what we said
        self._apart = self._object.home not in ("", self._lock._object.home)  # noqa: SLF001 - its own

    def _state(self) -> tuple[Any, ...]:
        return (self._lock,)

    def _restore(self, *state: Any) -> None:
        (self._lock,) = state

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, trace)

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait until notified, take the lock again.

        Returns:
            False where ``timeout`` seconds have passed without.

        Raises:
            AssertionError: this thread does not have the lock.
            LeaseLostError: it had when the connection to the lock's owner was lost.
            PeerLostError: the process that it or its lock lives in is gone.
        """
        lock = self._lock
        self._check("must acquire() condition before using wait()")
        depth = lock._object.mine.count  # noqa: SLF001 - its own
        released = False

        def release() -> None:
            nonlocal released
            released = True
            lock._release_save()  # noqa: SLF001 - its own

        try:
            return self._object.sleep(release, timeout, certain=self._apart)
        finally:
            if released:
                lock._acquire_restore(depth)  # noqa: SLF001 - its own

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until ``predicate()`` is true, asked now and after each notification.

        Returns:
            What it returned last, which is not true where ``timeout`` seconds have passed.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not (result := predicate()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        """Wake ``n`` of those who wait, if there are so many.

        Raises:
            AssertionError: this thread does not have the lock.
            LeaseLostError: it had when the connection to the lock's owner was lost.
            PeerLostError: the process that it or its lock lives in is gone.
        """
        self._check("lock is not owned")
        self._object.notify(min(n, sys.maxsize), certain=self._apart)

    def notify_all(self) -> None:
        """Wake all that wait."""
        self.notify(sys.maxsize)

    def __repr__(self) -> str:
        try:
            waiting = str(self._object.sleepers())
        except FiberError:
            waiting = "unknown"
        return f"<{type(self).__name__}({self._lock}, {waiting})>"

    def _check(self, message: str) -> None:
        self._lock._there().check()  # noqa: SLF001 - its own
        if not self._lock._is_mine():  # noqa: SLF001 - its own
            raise AssertionError(message)


def _checked(lock: Any) -> SemLock:
    if not isinstance(lock, SemLock):
        msg = f"a condition needs a Lock or RLock of fiber, not {lock!r}"
        raise TypeError(msg)
    return lock


class Event(Waitable[Signalling]):
    """Something that is so or not, and can be waited for; as ``multiprocessing.Event``.

    What one process has set or cleared is so for all others when the call returns. Whoever waits
    when it is set goes on, though it be cleared at once.

    Args:
        ctx: accepted for compatibility.
    """

    def __init__(self, *, ctx: Any = None) -> None:
        self._own(SharedEvent(store.current()))

    def is_set(self) -> bool:
        """True where it is set.

        Raises:
            PeerLostError: the process that it lives in is gone; as for all methods.
        """
        return self._there().is_set()

    def set(self) -> None:
        """Set it; all that wait go on."""
        self._there().set()

    def clear(self) -> None:
        """Unset it: from now on others wait."""
        self._there().clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False where ``timeout`` seconds have passed without."""
        return self._there().wait(timeout)

    def __repr__(self) -> str:
        try:
            status = "set" if self.is_set() else "unset"
        except FiberError:
            status = "unknown"
        return f"<{type(self).__qualname__} at {id(self):#x} {status}>"


class Barrier(Waitable[Gathering]):
    """Parties wait until all of them are there; as ``multiprocessing.Barrier``.

    It breaks when a process that has it dies, whether that waits or not.

    Args:
        parties: how many there are.
        action: called by the last one to come, before any may go.
        timeout: seconds after which :meth:`wait` breaks it, where that is told no others.
        ctx: accepted for compatibility.
    """

    def __init__(
        self,
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
        *,
        ctx: Any = None,
    ) -> None:
        if operator.index(parties) < 1:
            msg = f"parties must be > 0, not {parties}"
            raise ValueError(msg)
        self._parties, self._action, self._timeout = parties, action, timeout
        self._own(SharedBarrier(store.current(), parties))

    def _state(self) -> tuple[Any, ...]:
        return (self._parties, self._action, self._timeout)

    def _restore(self, *state: Any) -> None:
        self._parties, self._action, self._timeout = state

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties are there.

        Returns:
            The place of this one, from 0 in the order in which they came.

        Raises:
            BrokenBarrierError: it broke or was reset meanwhile, or is broken.
            PeerLostError: the process that it lives in is gone; as for all methods.
            Exception: what the action raised, which breaks it.
        """
        there = self._there()
        timeout = self._timeout if timeout is None else timeout
        verdict, place = there.arrive(timeout, acts=self._action is not None)
        if verdict is Verdict.RUN:
            verdict, place = self._act(place), self._parties - 1
        if verdict is not Verdict.YES:
            raise BrokenBarrierError
        return place

    def _act(self, number: int) -> Verdict:
        assert self._action is not None
        try:
            self._action()
        except BaseException:
            self._object.failed(number)
            raise
        return self._object.ran(number)

    def reset(self) -> None:
        """Begin anew; those who wait get a BrokenBarrierError."""
        self._there().reset()

    def abort(self) -> None:
        """Break it, until it is reset."""
        self._there().abort()

    @property
    def parties(self) -> int:
        """How many there are."""
        return self._parties

    @property
    def n_waiting(self) -> int:
        """How many wait now."""
        return self._there().state()[1]

    @property
    def broken(self) -> bool:
        """True where it is broken."""
        return self._there().state()[0]

    def __repr__(self) -> str:
        kind = type(self)
        name = f"{kind.__module__}.{kind.__qualname__} at {id(self):#x}"
        try:
            broken, waiting = self._there().state()
        except FiberError:
            return f"<{name}: unknown>"
        return f"<{name}: broken>" if broken else f"<{name}: waiters={waiting}/{self._parties}>"
