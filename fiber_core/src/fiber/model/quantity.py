"""Amounts of memory as people and Kubernetes write them."""

from __future__ import annotations

import math
import re

__all__ = ["megabytes"]

_FACTORS = {
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "E": 10**18,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
    "Ei": 2**60,
}
_QUANTITY = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<suffix>[a-zA-Z]{0,2}|[eE][+-]?\d{1,2})")
_MEBI = 2**20


def megabytes(value: int | str) -> int:
    """Read an amount of memory in MB (2**20 bytes), rounded up.

    Args:
        value: a positive whole number of MB, or a Kubernetes quantity with its unit: ``"4Gi"``,
            ``"512Mi"``, ``"2G"``, ``"1.5e9"``.

    Raises:
        TypeError: neither a whole number nor a text.
        ValueError: not positive, or no quantity; the text says what is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        msg = f"memory must be MB as a whole number or a quantity such as '4Gi', got {value!r}"
        raise TypeError(msg)
    if isinstance(value, int):
        if value <= 0:
            msg = f"memory must be positive, got {value!r}"
            raise ValueError(msg)
        return value
    match = _QUANTITY.fullmatch(value.strip())
    if match is None:
        raise ValueError(_wrong(value))
    suffix = match["suffix"]
    if suffix == "":
        msg = (
            f"memory {value!r} has no unit: write the number {value.strip()} itself for MB, "
            f"or a unit as in '{value.strip()}Mi'"
        )
        raise ValueError(msg)
    if suffix == "m":
        # Docker reads it as mega, Kubernetes as a thousandth
        number = match["number"]
        msg = f"memory {value!r} counts thousandths of a byte: write '{number}Mi'"
        raise ValueError(msg)
    from decimal import Decimal

    if suffix[0] in "eE" and len(suffix) > 1 and suffix != "Ei":
        size = Decimal(match["number"] + suffix) if suffix[1] in "+-0123456789" else None
    else:
        factor = _FACTORS.get(suffix)
        size = None if factor is None else Decimal(match["number"]) * factor
    if size is None:
        raise ValueError(_wrong(value))
    if size <= 0:
        msg = f"memory must be positive, got {value!r}"
        raise ValueError(msg)
    return math.ceil(size / _MEBI)


def _wrong(value: str) -> str:
    return (
        f"memory {value!r} is no quantity: allowed are a whole number of MB, or a text of a number "
        f"and one of {', '.join(_FACTORS)}"
    )
