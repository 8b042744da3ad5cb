"""Leases: which peers have given no sign of life for too long; pure, the clock is passed in.

Both sides of a job's connection keep such a table: the parent has an entry for each job, the job's
supervisor one for the parent. The parent has another one for jobs that their platform was asked to
end and has not confirmed. Time is the monotonic clock of the process that keeps the table.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from fiber._base import values
from fiber.model.timing import Timing

__all__ = ["Expired", "LeaseTable"]

K = TypeVar("K", bound=Hashable)


@values.frozen
class Expired(Generic[K]):
    """A lease that ran out; it is in the table no more."""

    #: key of the lease
    key: K
    #: seconds since the last sign of life, or since the connection ended
    silent: float
    #: True where the connection is gone, False where it is there and nothing comes
    disconnected: bool


@values.define
class _Lease:
    last_seen: float
    disconnected_at: float | None = None
    paused: bool = False


class LeaseTable(Generic[K]):
    """Leases by key; call :meth:`expire` after each ``timing.heartbeat``.

    Args:
        lease: seconds that a connection may be gone.
        silence: seconds that a connection may exist without a message; None: for ever.
        timing: how often leases are checked, and by how much a check may be late.
    """

    def __init__(self, *, lease: float, silence: float | None, timing: Timing = Timing()) -> None:
        self._latest = timing.heartbeat + timing.lateness
        self._lease = lease
        self._silence = silence
        self._leases: dict[K, _Lease] = {}
        self._last_check = float("-inf")

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: object) -> bool:
        return key in self._leases

    def connected(self, key: K, now: float) -> None:
        """Note that a connection was made, for the first time or again."""
        if not self._leases:
            # the table was empty, and was not checked
            self._last_check = now
        self._leases[key] = _Lease(now)

    def renew(self, key: K, now: float) -> None:
        """Renew a lease: a sign of life came."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.last_seen = now

    def disconnected(self, key: K, now: float) -> None:
        """Note that a connection ended; another one may be made."""
        lease = self._leases.get(key)
        if lease is not None and lease.disconnected_at is None:
            lease.disconnected_at = now

    def pause(self, key: K, paused: bool, now: float) -> None:
        """Suspend a lease while its peer is known to be stopped, or resume it."""
        lease = self._leases.get(key)
        if lease is not None and lease.paused != paused:
            lease.paused = paused
            lease.last_seen = now
            lease.disconnected_at = None if lease.disconnected_at is None else now

    def drop(self, key: K) -> None:
        """Remove a lease; an unknown key is no error."""
        self._leases.pop(key, None)

    def expire(self, now: float) -> list[Expired[K]]:
        """Remove and return the leases that have run out.

        A call that comes late means that this process was stopped or its machine asleep: messages
        that came meanwhile have not been read yet, so all leases are renewed, once.
        """
        late = now - self._last_check > self._latest
        self._last_check = now
        if late:
            for lease in self._leases.values():
                lease.last_seen = now
                lease.disconnected_at = None if lease.disconnected_at is None else now
            return []
        expired = []
        for key, lease in self._leases.items():
            if lease.paused:
                continue
            if lease.disconnected_at is not None and now - lease.disconnected_at > self._lease:
                expired.append(Expired(key, now - lease.disconnected_at, disconnected=True))
            elif (
                lease.disconnected_at is None
                and self._silence is not None
                and now - lease.last_seen > self._silence
            ):
                expired.append(Expired(key, now - lease.last_seen, disconnected=False))
        for one in expired:
            del self._leases[one.key]
        return expired
