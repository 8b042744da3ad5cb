"""How a ring of a command stands, whether its owner runs, has ended, or was killed."""

from __future__ import annotations

import time
from typing import Any

from fiber._ring.command_rings.control import ask
from fiber._ring.command_rings.records import Record
from fiber.backend_parts.liveness import Liveness
from fiber.exceptions import FiberError

__all__ = ["is_over", "standing", "tell"]

_LOST = "OwnerLost"


def standing(record: Record) -> dict[str, Any]:
    """The status of a ring as JSON has it, with ``name`` and ``backend``."""
    about = record.about()
    more = {"name": record.name, "backend": about.get("backend", "")}
    liveness = record.liveness
    found = record.status()
    if liveness is not Liveness.DEAD and not is_over(found):
        try:
            found = ask(record.door, "status")
        except FiberError:
            # it ends just now, begins, or is on a host whose sockets this one does not see
            found = record.status()
    elif not is_over(found):
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
    try:
        ask(record.door, word)
    except FiberError as error:
        owner = record.owner
        if record.liveness is not Liveness.UNKNOWN or owner is None:
            raise
        msg = (
            f"{record.name} belongs to process {owner.pid} of {owner.host}, and nothing seen from here "
            f"proves that it has ended; use fiber ring there, or remove {record.path}"
        )
        raise FiberError(msg) from error


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
