"""Amounts as the cluster writes them; pure."""

from __future__ import annotations

import re

__all__ = ["read_quantity"]

_FACTORS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    "Ki": 2.0**10,
    "Mi": 2.0**20,
    "Gi": 2.0**30,
    "Ti": 2.0**40,
    "Pi": 2.0**50,
    "Ei": 2.0**60,
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+)(?:[eE]([+-]?[0-9]+)|([numkMGTPE]?i?))")


def read_quantity(text: str | float) -> float:
    """A quantity as a number.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or (match[3] or "") not in _FACTORS:
        msg = f"{text!r} is no quantity"
        raise ValueError(msg)
    number = float(match[1])
    return number * 10.0 ** int(match[2]) if match[2] else number * _FACTORS[match[3] or ""]
