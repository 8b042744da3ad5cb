"""Size of entries: how many units one gets, from the recent durations of its call's units."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from fiber._tasks.pending.policy import BatchPolicy

if TYPE_CHECKING:
    from fiber._tasks.pending.worker_state import WorkerState

#: reports that are remembered
WINDOW = 64


class Pace:
    """Recent durations of the units of a call, or of several calls of one kind.

    A report says what several units took together, so one sample is the mean of one report.
    Whether 95 of 100 samples lie below a limit needs no sorting: the samples above are counted.
    """

    __slots__ = ("_at", "_limit", "_ring", "_seconds", "_slow", "_units", "is_fast", "waiting")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._ring: list[tuple[int, float]] = []
        self._at = 0
        self._units = 0
        self._seconds = 0.0
        self._slow = 0
        #: True while the 95th percentile lies below the limit; False until something was measured
        self.is_fast = False
        #: workers with a credit that hold one entry of this pace, kept by AvailableWorkers
        self.waiting: OrderedDict[WorkerState, None] = OrderedDict()

    @property
    def mean(self) -> float | None:
        """Seconds of one unit, or None until something was measured."""
        return self._seconds / self._units if self._units else None

    def median(self) -> float | None:
        """Seconds of the median unit, or None until something was measured; sorts the samples."""
        samples = sorted(seconds / units for units, seconds in self._ring)
        return samples[len(samples) // 2] if samples else None

    def add(self, units: int, seconds: float) -> bool:
        """Take a report in.

        Returns:
            True where ``is_fast`` changed.
        """
        ring = self._ring
        slow = seconds >= self._limit * units
        if len(ring) < WINDOW:
            ring.append((units, seconds))
        else:
            at = self._at
            old_units, old_seconds = ring[at]
            ring[at] = (units, seconds)
            self._units -= old_units
            self._seconds -= old_seconds
            self._slow -= old_seconds >= self._limit * old_units
            self._at = at = (at + 1) % WINDOW
            if at == 0:
                # Adding and taking away rounds; once a turn the sum starts afresh.
                self._seconds = sum(sample[1] for sample in ring) - seconds
        self._units += units
        self._seconds += seconds
        self._slow += slow
        was = self.is_fast
        self.is_fast = self._slow * 20 <= len(ring)
        return self.is_fast is not was


def batch_units(
    policy: BatchPolicy,
    mean: float | None,
    queued: int,
    workers: int,
    units_left: int | None,
    bytes_per_unit: float,
) -> int:
    """How many units the next entry may have, at least one.

    Args:
        policy: the limits.
        mean: seconds of one unit; None before anything was measured, which gives one unit.
        queued: units of the call that wait; as they run dry the entries shrink.
        workers: how many share them.
        units_left: units that the worker may still be given, or None.
        bytes_per_unit: size of the arguments; 0 where unknown.
    """
    if mean is None:
        return 1
    # shorter ones would leave all but a few waiting for the master
    least = workers * policy.cost
    units = _units_of(max(policy.target, least), mean, policy.max_units)
    spread = -(-queued // (2 * workers))
    if spread < units:
        units = max(spread, _units_of(least, mean, units))
    if bytes_per_unit * units > policy.max_bytes:
        units = int(policy.max_bytes / bytes_per_unit)
    if units_left is not None and units_left < units:
        units = units_left
    return max(1, units)


def _units_of(seconds: float, mean: float, most: int) -> int:
    """How many units take so long; never more than ``most``."""
    # compared before divided: a mean close to zero has no finite quotient
    if mean * most < seconds:
        return most
    return int(seconds / mean) if mean else 0
