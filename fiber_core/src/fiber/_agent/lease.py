"""Leases: which peers have given no sign of life for too long; pure, the clock is passed in.

Both sides of a job's connection keep such a table: the parent has an entry for each job, the job's
supervisor one for the parent. The parent has another one for jobs that their platform was asked to
end and has not confirmed. Time is the monotonic clock of the process that keeps the table.

A table that is *strict* is of a side which must have ended its jobs by the time at which the other
side gives them up: an agent that several programs use. Its clock also runs while the host sleeps,
and a lease counts from when the message was sent that the other side has acknowledged.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

from fiber._base import values
from fiber.model.timing import Timing

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
    silence: float | None
    disconnected_at: float | None = None
    paused: bool = False


class LeaseTable(Generic[K]):
    """Leases by key; call :meth:`expire` after each ``timing.heartbeat``, or by :meth:`next_expiry`.

    Args:
        lease: seconds that a connection may be gone.
        silence: seconds that a connection may exist without a message; None: for ever.
        timing: how often leases are checked, and by how much a check may be late.
        strict: True to count silence also while there is no connection, and to renew nothing where
            a check is late.
    """

    def __init__(
        self,
        *,
        lease: float,
        silence: float | None,
        timing: Timing = Timing(),
        strict: bool = False,
    ) -> None:
        self._latest = timing.heartbeat + timing.lateness
        self._lease = lease
        self._silence = silence
        self._strict = strict
        self._leases: dict[K, _Lease] = {}
        self._last_check = float("-inf")

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, key: object) -> bool:
        return key in self._leases

    def connected(self, key: K, now: float, *, silence: float | None = None) -> None:
        """Note that a connection was made, for the first time or again.

        Args:
            key: of the lease.
            now: the time.
            silence: seconds of silence for this one, where it has its own.
        """
        if not self._leases:
            # the table was empty, and was not checked
            self._last_check = now
        self._leases[key] = _Lease(now, self._silence if silence is None else silence)

    def renew(self, key: K, now: float) -> None:
        """Renew a lease: a sign of life came, or one of that time was acknowledged."""
        lease = self._leases.get(key)
        if lease is not None:
            lease.last_seen = max(lease.last_seen, now)

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
        late = not self._strict and now - self._last_check > self._latest
        self._last_check = now
        if late:
            for lease in self._leases.values():
                lease.last_seen = now
                lease.disconnected_at = None if lease.disconnected_at is None else now
            return []
        expired = []
        for key, lease in self._leases.items():
            for since, allowed, disconnected in self._counts(lease):
                if now - since > allowed:
                    expired.append(Expired(key, now - since, disconnected=disconnected))
                    break
        for one in expired:
            del self._leases[one.key]
        return expired

    def next_expiry(self) -> float | None:
        """When the next lease expires that is not renewed; None where none does."""
        counts = [count for lease in self._leases.values() for count in self._counts(lease)]
        return min((since + allowed for since, allowed, _ in counts), default=None)

    def _counts(self, lease: _Lease) -> Iterator[tuple[float, float, bool]]:
        """Times from which a lease counts, for how long, and whether by the end of its connection."""
        if lease.paused:
            return
        if lease.disconnected_at is not None:
            yield lease.disconnected_at, self._lease, True
        if lease.silence is not None and (self._strict or lease.disconnected_at is None):
            yield lease.last_seen, lease.silence, False
