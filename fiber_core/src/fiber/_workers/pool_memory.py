"""Where a pool lays large functions, so that its workers on this host map them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fiber._wire.frames import Buffer

if TYPE_CHECKING:
    from pathlib import Path

    from fiber._objects.memory.sealed import Sealed
    from fiber._runtime.runtime import Runtime
    from fiber._tasks.broadcast import Laid

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
