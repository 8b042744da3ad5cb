"""The rows of the table, a module each."""

from __future__ import annotations

import importlib
from typing import cast

from benchmarks.model import Row

#: in the order in which they are printed
NAMES = (
    "overhead",
    "noop",
    "apply",
    "flood",
    "payload",
    "bandwidth",
    "tls",
    "closure",
    "broadcast",
    "queue",
    "pipe",
    "environments",
    "remote",
    "tunnel",
    "lock",
    "event",
    "manager",
    "process",
    "start",
    "scale",
    "growth",
    "strangers",
    "watched",
)


def load(name: str) -> Row:
    """The module of a row."""
    return cast("Row", importlib.import_module(f"benchmarks.rows.{name}"))
