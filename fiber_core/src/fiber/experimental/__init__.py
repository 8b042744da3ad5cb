"""What may still change: rings of equal members for distributed training."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fiber.ring.counters import RingCounters
    from fiber.ring.counters import counters as ring_counters
    from fiber.ring.errors import RingError
    from fiber.ring.framework import RingFramework
    from fiber.ring.model import (
        Condition,
        ConditionKind,
        Failure,
        Host,
        Member,
        Placement,
        RingEvent,
        RingPhase,
        RingStatus,
    )
    from fiber.ring.ring import Ring
    from fiber.ring.view import RingView, current_ring

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
    "Condition": "fiber.ring.model",
    "ConditionKind": "fiber.ring.model",
    "Failure": "fiber.ring.model",
    "Host": "fiber.ring.model",
    "Member": "fiber.ring.model",
    "Placement": "fiber.ring.model",
    "Ring": "fiber.ring.ring",
    "RingCounters": "fiber.ring.counters",
    "RingError": "fiber.ring.errors",
    "RingEvent": "fiber.ring.model",
    "RingFramework": "fiber.ring.framework",
    "RingPhase": "fiber.ring.model",
    "RingStatus": "fiber.ring.model",
    "RingView": "fiber.ring.view",
    "current_ring": "fiber.ring.view",
}


def __getattr__(name: str) -> Any:
    if name == "ring_counters":
        value = importlib.import_module("fiber.ring.counters").counters
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
