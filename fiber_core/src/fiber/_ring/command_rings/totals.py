"""What is counted of this user's rings of commands, across programs and after they are deleted."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable, Mapping
from typing import Any

from fiber._base import values
from fiber._ring.command_rings.records import state_folder
from fiber._ring.counters import RingCounters

__all__ = ["count", "to_prometheus", "totals"]

_FILE = "rings.json"
#: what is told of each ring that is kept, by its key in a status
_GAUGES = {
    "wanted": "members that it wants",
    "starting": "members that are being started",
    "up": "members that are up",
    "restarts": "times that all ranks were started again since one failed",
    "changes": "times that members came or went while ranks went on",
    "start_time": "when it was started or resumed, in seconds since the epoch",
    "completion_time": "when it was over, in seconds since the epoch",
}


def count(**more: int) -> None:
    """Add to what was counted: ``created``, ``succeeded``, ``failed``, ``restarts``."""
    path = state_folder() / _FILE
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = _parsed(file.read() if not file.seek(0) else "")
        known = values.asdict(found)
        file.truncate(0)
        file.write(json.dumps({name: known[name] + more.get(name, 0) for name in known}))


def totals() -> RingCounters:
    """What was counted so far."""
    try:
        return _parsed((state_folder() / _FILE).read_text())
    except OSError:
        return RingCounters()


def to_prometheus(rings: Iterable[Mapping[str, Any]]) -> str:
    """The totals, and how each ring stands, in Prometheus' text format.

    Args:
        rings: statuses as JSON has them, with ``name`` and ``backend``.
    """
    rings = list(rings)
    lines = [totals().to_prometheus().rstrip("\n")]
    lines += ["# HELP fiber_ring_info What is kept of a ring.", "# TYPE fiber_ring_info gauge"]
    for ring in rings:
        labels = {name: str(ring.get(name, "")) for name in ("name", "backend", "phase")}
        lines.append(f"fiber_ring_info{_labels(labels)} 1")
    for key, about in _GAUGES.items():
        metric = f"fiber_ring_{key}" + ("_seconds" if key.endswith("_time") else "")
        lines += [f"# HELP {metric} {about[0].upper()}{about[1:]}.", f"# TYPE {metric} gauge"]
        lines += [
            f"{metric}{_labels({'name': str(ring.get('name', ''))})} {ring[key]}"
            for ring in rings
            if ring.get(key) is not None
        ]
    return "\n".join(lines) + "\n"


def _parsed(text: str) -> RingCounters:
    try:
        found = json.loads(text)
    except ValueError:
        return RingCounters()
    return RingCounters(**{name: int(found.get(name, 0)) for name in values.asdict(RingCounters())})


def _labels(found: Mapping[str, str]) -> str:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(text)}"' for name, text in found.items()) + "}"
