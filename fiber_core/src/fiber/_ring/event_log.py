"""What happened to a ring, as conditions, events and times."""

from __future__ import annotations

from collections import deque

from fiber._ring.model import Condition, ConditionKind, RingEvent

_KEPT = 200
_OVER = (ConditionKind.SUCCEEDED, ConditionKind.FAILED)
#: what is no longer true when something else becomes true
_ENDS: dict[ConditionKind, tuple[ConditionKind, ...]] = {
    ConditionKind.CREATED: (),
    ConditionKind.RUNNING: (ConditionKind.RESTARTING, ConditionKind.SUSPENDED),
    ConditionKind.RESTARTING: (ConditionKind.RUNNING, ConditionKind.SUSPENDED),
    ConditionKind.SUSPENDED: (ConditionKind.RUNNING, ConditionKind.RESTARTING),
    ConditionKind.SUCCEEDED: (
        ConditionKind.RUNNING,
        ConditionKind.RESTARTING,
        ConditionKind.SUSPENDED,
    ),
    ConditionKind.FAILED: (
        ConditionKind.RUNNING,
        ConditionKind.RESTARTING,
        ConditionKind.SUSPENDED,
    ),
}


class Chronicle:
    """Keeps the last word on each kind of condition, and the last events.

    Args:
        epoch: what a moment of the machine's clock is to be added to for seconds since the epoch.
    """

    def __init__(self, epoch: float) -> None:
        self._epoch = epoch
        self._conditions: dict[ConditionKind, Condition] = {}
        self._events: deque[RingEvent] = deque(maxlen=_KEPT)
        #: when it was started or resumed
        self.start_time: float | None = None
        #: when it was over
        self.completion_time: float | None = None

    def is_now(self, kind: ConditionKind, reason: str, message: str, now: float) -> None:
        """Something is true of the ring from now on."""
        for other in _ENDS[kind]:
            self.is_no_longer(other, reason, message, now)
        self._set(kind, True, reason, message, now)
        self.note(reason, message, now)
        if kind in _OVER:
            self.completion_time = self._epoch + now

    def is_no_longer(self, kind: ConditionKind, reason: str, message: str, now: float) -> None:
        """Something is no longer true of it; nothing where it was not."""
        known = self._conditions.get(kind)
        if known is not None and known.is_true:
            self._set(kind, False, reason, message, now)

    def note(self, reason: str, message: str, now: float) -> None:
        """Something happened that is no condition."""
        self._events.append(RingEvent(self._epoch + now, reason, message))

    def began(self, now: float) -> None:
        """It was started, or resumed."""
        self.start_time = self._epoch + now

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The last word on each kind, oldest first."""
        return tuple(self._conditions.values())

    @property
    def events(self) -> tuple[RingEvent, ...]:
        """The last events, oldest first."""
        return tuple(self._events)

    def _set(
        self, kind: ConditionKind, is_true: bool, reason: str, message: str, now: float
    ) -> None:
        self._conditions.pop(kind, None)
        self._conditions[kind] = Condition(
            kind=kind, is_true=is_true, reason=reason, message=message, time=self._epoch + now
        )
