"""Limits and durations that the pending table decides by, with their defaults."""

from __future__ import annotations

from fiber._base import values

_at_least_one = values.ge(1)
_positive = values.gt(0.0)


@values.frozen(kw_only=True)
class RetryPolicy:
    """How often a unit of work may kill the worker it is alone on."""

    #: deaths after which the unit is given up
    max_attempts: int = values.field(default=3, validator=_at_least_one)


@values.frozen(kw_only=True)
class BatchPolicy:
    """How much one worker is given at a time."""

    #: seconds of work that one entry aims at; tasks of 1 ms cost 200 µs of CPU each in entries of
    #: this size, 500 in entries of a fifth, and the last entries shrink by themselves
    target: float = values.field(default=0.008, validator=_positive)
    #: seconds that the master spends on an entry, there and back: as long as it takes to give every
    #: worker one, an entry lasts at least, the last ones too
    cost: float = values.field(default=0.00005, validator=values.ge(0.0))
    #: units in one entry at most
    max_units: int = values.field(default=4096, validator=_at_least_one)
    #: bytes of arguments in one entry at most, where their size was observed
    max_bytes: int = values.field(default=1 << 20, validator=_at_least_one)
    #: a worker holds a second entry only while 95 of 100 units take less than these seconds
    second_below: float = values.field(default=0.150, validator=_positive)
    #: and units longer than this only while there are more than enough for everybody, so that
    #: none of the last ones waits behind another
    spread_from: float = values.field(default=0.010, validator=_positive)


@values.frozen(kw_only=True)
class RevokePolicy:
    """When work that waits behind a slow unit is revoked for an idle worker."""

    #: seconds that the unit in front must have run at least
    floor: float = values.field(default=0.05, validator=_positive)
    #: and how many times the mean duration of its call
    factor: float = values.field(default=5.0, validator=_positive)
    #: and seconds for every worker, which :attr:`answer_timeout` has as well: the message to the
    #: last worker is sent after those to all others
    per_worker: float = values.field(default=0.0001, validator=values.ge(0.0))
    #: seconds after which the items of an unanswered revoke are given to another worker as well
    answer_timeout: float = values.field(default=0.1, validator=_positive)
