"""``Lock RLock Semaphore BoundedSemaphore Condition Event Barrier`` between any processes of a run.

Each lives in the process that made it. Any process that gets it, as an argument, in a closure or
through a queue, uses it.
"""

from __future__ import annotations

import errno
import operator
import os
from typing import Any

from fiber.exceptions import FiberError
from fiber.objects.address import Kind
from fiber.objects.sync.permits import Permits
from fiber.objects.sync.semlock import SEM_VALUE_MAX, SemLock

__all__ = ["BoundedSemaphore", "Lock", "RLock", "Semaphore"]


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
        if not 0 <= operator.index(value) <= SEM_VALUE_MAX:
            # what the stdlib raises, with a text that says why
            text = f"{os.strerror(errno.EINVAL)}: a semaphore of {value} permits"
            raise OSError(errno.EINVAL, text)
        self._make(Kind.SEMAPHORE, Permits(value, maximum, recover=recover, tell=False))

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
