"""The levels of the conformance kits."""

from __future__ import annotations

__all__ = ["LEVELS"]

#: what each level is about
LEVELS = {
    1: "metadata and lazy import",
    2: "lifecycle, with out-of-band checks",
    3: "the core API through the backend",
    4: "faults, with detection times",
    5: "scale, with counted engine calls",
    6: "any order of calls",
}
