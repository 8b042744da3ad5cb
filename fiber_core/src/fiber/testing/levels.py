"""Levels of the conformance kits.

Apart from ``kit.base``, so that the command can list them without pytest.
"""

from __future__ import annotations

__all__ = ["LEVELS"]

#: subject of each level
LEVELS = {
    1: "metadata and lazy import",
    2: "lifecycle, with out-of-band checks",
    3: "the core API through the backend",
    4: "faults, with detection times",
    5: "scale, with counted engine calls",
    6: "any order of calls",
}
