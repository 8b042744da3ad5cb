"""``Lock RLock Semaphore BoundedSemaphore Condition Event Barrier`` between any processes of a run.

Each lives in the process that made it, its owner. Any process that gets it, as an argument, in a
closure or through a queue, uses it. The classes here are handles; what they call has the same methods
at the owner, in other processes, and in memory that both share: see ``fiber._objects.sync``.
"""

from __future__ import annotations

import errno
import operator
import os
import sys
from collections.abc import Callable
from threading import BrokenBarrierError
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from fiber._base.threads import wait_until
from fiber._objects import store
from fiber._objects.address import Kind
from fiber._objects.handle import ExtensibleHandle
from fiber._objects.sync import monitor
from fiber._objects.sync.barrier import BarrierCalls, OwnedBarrier, SharedBarrier
from fiber._objects.sync.condition import ConditionCalls, OwnedCondition, SharedCondition
from fiber._objects.sync.event import EventCalls, OwnedEvent, SharedEvent
from fiber._objects.sync.hold import Permits
from fiber._objects.sync.protocol import Status
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState
from fiber._objects.sync.shared_lock import QuickPermits, SharedLock, keeping
from fiber._objects.sync.waitable import OwnedWaitable, Place, RemoteWaitable
from fiber._wire import fork
from fiber.exceptions import FiberError, HolderDiedError, HolderDiedWarning

__all__ = ["BoundedSemaphore", "Condition", "Event", "Lock", "RLock", "Semaphore"]


ObjectT = TypeVar("ObjectT")


class SyncHandle(ExtensibleHandle, Generic[ObjectT]):
    """Handle of a lock, semaphore, condition, event or barrier; it lasts until it is collected."""

    _object: OwnedWaitable | RemoteWaitable
    # where processes of the same host find the state in memory that they share
    _where: Place | None = None
    # what is used: the object, or its state in that memory
    _used: ObjectT
    _is_shared: bool

    def _own(self, make: Callable[..., OwnedWaitable], *arguments: Any) -> None:
        """Make an object and become its first handle."""
        current = store.current()
        is_shared = current.is_one_host and monitor.is_possible()
        owned = make(current, *arguments, is_shared=is_shared)
        self._where = owned.where
        owned.hold(0)
        self._attach(owned, 0)

    def _open(self) -> None:
        shared = self._object.map(self._where)
        self._is_shared = shared is not None
        self._used = cast("ObjectT", shared if self._is_shared else self._object)

    def _state(self) -> tuple[Any, ...]:
        return (self._where,)

    def _restore(self, *state: Any) -> None:
        (self._where,) = state

    def _checked_object(self) -> ObjectT:
        """Return the object in use, after a check that this process may use it.

        Raises:
            ForkedError: in a process that the user forked from one that used fiber.
        """
        if fork.is_forked_child():
            fork.check()
        return self._used


#: most permits of a semaphore; that of ``multiprocessing``
SEM_VALUE_MAX = 2**31 - 1


def _never() -> bool:
    return False


class _Reference:
    """Owner of a lock or semaphore for its handle, and for functions of the handle that are about to be called.

    A ``with`` statement lets go of the handle before it calls them.
    """

    def __init__(self) -> None:
        self.used: Permits | None = None


def _enter(reference: _Reference) -> bool:
    assert reference.used is not None
    if fork.is_forked_child():
        fork.check()
    return reference.used.acquire(True, None)


def _exit(reference: _Reference, *_: object) -> None:
    assert reference.used is not None
    if fork.is_forked_child():
        fork.check()
    reference.used.release()


class _Entered:
    """A handle that a ``with`` statement uses without a method of a class in between."""

    __slots__ = ("__enter__", "__exit__")

    if TYPE_CHECKING:

        def __enter__(self) -> bool: ...
        def __exit__(self, *exception: object) -> None: ...

    def _use(self, enter: Callable[[], bool], leave: Callable[..., None]) -> None:
        """Have a ``with`` statement call these."""
        self.__enter__, self.__exit__ = enter, leave  # type: ignore[method-assign]


