"""Counters of the rings that this process started, by outcome."""

from __future__ import annotations

import threading

from fiber._base import values
from fiber._ring.model import ConditionKind, RingPhase, RingStatus

__all__ = ["RingCounters", "StatusCounter", "counters"]


@values.frozen(kw_only=True)
class RingCounters:
    """Rings that this process started, since it began."""

    #: rings started
    created: int = 0
    #: rings that succeeded
    succeeded: int = 0
    #: rings that failed
    failed: int = 0
    #: restarts of all ranks of a ring, over all rings
    restarts: int = 0

    def to_prometheus(self) -> str:
        """Return the counters in Prometheus' text format."""
        lines = []
        for name, value in values.asdict(self).items():
            metric = f"fiber_rings_{name}_total"
            lines += [f"# TYPE {metric} counter", f"{metric} {value}"]
        return "\n".join(lines) + "\n"


_lock = threading.Lock()
_counts = RingCounters()


def counters() -> RingCounters:
    """Return the counts so far."""
    with _lock:
        return _counts


class StatusCounter:
    """Counts the start, restarts and end of one ring by comparing successive statuses."""

    def __init__(self) -> None:
        self._was_created = self._was_over = False
        self._restarts = 0

    def __call__(self, status: RingStatus) -> None:
        """Compare a new status with the last one and add the difference."""
        global _counts  # noqa: PLW0603 - they are the process's
        created = not self._was_created and status.condition(ConditionKind.CREATED) is not None
        over = not self._was_over and status.phase.is_over
        more = status.restarts - self._restarts
        self._was_created |= created
        self._was_over |= over
        self._restarts = status.restarts
        with _lock:
            _counts = RingCounters(
                created=_counts.created + created,
                succeeded=_counts.succeeded + (over and status.phase is RingPhase.SUCCEEDED),
                failed=_counts.failed + (over and status.phase is RingPhase.FAILED),
                restarts=_counts.restarts + more,
            )
