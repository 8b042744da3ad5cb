"""Notices hosts that are silent: one thread that looks at the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fiber._agent.lease import INTERVAL, LeaseTable

__all__ = ["Warden"]


class Warden:
    """Leases of hosts by name; thread-safe.

    Args:
        lease: seconds that a host may be silent.
        expired: called with a host and how long it was silent.
        stale: called with a host whose connection shall be made again, for it has been silent for
            half of its lease.
    """

    def __init__(
        self,
        lease: float,
        expired: Callable[[str, float], None],
        stale: Callable[[str], None],
    ) -> None:
        self._lease = lease
        self._expired = expired
        self._stale = stale
        self._table: LeaseTable[str] = LeaseTable(lease=lease, silence=lease)
        self._heard: dict[str, float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, name="fiber-ssh-leases", daemon=True)
        self._thread.start()

    def heard(self, name: str) -> None:
        """A host gave a sign of life."""
        now = time.monotonic()
        with self._lock:
            self._heard[name] = now
            if name in self._table:
                self._table.heard(name, now)
            else:
                self._table.joined(name, now)

    def close(self) -> None:
        """Look no more. Idempotent."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL):
            now = time.monotonic()
            with self._lock:
                expired = self._table.look(now)
                stale = [n for n, t in self._heard.items() if now - t > self._lease / 2]
                for name in stale:
                    del self._heard[name]
            for name in stale:
                self._stale(name)
            for one in expired:
                self._expired(one.key, one.silent)
