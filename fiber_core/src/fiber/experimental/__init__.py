"""Experimental API, which may still change: rings of equal members for distributed training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fiber._ring.framework import RingFramework
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
    )
    from fiber._ring.model import counters as ring_counters
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

_HOMES = {
    "Condition": "fiber._ring.model",
    "ConditionKind": "fiber._ring.model",
    "Failure": "fiber._ring.model",
    "Host": "fiber._ring.model",
    "Member": "fiber._ring.model",
    "Placement": "fiber._ring.model",
    "Ring": "fiber._ring.ring",
    "RingCounters": "fiber._ring.model",
    "RingError": "fiber._ring.model",
    "RingEvent": "fiber._ring.model",
    "RingFramework": "fiber._ring.framework",
    "RingPhase": "fiber._ring.model",
    "RingStatus": "fiber._ring.model",
    "RingView": "fiber._ring.view",
    "current_ring": "fiber._ring.view",
}


def __getattr__(name: str) -> Any:
    if name == "ring_counters":
        value = importlib.import_module("fiber._ring.model").counters
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