class SemLock(_Entered, SyncHandle[Permits]):
    """Handle of a lock or semaphore."""

    _reference: _Reference

    def _make(self, kind: Kind, state: SemaphoreState) -> None:
        self._own(OwnedSemaphore, kind, state)

    def _keeper(self) -> object:
        self._reference = _Reference()
        return self._reference

    def _open(self) -> None:
        super()._open()
        kind, used, reference = type(self), self._used, self._reference
        reference.used = used
        if (kind.acquire, kind.release) != (SemLock.acquire, SemLock.release):
            # the user's
            self._use(self._enter, self._exit)
            return
        self._use(MethodType(_enter, reference), MethodType(_exit, reference))
        if self._is_shared:
            # without the methods of this class in between, as in the standard library
            self.acquire = used.acquire  # type: ignore[assignment,method-assign] # it has defaults, too
            self.release = used.release  # type: ignore[method-assign]
            if isinstance(used, QuickPermits):
                self._use(used.acquire, keeping(used.release, reference))

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire it, waiting until it is free.

        Args:
            block: False not to wait.
            timeout: seconds to wait; negative counts as 0, None waits for ever.

        Returns:
            False where it was not acquired (in time).

        Raises:
            HolderDiedError: a process died holding it, and ``on_holder_death`` is "raise".
            LeaseLostError: this process held it when the connection to its owner was lost.
            PeerLostError: the process that it lives in is gone.
        """
        if fork.is_forked_child():
            fork.check()
        return self._used.acquire(block, timeout)

    def release(self) -> None:
        """Release it.

        Raises:
            AssertionError: another thread holds the recursive lock.
            ValueError: it was released too many times.
            LeaseLostError: this process held it when the connection to its owner was lost.
            PeerLostError: the process that it lives in is gone.
        """
        if fork.is_forked_child():
            fork.check()
        self._used.release()

    if sys.version_info >= (3, 14):

        def locked(self) -> bool:
            """True where it could not be acquired now."""
            return not self._value()

    def _enter(self) -> bool:
        return self.acquire()

    def _exit(self, *_: object) -> None:
        self.release()

    def _value(self) -> int:
        return self._checked_object().value()

    def _is_mine_to_use(self) -> Callable[[], bool]:
        """Quick test whether this thread holds the recursive lock."""
        used = self._used
        if isinstance(used, SharedLock) and used.is_recursive:
            return used.is_mine
        return _never

    # -- for conditions

    def _is_owned(self) -> bool:
        return self._used.local_hold.is_held_by_thread

    def _release_save(self) -> int:
        return self._used.release_save()

    def _acquire_restore(self, depth: int) -> None:
        death = None
        # an interrupt may have come before it was released
        while not self._is_owned():
            try:
                self._used.acquire(True, None)
            except (HolderDiedError, HolderDiedWarning) as error:
                # a wait ends with the lock acquired, whatever happens
                death = error
        self._used.local_hold.restore_depth(depth)
        if death is not None:
            raise death

    # -- for repr()

    def _holder_name(self) -> tuple[str, Any]:
        """The holder as the stdlib names it, and how often it acquired it."""
        from fiber.process import current_process

        local = self._used.local_hold
        if local.is_held_by_thread:
            import threading

            thread = threading.current_thread().name
            name = current_process().name
            return (name if thread == "MainThread" else f"{name}|{thread}"), local.count
        if self._value():
            return "None", 0
        return ("SomeOtherThread" if local.held > 0 else "SomeOtherProcess"), "nonzero"


T = TypeVar("T")


class _Mutex(SemLock):
    """Held by one process at a time."""

    def _make_mutex(self, kind: Kind, on_holder_death: str) -> None:
        if on_holder_death not in ("warn", "raise"):
            msg = f"on_holder_death is {on_holder_death!r}, expected 'warn' or 'raise'"
            raise ValueError(msg)
        self._make(kind, SemaphoreState(1, 1, refuse_after_death=on_holder_death == "raise"))


class Lock(_Mutex):
    """A lock that any thread of any process may release; as ``multiprocessing.Lock``.

    It is fair: it is granted in the order of the calls of ``acquire``. When a process dies holding
    it, the next acquirer gets it, or an error.

    Args:
        ctx: accepted for compatibility.
        on_holder_death: what the next ``acquire`` does: "warn", it acquires the lock with a
            ``HolderDiedWarning``, or "raise", it raises ``HolderDiedError``.
    """

    def __init__(self, *, ctx: Any = None, on_holder_death: str = "warn") -> None:
        self._make_mutex(Kind.LOCK, on_holder_death)

    def __repr__(self) -> str:
        try:
            name, _ = self._holder_name()
        except FiberError:
            name = "unknown"
        return f"<{type(self).__name__}(owner={name})>"


class RLock(_Mutex):
    """A lock that its thread may acquire again; as ``multiprocessing.RLock``.

    It is fair, and passed on when a process dies holding it, as :class:`Lock` is.

    Args:
        ctx: accepted for compatibility.
        on_holder_death: as for :class:`Lock`.
    """

    def __init__(self, *, ctx: Any = None, on_holder_death: str = "warn") -> None:
        self._make_mutex(Kind.RLOCK, on_holder_death)

    def __repr__(self) -> str:
        try:
            name, count = self._holder_name()
        except FiberError:
            name = count = "unknown"
        return f"<{type(self).__name__}({name}, {count})>"


class Semaphore(SemLock):
    """Permits that any process acquires and releases; as ``multiprocessing.Semaphore``.

    Args:
        value: permits to begin with.
        ctx: accepted for compatibility.
        recover: release the permits of a process that dies. A permit that a process without one
            releases is taken off the process that has had one for longest.
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
        # holders matter only where there is a maximum or something to recover
        track = recover or maximum < SEM_VALUE_MAX
        state = SemaphoreState(
            value, maximum, recover=recover, track_holders=track, report_deaths=False
        )
        self._make(Kind.SEMAPHORE, state)

    def get_value(self) -> int:
        """Number of free permits."""
        return self._value()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self._value_text()})>"

    def _value_text(self) -> str:
        try:
            return str(self._value())
        except FiberError:
            return "unknown"


