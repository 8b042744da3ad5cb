"""A picture of a run: for each metric, how much better than ``multiprocessing``."""

from __future__ import annotations

from pathlib import Path

from benchmarks.model import BASELINE
from benchmarks.report import Results, verdicts


def draw(results: Results, caption: str, path: Path) -> None:
    """Write a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # one bar a metric: the one beside the baseline
    shown = [
        one
        for one in verdicts(results)
        if one.ratio is not None and (one.bar is None or one.bar.against in {None, BASELINE})
    ]
    better = [one.ratio if one.metric.more else 1 / one.ratio for one in shown if one.ratio]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.4 * len(shown)), layout="constrained")
    places = range(len(shown))
    colours = ["tab:green" if value >= 1 else "tab:orange" for value in better]
    drawn = axes.barh(places, better, color=colours, height=0.6)
    axes.bar_label(drawn, [f" {value:.2f}" for value in better], fontsize=8)
    for place, one in zip(places, shown, strict=True):
        if one.bar is not None and one.bar.against == BASELINE:
            mark = one.bar.limit if one.metric.more else 1 / one.bar.limit
            axes.plot([mark, mark], [place - 0.4, place + 0.4], color="black", lw=2)
    axes.axvline(1, color="0.5", lw=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.margins(x=0.15)
    axes.set_yticks(places, [one.metric.title for one in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"times as good as {BASELINE}; the black mark is the bar", fontsize=8)
    axes.set_title(caption, fontsize=8, loc="left")
    figure.savefig(path, dpi=150)
    plt.close(figure)
