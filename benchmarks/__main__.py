"""``python -m benchmarks``: measure, print the table, write JSON and a plot."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import contenders, machine, report, rows
from benchmarks.measure import measure
from benchmarks.model import TINY, Sizes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add(
        "--bars",
        action="store_true",
        help="exit code 1 where a bar is not met",
    )
    add("--full", action="store_true", help="other frameworks too, and then the curves")
    add("--rows", nargs="+", choices=rows.NAMES, default=rows.NAMES, metavar="NAME", help=_NAMES)
    add("--rounds", type=int, default=5, help="rounds of which the median counts (default: 5)")
    add("--json", type=Path, metavar="FILE", help="write all values as JSON")
    add("--plot", type=Path, metavar="FILE", help="draw a PNG; needs matplotlib")
    add("--out", type=Path, default=Path("docs/images"), help="where --full puts the curves")
    add("--tiny", action="store_true", help="do so little that only the code is tested")
    given = parser.parse_args()
    if given.bars and given.full:
        parser.error(
            "--bars and --full exclude each other: other frameworks disturb what is judged"
        )
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    return given


_NAMES = f"only these of {', '.join(rows.NAMES)}"


def main() -> int:
    given = arguments()
    # into a file, the table is as wide as it needs to be
    console = Console() if sys.stdout.isatty() else Console(width=120)
    sizes = TINY if given.tiny else Sizes()
    others = contenders.installed() if given.full else []
    about = {**machine.describe(), "load_before": machine.load()}
    results = dict(measure(given.rows, others, sizes, given.rounds, report.say))
    about["load_after"] = machine.load()
    report.show(results, about, given.rounds, console)
    if given.json:
        report.write(results, about, given.rounds, given.json)
    if given.plot:
        from benchmarks import plot

        caption = f"{about['cpus']} CPUs, Python {about['python']}, medians of {given.rounds}"
        plot.draw(results, caption, given.plot)
    if given.full:
        from benchmarks.curves.__main__ import make_all
        from benchmarks.curves.settings import Settings

        make_all(Settings(rounds=given.rounds, others=True, tiny=given.tiny), given.out)
    missed = [one for one in report.verdicts(results) if one.met is False]
    return 1 if given.bars and missed else 0


if __name__ == "__main__":
    sys.exit(main())
