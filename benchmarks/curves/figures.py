"""What the figures have in common; matplotlib is imported when one is drawn."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import contenders
from benchmarks.model import BASELINE, OURS

_STYLES = {
    OURS: {"color": "tab:blue", "marker": "o"},
    BASELINE: {"color": "tab:orange", "marker": "s"},
    # matplotlib's own cycle begins with the two above
    **{
        who: {"color": f"C{number}", "marker": "."}
        for number, who in enumerate(contenders.OTHERS, start=2)
    },
}


def style(who: str) -> dict[str, Any]:
    """Of one contender's line, the same in every figure."""
    return {"lw": 1.5, "ms": 4, **_STYLES.get(who, {"marker": "."})}


@contextlib.contextmanager
def figure(path: Path, title: str, data: Mapping[str, Any], parts: int = 1) -> Iterator[Any]:
    """Axes to draw on, one or several side by side; the file is written in the end."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn, axes = plt.subplots(1, parts, figsize=(3 + 3.5 * parts, 4.2), layout="constrained")
    yield axes
    for one in [axes] if parts == 1 else axes:
        one.grid(visible=True, which="major", color="0.9")
        one.yaxis.set_major_formatter("{x:,.10g}")
        # between two powers of ten there is no other tick to read
        low, high = one.get_ylim()
        one.yaxis.set_minor_formatter("{x:g}" if high < 10 * low else "")
        one.tick_params(which="both", labelsize=8)
    about = data.get("machine", {})
    drawn.suptitle(title, fontsize=10)
    if about:
        load = about["load_before"][0]
        drawn.supxlabel(
            f"{about['cpus']} CPUs ({about['cpu']}), Python {about['python']}, load {load} before",
            fontsize=7,
            color="0.4",
        )
    drawn.savefig(path, dpi=150)
    plt.close(drawn)


def plain_ticks(axis: Any, values: Sequence[float]) -> None:
    """Ticks at the values themselves, as numbers that people read."""
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_formatter("")
    axis.set_ticks(list(values), minor=False)
    axis.set_ticks([], minor=True)
    axis.set_tick_params(labelsize=8)
