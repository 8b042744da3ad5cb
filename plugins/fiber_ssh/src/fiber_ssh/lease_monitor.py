"""Leases of hosts: a thread reports hosts whose agents have been silent for too long.

Apart from the scheduler, since it has a lock and a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fiber._agent.lease import LeaseTable
from fiber.backend_parts.threads import Timers
from fiber.model import Timing

__all__ = ["LeaseMonitor"]

#: key of the next check
_CHECK = "check"


class LeaseMonitor:
    """Leases of hosts by name, checked by the thread ``fiber-ssh-leases``; thread-safe.

    Args:
        lease: seconds of silence after which a lease expires.
        timing: how often leases are checked, and by how much a check may be late.
        expired: called with a host's name and the seconds of its silence.
        stale: called with a host's name after half of its lease in silence, to have its
            connection made anew.
    """

    def __init__(
        self,
        lease: float,
        timing: Timing,
        expired: Callable[[str, float], None],
        stale: Callable[[str], None],
    ) -> None:
        self._lease = lease
        self._interval = timing.heartbeat
        self._expired = expired
        self._stale = stale
        self._table: LeaseTable[str] = LeaseTable(lease=lease, silence=lease, timing=timing)
        self._renewed: dict[str, float] = {}
        self._lock = threading.Lock()
        self._timers = Timers("fiber-ssh-leases")

    def start(self) -> None:
        """Begin to check."""
        self._timers.set(_CHECK, self._interval, self._check)

    def renew(self, name: str) -> None:
        """Renew a host's lease at a heartbeat."""
        now = time.monotonic()
        with self._lock:
            self._renewed[name] = now
            if name in self._table:
                self._table.renew(name, now)
            else:
                self._table.connected(name, now)

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._timers.close()

    def _check(self) -> None:
        now = time.monotonic()
        with self._lock:
            expired = self._table.expire(now)
            stale = [n for n, t in self._renewed.items() if now - t > self._lease / 2]
            for name in stale:
                del self._renewed[name]
        # whatever becomes of these: the next check is due
        self.start()
        for name in stale:
            self._stale(name)
        for one in expired:
            self._expired(one.key, one.silent)
