"""Who has been silent for too long: pure, the clock is passed in.

Both sides of a job's connection keep such a table: the parent one line for each job, the job's
supervisor one for the parent. The parent has another one for jobs that their platform was asked to
end, and has not told of since. Time is the monotonic clock of whoever keeps the table.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from fiber._base import values

__all__ = ["INTERVAL", "LATE", "Expired", "LeaseTable"]

K = TypeVar("K", bound=Hashable)

#: seconds between signs of life, and between two looks at a table
INTERVAL = 1.0
#: seconds by which a look may be late before nobody is judged by it
LATE = 1.0


@values.frozen
class Expired(Generic[K]):
    """A lease that ran out; it is in the table no more."""

    #: whose
    key: K
    #: seconds since the last sign of life, or since the connection ended
    silent: float
    #: True where the connection is gone, False where it is there and nothing comes
    is_cut: bool


@values.define
class _Lease:
    heard: float
    cut: float | None = None
    paused: bool = False


class LeaseTable(Generic[K]):
    """Leases by key; :meth:`look` at it every :data:`INTERVAL` seconds.

    Args:
        lease: seconds that a connection may be gone.
        silence: seconds that one may be there and silent; None where that proves nothing.
    """

    def __init__(self, *, lease: float, silence: float | None) -> None:
        self._lease = lease
        self._silence = silence
        self._leases: dict[K, _Lease] = {}
        self._looked = float("-inf")

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: object) -> bool:
        return key in self._leases

    def joined(self, key: K, now: float) -> None:
        """A connection was made, for the first time or again."""
        if not self._leases:
            # nobody had to look so far
            self._looked = now
        self._leases[key] = _Lease(now)

    def heard(self, key: K, now: float) -> None:
        """A sign of life came."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.heard = now

    def cut(self, key: K, now: float) -> None:
        """A connection ended; another one may be made."""
        lease = self._leases.get(key)
        if lease is not None and lease.cut is None:
            lease.cut = now

    def pause(self, key: K, paused: bool, now: float) -> None:
        """It is known to be stopped, so its silence means nothing; or it runs again."""
        lease = self._leases.get(key)
        if lease is not None and lease.paused != paused:
            lease.paused = paused
            lease.heard = now
            lease.cut = None if lease.cut is None else now

    def drop(self, key: K) -> None:
        """It has ended; nothing where it is not here."""
        self._leases.pop(key, None)

    def look(self, now: float) -> list[Expired[K]]:
        """Take out and return those whose lease has run out.

        A look that comes late tells that this process was stopped, or its machine asleep: what
        was said meanwhile has not been read yet, so all leases are renewed, once.
        """
        late = now - self._looked > INTERVAL + LATE
        self._looked = now
        if late:
            for lease in self._leases.values():
                lease.heard = now
                lease.cut = None if lease.cut is None else now
            return []
        expired = []
        for key, lease in self._leases.items():
            if lease.paused:
                continue
            if lease.cut is not None and now - lease.cut > self._lease:
                expired.append(Expired(key, now - lease.cut, is_cut=True))
            elif (
                lease.cut is None
                and self._silence is not None
                and now - lease.heard > self._silence
            ):
                expired.append(Expired(key, now - lease.heard, is_cut=False))
        for one in expired:
            del self._leases[one.key]
        return expired
