"""Results of single tests, from the JUnit files that pytest writes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from xml.etree import ElementTree as ET

__all__ = ["Result", "read"]


@dataclasses.dataclass(frozen=True)
class Result:
    """One test of one run."""

    name: str
    seconds: float
    failed: bool


def read(path: Path) -> list[Result]:
    """Results in a file; none where a run wrote none, because it could not begin or was killed."""
    try:
        root = ET.parse(path).getroot()  # noqa: S314 - our own pytest wrote it
    except (FileNotFoundError, ET.ParseError):
        return []
    found: dict[str, Result] = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        failed = case.find("failure") is not None or case.find("error") is not None
        # a test whose body and teardown both fail is there twice
        known = found.get(name)
        seconds = float(case.get("time") or 0) + (known.seconds if known else 0)
        found[name] = Result(name, seconds, failed or bool(known and known.failed))
    return list(found.values())
