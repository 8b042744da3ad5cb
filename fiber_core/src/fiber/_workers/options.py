"""Options of pools and executors, checked before anything starts; their store of large payloads."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._base.log import lazy_logger
from fiber._wire.frames import Buffer

if TYPE_CHECKING:
    from pathlib import Path

    from fiber._objects.memory.sealed import Sealed
    from fiber._runtime.runtime import Runtime
    from fiber._tasks.shared_payload import SharedPayload


def resolve_chunksize(chunksize: int | None) -> int:
    """``chunksize`` as a number of items; 1 for None.

    Raises:
        ValueError: less than one.
    """
    if chunksize is None:
        return 1
    if chunksize < 1:
        msg = f"Chunksize must be 1+, not {chunksize}"
        raise ValueError(msg)
    return operator.index(chunksize)


def require_callable(initializer: Any) -> None:
    """Raise TypeError where ``initializer`` is neither None nor callable."""
    if initializer is not None and not callable(initializer):
        msg = "initializer must be a callable"
        raise TypeError(msg)


def require_int(message: str, value: object) -> None:
    """Raise TypeError with that text where ``value`` is no whole number."""
    if not isinstance(value, int):
        raise TypeError(message)


def require_positive(name: str, value: Any) -> None:
    """Raise ValueError where ``value`` is neither None nor a positive whole number."""
    if value is not None and (not isinstance(value, int) or value < 1):
        msg = f"{name} must be a positive int or None, got {value!r}"
        raise ValueError(msg)


@values.frozen(kw_only=True)
class PoolOptions:
    """Options of a pool or executor as the caller gave them."""

    #: workers at first; None for as many as the backend has CPUs
    size: int | None = None
    #: called in each worker first
    initializer: Callable[..., Any] | None = None
    #: arguments of the initializer
    initargs: Iterable[Any] = ()
    #: chunks that a worker runs before it is replaced, or None
    maxtasksperchild: int | None = None
    #: False where no task may run twice
    error_handling: bool = True
    #: fewest and most workers of an elastic one
    min_size: int | None = None
    max_size: int | None = None
    #: workers in one job
    per_job: int = 1
    #: deaths of a worker after which a task is given up; None for the setting
    max_attempts: int | None = None
    #: True where failed tasks are kept; None for the setting
    keep_failed: bool | None = None

    def validate(self, current: Runtime) -> tuple[int, int, int]:
        """Check all options; returns the workers at first, at least and at most.

        Raises:
            TypeError: the initializer cannot be called, or the size is no whole number.
            ValueError: a number makes no sense, alone or together with others.
        """
        require_callable(self.initializer)
        found = sizes(current, self.size, self.min_size, self.max_size)
        require_positive("maxtasksperchild", self.maxtasksperchild)
        require_positive("processes_per_job", self.per_job)
        require_positive("max_attempts", self.max_attempts)
        return found


def sizes(
    current: Runtime, processes: int | None, min_size: int | None, max_size: int | None
) -> tuple[int, int, int]:
    """Workers at first, at least and at most.

    Raises:
        TypeError: ``processes`` is no whole number.
        ValueError: the numbers make no sense, alone or together.
    """
    if processes is not None and operator.index(processes) < 1:
        msg = "Number of processes must be at least 1"
        raise ValueError(msg)
    require_positive("min", min_size)
    require_positive("max", max_size)
    size = processes
    if size is None:
        size = min_size if min_size is not None else current.cpu_count()
        if max_size is not None:
            size = min(size, max_size)
    low, high = (
        min_size if min_size is not None else size,
        max_size if max_size is not None else size,
    )
    if not low <= size <= high:
        msg = f"processes={size} is not between min={low} and max={high}"
        raise ValueError(msg)
    return size, low, high


log = lazy_logger()


class SealedPayloadStore:
    """Payloads in sealed shared memory, written by this process or by another one of its host."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def write(self, segments: Sequence[Buffer]) -> SharedPayload | None:
        """Write bytes into shared memory; None where there is no room for them."""
        # a process that has nothing large does not import it
        from fiber._objects.memory import sealed

        try:
            return _SealedPayload(sealed.seal(segments, self._folder, self._runtime.ident))
        except OSError as error:
            log.debug("fiber: a function is sent to each worker: %s", error)
            return None

    def find(self, locator: bytes) -> SharedPayload | None:
        """Map a payload; None where this process cannot."""
        from fiber._objects.memory import sealed
        from fiber._objects.memory.backing import Location

        found = sealed.find(Location.unpack(locator), self._folder)
        return None if found is None else _SealedPayload(found)

    def _folder(self) -> Path:
        return self._runtime.directory


class _SealedPayload:
    def __init__(self, sealed: Sealed) -> None:
        self._sealed = sealed
        self.locator = sealed.location.packed()
        self.size = sealed.size
        self.view = sealed.view
        self.private = sealed.private
        self.close = sealed.close
