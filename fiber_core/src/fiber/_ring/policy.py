"""The numbers by which a ring decides, each with its default."""

from __future__ import annotations

import enum
from typing import Any

from fiber._base import values

_none_or_positive = values.optional(values.gt(0.0))
_count = values.ge(0)


class Clean(enum.Enum):
    """What becomes of the workers when a ring is over."""

    #: they stay as they are until ``ttl`` has passed or the ring is terminated
    NONE = "none"
    #: those that run are ended; what is known of them stays
    RUNNING = "running"
    #: they are ended and forgotten
    ALL = "all"


def _most(policy: Any, _: Any, most: int | None) -> None:
    least = policy.min
    if least is not None and most is not None and most < least:
        msg = f"max must be at least min, got min={least} and max={most}"
        raise ValueError(msg)


@values.frozen(kw_only=True)
class Policy:
    """How a ring starts, restarts and ends."""

    #: fewest workers it goes on with; None: all that it wants
    min: int | None = values.field(default=None, validator=values.optional(values.ge(1)))
    #: True where ranks that run go on when members come and go, False where all start again
    is_live: bool = False
    #: most workers it may be resized to; None: those that it began with
    max: int | None = values.field(
        default=None, validator=values.and_(values.optional(values.ge(1)), _most)
    )
    #: restarts of all ranks after one failed while user code ran
    max_restarts: int = values.field(default=0, validator=_count)
    #: tries again after the members could not be brought up together
    backoff_limit: int = values.field(default=0, validator=_count)
    #: seconds before the first of those tries, doubled with each
    backoff: float = values.field(default=1.0, validator=values.gt(0.0))
    #: and never longer than this
    backoff_cap: float = values.field(default=60.0, validator=values.gt(0.0))
    #: seconds within which all members must be up and know each other, or none runs
    start_timeout: float = values.field(default=300.0, validator=values.gt(0.0))
    #: seconds that an elastic ring waits for the rest once ``min`` workers are up
    last_call: float = values.field(default=30.0, validator=values.gt(0.0))
    #: seconds from its start, or from its resumption, after which it has failed
    deadline: float | None = values.field(default=None, validator=_none_or_positive)
    #: seconds after its end for which its workers and what is known of them are kept
    ttl: float | None = values.field(default=None, validator=values.optional(values.ge(0.0)))
    #: what becomes of the workers at the end
    clean: Clean = Clean.ALL
    #: seconds of silence after which a worker is given up
    heartbeat: float = values.field(default=30.0, validator=values.gt(0.0))
    #: seconds for which the death that made user code raise elsewhere may still be told
    verdict: float = values.field(default=0.5, validator=values.gt(0.0))
    #: seconds that survivors have to tell their state
    collect: float = values.field(default=10.0, validator=values.gt(0.0))
    #: seconds between asking a worker to end and killing it, and between one kill and the next
    grace: float = values.field(default=2.0, validator=values.gt(0.0))
    #: seconds after which a worker that cannot be ended is waited for no more
    end_timeout: float = values.field(default=30.0, validator=values.gt(0.0))
    #: True where workers outlive a restart: :class:`~fiber._ring.events.Halt` ends what they run
    keeps_workers: bool = False
