"""Kubernetes quantities: ``500m``, ``4Gi``, ``1e3``; their numbers and their one right spelling."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["PATTERN", "canonical", "parse"]

#: as messages cite it
PATTERN = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_WELL_FORMED = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([eE][+-]?\d+)|([numkMGTPE]i?|Ki)?)")
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def parse(text: object) -> Fraction:
    """The number of a quantity; ValueError where it is none."""
    return _parts(text)[0]


def canonical(text: object) -> str:
    """The spelling that the API server answers with; ValueError where it is no quantity."""
    number, unit = _parts(text)
    if unit in _BINARY and number.denominator == 1 and abs(number) >= 1024:
        power = max((p for p in _BINARY.values() if number % (1 << p) == 0), default=0)
        name = next((name for name, p in _BINARY.items() if p == power), "")
        return f"{int(number) >> power}{name}"
    if unit in _BINARY:
        unit = ""
    for name, power in sorted(_DECIMAL.items(), key=lambda item: -item[1]):
        scaled = number / Fraction(10) ** power
        if scaled.denominator == 1 and (scaled != 0 or power == 0):
            if unit == "e" and power:
                return f"{scaled}e{power}"
            return f"{scaled}{name}"
    return f"{-(-number * 10**9 // 1)}n"


def _parts(text: object) -> tuple[Fraction, str]:
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        msg = "quantities must match the regular expression"
        raise ValueError(msg)  # noqa: TRY004 - the text that parses no better is one too
    match = _WELL_FORMED.fullmatch(str(text))
    if match is None or match[4] in {"ni", "ui", "mi", "ki"}:
        rough = re.fullmatch(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*", str(text))
        msg = (
            "unable to parse quantity's suffix"
            if rough
            else f"quantities must match the regular expression '{PATTERN}'"
        )
        raise ValueError(msg)
    number = Fraction(match[1] + match[2].rstrip("."))
    if match[3]:
        return number * Fraction(10) ** int(match[3][1:]), "e"
    unit = match[4] or ""
    if unit in _BINARY:
        return number * (1 << _BINARY[unit]), unit
    return number * Fraction(10) ** _DECIMAL[unit], unit
