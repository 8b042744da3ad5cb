"""How results are shown: tables for people, tabs for programs, JSON on request."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["age", "as_json", "table"]

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    styles: Mapping[str, str] | None = None,
) -> None:
    """Print rows: aligned on a terminal, else separated by tabs, without colours.

    Args:
        headers: one word a column, in capitals.
        rows: the cells.
        styles: rich style of a cell by its first word, for terminals.
    """
    plain = [[_CONTROL.sub(" ", cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, plain, styles or {})
        return
    for row in (headers, *plain):
        print("\t".join(row))


def _print_rich(
    headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Mapping[str, str]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        last = header == headers[-1]
        shown.add_column(header, no_wrap=True, overflow="ellipsis" if last else "fold")
    for row in rows:
        # Text, because a cell's brackets are no markup
        shown.add_row(*(Text(cell, style=styles.get(cell.partition(" ")[0], "")) for cell in row))
    Console(highlight=False).print(shown)


def as_json(value: Any) -> None:
    """Print a value of lists, dictionaries, texts and numbers as JSON."""
    print(json.dumps(value, indent=2, default=str))


def age(seconds: float) -> str:
    """A time span in its largest whole unit: ``45s``, ``3m``, ``2h``, ``9d``."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return "0s"