class BoundedSemaphore(Semaphore):
    """A semaphore that refuses releases beyond its first value."""

    def __init__(self, value: int = 1, *, ctx: Any = None, recover: bool = False) -> None:
        self._maximum = value
        self._make_semaphore(value, value, recover)

    def _state(self) -> tuple[Any, ...]:
        return (self._maximum, *super()._state())

    def _restore(self, *state: Any) -> None:
        self._maximum, *rest = state
        super()._restore(*rest)

    def __repr__(self) -> str:
        value = self._value_text()
        return f"<{type(self).__name__}(value={value}, maxvalue={self._maximum})>"


class Condition(_Entered, SyncHandle[ConditionCalls | SharedCondition]):
    """A condition variable with its lock; as ``multiprocessing.Condition``.

    Args:
        lock: a lock or semaphore of Fiber's, wherever it lives; if omitted, a new RLock.
        ctx: accepted for compatibility.
    """

    def __init__(self, lock: SemLock | None = None, *, ctx: Any = None) -> None:
        self._lock = _checked(RLock() if lock is None else lock)
        self._own(OwnedCondition)

    def _open(self) -> None:
        super()._open()
        #: acquires the lock
        self.acquire = self._lock.acquire
        #: releases the lock
        self.release = self._lock.release
        self._use(self._lock.__enter__, self._lock.__exit__)
        # True where changes of the lock may overtake messages to the condition's owner
        lock = self._lock
        same = "" if lock._is_shared else lock._object.owner_ident  # noqa: SLF001 - its own
        self._owners_differ = self._object.owner_ident not in ("", same)
        # what is shared knows itself whether it may be used
        self._is_mine = lock._is_mine_to_use() if self._is_shared else _never  # noqa: SLF001 - its own

    def _state(self) -> tuple[Any, ...]:
        return (self._lock, *super()._state())

    def _restore(self, *state: Any) -> None:
        self._lock, *rest = state
        super()._restore(*rest)

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait until notified, acquire the lock again.

        Returns:
            False where ``timeout`` seconds have passed without a notification.

        Raises:
            AssertionError: this thread does not hold the lock.
            LeaseLostError: it did when the connection to the lock's owner was lost.
            PeerLostError: the process that it or its lock lives in is gone.
        """
        lock = self._lock
        self._check("must acquire() condition before using wait()")
        depth = lock._used.local_hold.count  # noqa: SLF001 - its own
        released = False

        def release() -> None:
            nonlocal released
            released = True
            lock._release_save()  # noqa: SLF001 - its own

        try:
            return self._used.wait(release, timeout, certain=self._owners_differ)
        finally:
            if released:
                lock._acquire_restore(depth)  # noqa: SLF001 - its own

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until ``predicate()`` is true; it is called now and after each notification.

        Returns:
            Its last value, which is false where ``timeout`` seconds have passed.
        """
        return wait_until(predicate, self.wait, timeout)

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` waiting threads.

        Raises:
            AssertionError: this thread does not hold the lock.
            LeaseLostError: it did when the connection to the lock's owner was lost.
            PeerLostError: the process that it or its lock lives in is gone.
        """
        if not self._is_mine():
            self._check("lock is not owned")
        self._used.notify(n, certain=self._owners_differ)

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        self.notify(sys.maxsize)

    def __repr__(self) -> str:
        try:
            waiting = str(self._used.waiting())
        except FiberError:
            waiting = "unknown"
        return f"<{type(self).__name__}({self._lock}, {waiting})>"

    def _check(self, message: str) -> None:
        if fork.is_forked_child():
            fork.check()
        if self._is_mine():
            return
        self._lock._used.check()  # noqa: SLF001 - its own
        if not self._lock._is_owned():  # noqa: SLF001 - its own
            raise AssertionError(message)


def _checked(lock: Any) -> SemLock:
    if not isinstance(lock, SemLock):
        msg = f"a condition needs a Lock or RLock of fiber, not {lock!r}"
        raise TypeError(msg)
    return lock


class Event(SyncHandle[EventCalls | SharedEvent]):
    """A flag that can be waited for; as ``multiprocessing.Event``.

    :meth:`set` and :meth:`clear` are in effect for all processes when they return. All threads that
    wait when it is set go on, even if it is cleared at once.

    Args:
        ctx: accepted for compatibility.
    """

    def __init__(self, *, ctx: Any = None) -> None:
        self._own(OwnedEvent)

    def is_set(self) -> bool:
        """True where it is set.

        Raises:
            PeerLostError: the process that it lives in is gone; as for all methods.
        """
        return self._checked_object().is_set()

    def set(self) -> None:
        """Set it; all waiting threads go on."""
        self._checked_object().set()

    def clear(self) -> None:
        """Clear it: waits block from now on."""
        self._checked_object().clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; False where ``timeout`` seconds have passed without."""
        return self._checked_object().wait(timeout)

    def __repr__(self) -> str:
        try:
            status = "set" if self.is_set() else "unset"
        except FiberError:
            status = "unknown"
        return f"<{type(self).__qualname__} at {id(self):#x} {status}>"


class Barrier(SyncHandle[BarrierCalls | SharedBarrier]):
    """A barrier that opens when all parties wait at it; as ``multiprocessing.Barrier``.

    It breaks when a process that has a handle of it dies, whether that waits or not.

    Args:
        parties: number of parties.
        action: called by the last party to arrive, before any passes.
        timeout: default timeout of :meth:`wait` in seconds, after which the barrier breaks.
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
        self._own(OwnedBarrier, parties)

    def _state(self) -> tuple[Any, ...]:
        return (self._parties, self._action, self._timeout, *super()._state())

    def _restore(self, *state: Any) -> None:
        self._parties, self._action, self._timeout, *rest = state
        super()._restore(*rest)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties wait.

        Returns:
            The index of this party, from 0 in the order of arrival.

        Raises:
            BrokenBarrierError: it broke or was reset meanwhile, or is broken.
            PeerLostError: the process that it lives in is gone; as for all methods.
            Exception: that of the action, which breaks it.
        """
        barrier = self._checked_object()
        timeout = self._timeout if timeout is None else timeout
        status, index = barrier.arrive(timeout, has_action=self._action is not None)
        if status is Status.RUN_ACTION:
            status, index = self._run_action(index), self._parties - 1
        if status is not Status.OK:
            raise BrokenBarrierError
        return index

    def _run_action(self, number: int) -> Status:
        assert self._action is not None
        try:
            self._action()
        except BaseException:
            self._used.action_failed(number)
            raise
        return self._used.action_succeeded(number)

    def reset(self) -> None:
        """Make it usable again; waiting parties get a BrokenBarrierError."""
        self._checked_object().reset()

    def abort(self) -> None:
        """Break it, until it is reset."""
        self._checked_object().abort()

    @property
    def parties(self) -> int:
        """Number of parties."""
        return self._parties

    @property
    def n_waiting(self) -> int:
        """Number of parties that wait now."""
        return self._checked_object().state()[1]

    @property
    def broken(self) -> bool:
        """True where it is broken."""
        return self._checked_object().state()[0]

    def __repr__(self) -> str:
        kind = type(self)
        name = f"{kind.__module__}.{kind.__qualname__} at {id(self):#x}"
        try:
            broken, waiting = self._checked_object().state()
        except FiberError:
            return f"<{name}: unknown>"
        return f"<{name}: broken>" if broken else f"<{name}: waiters={waiting}/{self._parties}>"
