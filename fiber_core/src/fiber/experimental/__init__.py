"""Experimental API, which may still change: rings of equal members for distributed training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fiber._ring.frameworks import RingFramework
    from fiber._ring.model import (
        Condition,
        ConditionKind,
        Failure,
        Host,
        Member,
        Placement,
        RingCounters,
        RingError,
        RingEvent,
        RingPhase,
        RingStatus,
        ring_counters,
    )
    from fiber._ring.ring import Ring
    from fiber._ring.view import RingView, current_ring

__all__ = [
    "Condition",
    "ConditionKind",
    "Failure",
    "Host",
    "Member",
    "Placement",
    "Ring",
    "RingCounters",
    "RingError",
    "RingEvent",
    "RingFramework",
    "RingPhase",
    "RingStatus",
    "RingView",
    "current_ring",
    "ring_counters",
]

#: modules of the names that are not in ``model``
_HOMES = {"Ring": "ring", "RingFramework": "frameworks", "RingView": "view", "current_ring": "view"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    home = importlib.import_module(f"fiber._ring.{_HOMES.get(name, 'model')}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
