"""Durations of the ssh backend."""

from __future__ import annotations

from fiber._base import values
from fiber.model import Durations


@values.frozen(kw_only=True)
class SshTiming(Durations):
    """Durations in seconds that the ssh backend waits for, besides the core's."""

    #: between attempts to connect, the first and the longest
    first_pause: float = 0.1
    longest_pause: float = 5.0
    #: for an agent to answer
    answer: float = 20.0
    #: for a device probe
    device_probe: float = 30.0
    #: for a connection that dropped to be made again, before its host is said not to answer
    reconnect: float = 10.0
    #: that the first job waits for other hosts, once one has answered
    wait_for_all: float = 2.0
    #: for hosts to end what they run; they do so by themselves when the lease ends
    release: float = 15.0
    #: for the last output to come
    last_output: float = 3.0
    #: for the threads of a host to end, besides the time to connect
    host_end: float = 10.0
    #: for which a listing of files is reused
    fresh_listing: float = 1.0
    #: for workers to end after SIGTERM, their FIBER_GRACE; nothing but Fiber kills them then
    grace: float = 30.0
