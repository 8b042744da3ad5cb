"""What is kept of rings of commands: a folder for each, until it is deleted.

How a ring of a command stands, whether its owner runs, has ended, or was killed.

What is counted of this user's rings of commands, across programs and after they are deleted.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fiber._base import values
from fiber._ring.command_rings.control import ask
from fiber._ring.counters import RingCounters
from fiber._ring.model import RingStatus
from fiber.backend_parts.liveness import (
    Claim,
    Liveness,
    Owner,
    liveness_of,
    owner_of,
    remove_claimed,
)
from fiber.exceptions import FiberError

__all__ = [
    "Record",
    "count",
    "described",
    "find",
    "is_over",
    "records",
    "standing",
    "state_folder",
    "tell",
    "to_prometheus",
    "totals",
]

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_ABOUT, _STATUS, _LOG, _ERRORS = "ring.json", "status.json", "log", "errors"
#: of the rings that this process owns
_claims: dict[Path, Claim] = {}


@values.frozen
class Record:
    """The folder of one ring."""

    path: Path

    @property
    def name(self) -> str:
        """The ring's name."""
        return self.path.name

    @property
    def door(self) -> str:
        """Where its coordinator listens, while there is one."""
        return str(self.about().get("door", ""))

    @property
    def log(self) -> Path:
        """What its ranks wrote, a line each: rank, host and text with tabs between them."""
        return self.path / _LOG

    @property
    def errors(self) -> Path:
        """What its owner wrote to its standard errors, where it has no terminal for them."""
        return self.path / _ERRORS

    @property
    def liveness(self) -> Liveness:
        """Whether its owner lives: the process that began it, or the one left with it."""
        return liveness_of(self.path)

    @property
    def owner(self) -> Owner | None:
        """That process, as it was written down."""
        return owner_of(self.path)

    @property
    def is_expired(self) -> bool:
        """True where it is over for longer than it was to be kept."""
        ttl, ended = self.about().get("ttl"), self.status().get("completion_time")
        return ttl is not None and ended is not None and time.time() >= ended + ttl

    def about(self) -> dict[str, Any]:
        """Who began it, with what."""
        return _read(self.path / _ABOUT)

    def status(self) -> dict[str, Any]:
        """What was written of it last."""
        return _read(self.path / _STATUS)

    def write(self, status: dict[str, Any]) -> None:
        """Keep how it stands; whole or not at all, and not where it was deleted meanwhile."""
        with contextlib.suppress(FileNotFoundError):
            _write(self.path / _STATUS, status)

    def remove(self) -> None:
        """Forget it."""
        remove_claimed(self.path)
        claim = _claims.pop(self.path, None)
        if claim is not None:
            claim.release()

    def owned(self, **more: Any) -> None:
        """This process is its owner from now on; ``more`` is kept with who began it."""
        if self.path in _claims:
            # begun by this process, or by the one that it was forked from
            _claims[self.path].rewrite()
        else:
            _claims[self.path] = Claim(self.path)
        _write(self.path / _ABOUT, {**self.about(), "pid": os.getpid(), **more})

    @classmethod
    def begin(cls, name: str, argv: tuple[str, ...], ttl: float | None = None) -> Record:
        """Make the folder of a ring that begins here.

        Args:
            name: of the ring.
            argv: what its ranks run.
            ttl: seconds after its end for which it is kept; None until it is deleted.

        Raises:
            FiberError: the name will not do, or a ring of that name is kept.
        """
        if not _NAME.fullmatch(name):
            msg = f"{name!r} is no name for a ring: write small letters, digits, dots and hyphens"
            raise FiberError(msg)
        record = cls(_root() / name)
        if record.is_expired:
            record.remove()
        try:
            record.path.mkdir(mode=0o700)
        except FileExistsError:
            msg = f"a ring {name!r} is there already; fiber ring delete {name}, or name another one"
            raise FiberError(msg) from None
        former = _claims.pop(record.path, None)
        if former is not None:
            # of one that another process has deleted
            former.release()
        record.owned(argv=list(argv), ttl=ttl)
        return record


def records() -> Iterator[Record]:
    """All that are kept, by name; those whose time to live is over go now."""
    for path in sorted(_root().iterdir()):
        record = Record(path)
        if record.is_expired:
            record.remove()
        elif (path / _ABOUT).exists():
            yield record


def find(name: str) -> Record:
    """The record of a ring.

    Raises:
        FiberError: there is none of that name.
    """
    for record in records():
        if record.name == name:
            return record
    known = ", ".join(record.name for record in records()) or "none"
    msg = f"no ring is called {name!r}; there are: {known}"
    raise FiberError(msg)


def described(status: RingStatus) -> dict[str, Any]:
    """A ring's status as JSON has it."""
    if status.failure is not None:
        # what was raised is for programs
        status = values.evolve(status, failure=values.evolve(status.failure, error=None))
    found: dict[str, Any] = _plain(status)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (str, int, float, type(None))):
        return value
    # a value of ours
    return {name: _plain(item) for name, item in values.asdict(value).items()}


def _root() -> Path:
    root = state_folder() / "rings"
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root


def state_folder() -> Path:
    """Where this user's state of Fiber is kept."""
    import platformdirs

    return platformdirs.user_state_path("fiber")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, data: dict[str, Any]) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, default=str))
    fresh.replace(path)


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
