"""Figures over a range: ``python -m benchmarks.curves``."""

from __future__ import annotations

import importlib
from typing import Any

#: in the order in which they are measured
NAMES = ("overhead", "scale", "evolution")


def load(name: str) -> Any:
    """The module of a figure; it has ``measure`` and ``draw``."""
    return importlib.import_module(f"benchmarks.curves.{name}")
