"""What a run found: a table for people, JSON for programs."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import rows
from benchmarks.model import BASELINE, JUDGED, Bar, Metric, Values, Verdict, judge

Results = Mapping[str, Values]


def say(text: str) -> None:
    """Print what goes on, on stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def verdicts(results: Results) -> list[Verdict]:
    """Every metric against every bar of it."""
    return [
        verdict
        for name, values in results.items()
        for metric in rows.load(name).METRICS
        for verdict in judge(metric, values[metric.name])
    ]


def show(results: Results, machine: Mapping[str, Any], rounds: int, console: Console) -> None:
    """Print the table, what the figures depend on, and other frameworks where there are some."""
    table = Table(title=f"medians of {rounds} interleaved rounds", title_justify="left")
    for heading in ("row", "bar"):
        table.add_column(heading)
    for heading in ("fiber", BASELINE, "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("met")
    for one in verdicts(results):
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[one.met]
        ours, theirs = number(one.ours, one.metric), number(one.baseline, one.metric)
        table.add_row(one.metric.title, limit(one.metric, one.bar), ours, theirs, ratio, met)
    console.print(table)
    _show_others(results, console)
    software = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    console.print(
        f"multiprocessing: start method fork, and forkserver where the row says so\n"
        f"{machine['cpus']} CPUs ({machine['cpu']}), {machine['memory_gb']} GB, "
        f"{machine['system']}\nPython {machine['python']}, {software}\n"
        f"load average before {machine['load_before']}, after {machine['load_after']}",
        highlight=False,
        soft_wrap=True,
    )


def _show_others(results: Results, console: Console) -> None:
    names = {who: None for row in results.values() for by in row.values() for who in by}
    others = [who for who in names if who not in JUDGED]
    if not others:
        return
    table = Table(title="other frameworks, measured after", title_justify="left")
    table.add_column("row")
    for who in others:
        table.add_column(who, justify="right", no_wrap=True)
    for name, values in results.items():
        for metric in rows.load(name).METRICS:
            rounds = values[metric.name]
            cells = [
                number(statistics.median(rounds[who]) if who in rounds else None, metric)
                for who in others
            ]
            table.add_row(metric.title, *cells)
    console.print(table)


def write(results: Results, machine: Mapping[str, Any], rounds: int, path: Path) -> None:
    """Write everything, each round's value included, as JSON."""
    found = {
        metric.name: {
            "row": name,
            "title": metric.title,
            "unit": metric.unit,
            "rounds": values[metric.name],
            "medians": {who: statistics.median(each) for who, each in values[metric.name].items()},
            "bars": [
                {"limit": limit(metric, one.bar), "ratio": one.ratio, "met": one.met}
                for one in judge(metric, values[metric.name])
                if one.bar is not None
            ],
        }
        for name, values in results.items()
        for metric in rows.load(name).METRICS
    }
    text = json.dumps({"machine": machine, "rounds": rounds, "metrics": found}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")


def number(value: float | None, metric: Metric) -> str:
    """A value with its unit, in three or four digits."""
    if value is None:
        return "-"
    if value >= 1000 or value.is_integer():
        return f"{value:,.0f} {metric.unit}"
    return f"{value:.{3 if value < 10 else 1}f} {metric.unit}"


def limit(metric: Metric, bar: Bar | None) -> str:
    """A bar in words."""
    if bar is None:
        return ""
    sign = "≥" if metric.more else "≤"
    if bar.against is None:
        return f"{sign} {bar.limit:g}"
    return f"{sign} {bar.limit:g} x" + ("" if bar.against == BASELINE else f" {bar.against}")
