"""What a pool's callers may ask for: sizes, chunks and initializers, judged before anything starts.

Where a pool lays large functions, so that its workers on this host map them.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fiber._base import values
from fiber._wire.frames import Buffer

if TYPE_CHECKING:
    from pathlib import Path

    from fiber._objects.memory.sealed import Sealed
    from fiber._runtime.runtime import Runtime
    from fiber._tasks.shared_payload import Laid


def chunk_of(chunksize: int | None) -> int:
    """Items that stay together; 1 where the caller does not say.

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
class Wish:
    """What the owner of a workforce was made with, as it was given."""

    #: workers at first; None for as many as the backend has CPUs
    size: int | None = None
    #: called in each worker first
    initializer: Callable[..., Any] | None = None
    #: its arguments
    initargs: Iterable[Any] = ()
    #: chunks in a worker's life, or None
    quota: int | None = None
    #: False for at most once
    error_handling: bool = True
    #: fewest and most workers of an elastic one
    least: int | None = None
    most: int | None = None
    #: workers in one job
    per_job: int = 1
    #: deaths of a worker after which a task is given up; None for the setting
    max_attempts: int | None = None

    def judge(self, current: Runtime) -> tuple[int, int, int]:
        """Workers at first, at least and at most.

        Raises:
            TypeError: the initializer cannot be called, or the size is no whole number.
            ValueError: a number makes no sense, alone or together with others.
        """
        require_callable(self.initializer)
        found = sizes(current, self.size, self.least, self.most)
        require_positive("maxtasksperchild", self.quota)
        require_positive("processes_per_job", self.per_job)
        require_positive("max_attempts", self.max_attempts)
        return found


def sizes(
    current: Runtime, processes: int | None, least: int | None, most: int | None
) -> tuple[int, int, int]:
    """Workers at first, at least and at most.

    Raises:
        TypeError: ``processes`` is no whole number.
        ValueError: the numbers make no sense, alone or together.
    """
    if processes is not None and operator.index(processes) < 1:
        msg = "Number of processes must be at least 1"
        raise ValueError(msg)
    require_positive("min", least)
    require_positive("max", most)
    size = processes
    if size is None:
        size = least if least is not None else current.cpu_count()
        if most is not None:
            size = min(size, most)
    low, high = least if least is not None else size, most if most is not None else size
    if not low <= size <= high:
        msg = f"processes={size} is not between min={low} and max={high}"
        raise ValueError(msg)
    return size, low, high


log = logging.getLogger("fiber")


class PoolMemory:
    """Sealed memory of a process, or of others on its host."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def lay(self, segments: Sequence[Buffer]) -> Laid | None:
        """Lay bytes; None where there is no room for them."""
        # a process that has nothing large does not import it
        from fiber._objects.memory import sealed

        try:
            return _Laid(sealed.seal(segments, self._folder, self._runtime.ident))
        except OSError as error:
            log.debug("fiber: a function is sent to each worker: %s", error)
            return None

    def find(self, place: bytes) -> Laid | None:
        """What is at a place; None where it is not to be had here."""
        from fiber._objects.memory import sealed
        from fiber._objects.memory.backing import Place

        found = sealed.find(Place.unpack(place), self._folder)
        return None if found is None else _Laid(found)

    def _folder(self) -> Path:
        return self._runtime.directory


class _Laid:
    def __init__(self, sealed: Sealed) -> None:
        self._sealed = sealed
        self.place = sealed.place.packed()
        self.size = sealed.size
        self.view = sealed.view
        self.private = sealed.private
        self.close = sealed.close
