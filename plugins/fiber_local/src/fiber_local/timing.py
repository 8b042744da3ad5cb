"""Durations of the local backend."""

from __future__ import annotations

from fiber._base import values
from fiber.model import Durations

__all__ = ["LocalTiming"]


@values.frozen(kw_only=True)
class LocalTiming(Durations):
    """Durations in seconds that the local backend waits for, besides the core's."""

    #: between two reads of the journals of other processes: not every system reports changes of files
    journal_check: float = 0.1
    #: between two reads of a growing log, likewise
    log_check: float = 0.1
    #: for the job of ``fiber doctor`` to end
    trial_job: float = 30.0
