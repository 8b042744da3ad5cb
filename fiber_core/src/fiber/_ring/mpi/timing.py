"""Durations of a run of ``mpirun``, which scale with those of its run of Fiber."""

from __future__ import annotations

from fiber._base import values
from fiber.model.timing import Durations

__all__ = ["MpiTiming"]


@values.frozen(kw_only=True)
class MpiTiming(Durations):
    """Durations of a run of ``mpirun`` that are no options of it."""

    #: for member agents to end by themselves, before they are killed
    end: float = 5.0
    #: for an answer of an address; on a network that drops packets, none comes
    dial: float = 4.0
    #: after a command's end for which its descendants may keep its output open
    linger: float = 1.0
    #: for mpirun to end by itself after a rank failed, after all have ended, and after a signal
    after_failure: float = 5.0
    after_all: float = 15.0
    after_signal: float = 5.0
