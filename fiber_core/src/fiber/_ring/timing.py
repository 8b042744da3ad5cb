"""Durations of rings and of runs of ``mpirun``, which scale with those of their run of Fiber."""

from __future__ import annotations

from fiber._base import values
from fiber.model.timing import Durations

__all__ = ["MpiTiming", "RingTiming"]


@values.frozen(kw_only=True)
class RingTiming(Durations):
    """Durations of a ring that are no options of it."""

    # -- the state machine's

    #: before the first further attempt to bring all members up, doubled with each, and at most
    backoff: float = 1.0
    backoff_cap: float = 60.0
    #: that an elastic ring waits for more workers once ``min`` are up (torchrun's term)
    last_call: float = 30.0
    #: after user code raised in which another member's death may be reported as the cause
    failure_window: float = 0.5
    #: for survivors to send their committed state
    collect: float = 10.0
    #: between terminating a worker and killing it, and between two kills
    grace: float = 2.0
    #: after which a worker, or a whole ring, that was to end is given up
    end: float = 30.0

    # -- members'

    #: between two heartbeats, at most
    heartbeat: float = 2.0
    #: for an address to answer a probe, and for others once one of each target has answered
    probe: float = 5.0
    probe_rest: float = 0.5

    # -- sockets and files

    #: for a client of a ring's socket to send its request, and for the answer
    request: float = 10.0
    #: for threads to end whose streams were closed
    stream_end: float = 10.0
    #: between two writes of a changed status
    status: float = 1.0
    #: between two looks at what another process writes, which no event announces
    poll: float = 0.2


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
