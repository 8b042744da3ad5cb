"""What is kept of rings of commands: a folder for each, until it is deleted."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fiber._base import values
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

__all__ = ["Record", "described", "find", "records", "state_folder"]

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
