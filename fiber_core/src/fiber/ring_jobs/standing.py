"""How a ring of a command stands, whether its owner runs, has ended, or was killed."""

from __future__ import annotations

import time
from typing import Any

from fiber.exceptions import FiberError
from fiber.ring_jobs.control import ask
from fiber.ring_jobs.records import Record

__all__ = ["is_over", "standing", "tell"]

_LOST = "OwnerLost"


def standing(record: Record) -> dict[str, Any]:
    """The status of a ring as JSON has it, with ``name`` and ``backend``."""
    about = record.about()
    more = {"name": record.name, "backend": about.get("backend", "")}
    is_alive = record.is_alive
    found = record.status()
    if is_alive and not is_over(found):
        try:
            found = ask(record.door, "status")
        except FiberError:
            # it ends just now, or begins
            found = record.status()
    elif not is_alive and not is_over(found):
        found = _lost(found)
        record.write(found)
    return {"phase": "starting", **found, **more}


def is_over(status: dict[str, Any]) -> bool:
    """True for a status that will not change any more."""
    return status.get("phase") in ("succeeded", "failed")


def tell(record: Record, word: str) -> None:
    """Ask a ring's owner for something.

    Raises:
        FiberError: the ring is over, or refuses.
    """
    if is_over(standing(record)):
        msg = f"{record.name} has ended; fiber ring status {record.name} says how"
        raise FiberError(msg)
    ask(record.door, word)


def _lost(status: dict[str, Any]) -> dict[str, Any]:
    """A ring whose owner was killed: its members end with their leases, and it is over."""
    now = time.time()
    why = "the process that owned it was killed; its members end with their leases"
    failed = {"kind": "Failed", "is_true": True, "reason": _LOST, "message": why, "time": now}
    ended = {"is_true": False, "reason": _LOST, "message": why, "time": now}
    conditions = [
        {**one, **ended} if one["is_true"] and one["kind"] != "Created" else one
        for one in status.get("conditions", ())
    ]
    return {
        **status,
        "phase": "failed",
        "up": 0,
        "starting": 0,
        "completion_time": now,
        "failure": {"reason": _LOST, "message": why},
        "conditions": [*conditions, failed],
        "events": [
            *status.get("events", ()),
            {"time": now, "reason": _LOST, "message": why},
        ],
    }
