"""Durations of the Docker backend."""

from __future__ import annotations

from fiber._base import values
from fiber.model import Durations


@values.frozen(kw_only=True)
class DockerTiming(Durations):
    """Durations in seconds that the Docker backend waits for, besides the core's."""

    #: for the engine to answer a call
    answer: float = 60.0
    #: for a removal that is under way already
    removal: float = 10.0
    #: between the SIGTERM and the SIGKILL of ``docker stop``, and of an engine that ends; the engine
    #: takes whole seconds
    stop: float = 10.0
    #: from the SIGTERM to the SIGKILL of an attached program whose starter was killed
    orphan: float = 5.0
    #: for the event of the end of a container that is gone already
    end_event: float = 2.0
    #: for output to arrive once its container is removed
    output: float = 2.0
    #: for last lines where a status waits for them and this process blocks on writing them
    log_tail: float = 0.5
    #: likewise where the engine is slow; it reports an end after all output
    late_output: float = 5.0
    #: between two checks whether a container's first process handles signals yet
    handler_check: float = 0.05
    #: between two tries to reach an engine that is gone
    retry: float = 0.5
    #: for the thread that reads events to end
    watch_end: float = 5.0
