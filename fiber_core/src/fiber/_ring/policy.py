"""Limits of a ring, each with its default."""

from __future__ import annotations

import enum
from typing import Any

from fiber._base import values
from fiber._ring.timing import RingTiming

_none_or_positive = values.optional(values.gt(0.0))
_count = values.ge(0)
#: signs of life within the time after which a silent worker is given up
_SIGNS_OF_LIFE = 10


class Clean(enum.Enum):
    """Clean-up of the workers when a ring is over."""

    #: workers stay as they are until ``ttl`` has passed or the ring is terminated
    NONE = "none"
    #: running workers are ended; their records stay
    RUNNING = "running"
    #: workers are ended and their records removed
    ALL = "all"


def _check_max(policy: Any, _: Any, most: int | None) -> None:
    least = policy.min
    if least is not None and most is not None and most < least:
        msg = f"max must be at least min, got min={least} and max={most}"
        raise ValueError(msg)


@values.frozen(kw_only=True)
class Policy:
    """Policy by which a ring starts, restarts and ends."""

    #: fewest workers the ring runs with; None: all of them
    min: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    #: True: running ranks go on when members come and go; False: all ranks restart
    is_live: bool = False
    #: most workers it may be resized to; None: the number it began with
    max: int | None = values.field(
        default=None, validator=values.and_(values.optional(values.ge(1)), _check_max)
    )
    #: restarts of all ranks after one failed while user code ran
    max_restarts: int = values.field(default=0, validator=_count)
    #: further attempts after the members could not be brought up together
    backoff_limit: int = values.field(default=0, validator=_count)
    #: seconds within which all members must be up and have reached each other, or none runs; and
    #: within which those that run must have reached a newcomer, or another one is tried
    start_timeout: float = values.field(default=300.0, validator=values.gt(0.0))
    #: seconds from start or resumption after which the ring has failed
    deadline: float | None = values.field(default=None, validator=_none_or_positive)
    #: seconds after the end for which workers and records are kept
    ttl: float | None = values.field(default=None, validator=values.optional(values.ge(0.0)))
    #: clean-up at the end
    clean: Clean = Clean.ALL
    #: seconds of silence after which a worker is given up
    heartbeat: float = values.field(default=30.0, validator=values.gt(0.0))
    #: True where what the workers run is ended before they are: :class:`~fiber._ring.events.Halt`
    halts: bool = False
    #: durations that are no options
    timing: RingTiming = values.field(factory=RingTiming)

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between two heartbeats of a member, and between two turns of the controller."""
        return min(self.heartbeat / _SIGNS_OF_LIFE, self.timing.heartbeat)
