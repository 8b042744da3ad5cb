"""Five workers do one second's worth of sleeps, in shorter and shorter tasks."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks import contenders
from benchmarks.curves import figures
from benchmarks.curves.settings import Settings
from benchmarks.measure import Say
from benchmarks.measure import measure as measure_rows
from benchmarks.model import FLOOR, TINY, Sizes
from benchmarks.rows.overhead import PARTS


def measure(settings: Settings, say: Say) -> dict[str, Any]:
    """The rounds of the row of this name, with other frameworks where they are installed."""
    others = contenders.installed() if settings.others else []
    sizes = TINY if settings.tiny else Sizes()
    rounds = settings.some(settings.rounds, 1)
    ((_, values),) = measure_rows(["overhead"], others, sizes, rounds, say)
    return {
        "ideal": sizes.overhead,
        "tasks": {name: sizes.overhead / parts for name, parts in PARTS.items()},
        "seconds": {name: values[f"overhead-{name}"] for name in PARTS},
    }


def draw(data: dict[str, Any], path: Path) -> None:
    """Seconds by the length of a task, a line for each framework."""
    names = list(data["tasks"])
    contenders_ = {who: None for name in names for who in data["seconds"][name]}
    with figures.figure(path, "1 s of sleeps on five workers, cut into tasks", data) as axes:
        for who in contenders_:
            measured = [name for name in names if data["seconds"][name].get(who)]
            axes.plot(
                [1000 * data["tasks"][name] for name in measured],
                [statistics.median(data["seconds"][name][who]) for name in measured],
                label="bare processes" if who == FLOOR else who,
                **({"color": "0.5", "ls": ":"} if who == FLOOR else figures.style(who)),
            )
        axes.axhline(data["ideal"], color="black", ls="--", lw=1, label="ideal")
        axes.set(xscale="log", yscale="log", xlabel="milliseconds of a task", ylabel="seconds")
        axes.invert_xaxis()
        figures.plain_ticks(axes.xaxis, [1000 * value for value in data["tasks"].values()])
        axes.legend(fontsize=8)
