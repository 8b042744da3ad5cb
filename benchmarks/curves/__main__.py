"""``python -m benchmarks.curves``: measure the figures of the documentation, or draw them again."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import curves, machine
from benchmarks.curves.settings import Settings
from benchmarks.report import say


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__)
    add = parser.add_argument
    add("names", nargs="*", choices=[[], *curves.NAMES], default=[], metavar="NAME", help=_NAMES)
    add("--out", type=Path, default=Path("docs/images"), help="folder of JSON and PNG files")
    add("--draw", action="store_true", help="measure nothing, draw from the JSON files")
    add("--others", action="store_true", help="other frameworks too, where they are installed")
    add("--rounds", type=int, default=5, help="rounds of which the median counts (default: 5)")
    add("--seconds", type=float, default=60.0, help=_SECONDS)
    add("--sizes", type=int, nargs="+", default=(), help="only so many workers or connections")
    add("--tiny", action="store_true", help="do so little that only the code is tested")
    given = parser.parse_args()
    settings = Settings(
        rounds=given.rounds,
        seconds=given.seconds,
        sizes=tuple(given.sizes),
        others=given.others,
        tiny=given.tiny,
    )
    make_all(settings, given.out, given.names or curves.NAMES, measured=given.draw)
    return 0


_NAMES = f"only these of {', '.join(curves.NAMES)}"
_SECONDS = (
    "seconds that the generations of one point may take on ideal workers; fewer are done where "
    "all take longer (default: 60; 2600 for all of them everywhere)"
)


def make_all(
    settings: Settings, folder: Path, names: Sequence[str] = curves.NAMES, *, measured: bool = False
) -> None:
    """Measure figures, unless they are, write their JSON and draw them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        curve, file = curves.load(name), folder / f"bench-{name}.json"
        if not measured:
            about = {**machine.describe(), "load_before": machine.load()}
            data = curve.measure(settings, say)
            data["machine"] = {**about, "load_after": machine.load()}
            file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        if importlib.util.find_spec("matplotlib") is None:
            say(f"{file}; without matplotlib nothing is drawn")
            continue
        curve.draw(json.loads(file.read_text(encoding="utf-8")), file.with_suffix(".png"))
        say(f"{name}: {file.with_suffix('.png')}")


if __name__ == "__main__":
    sys.exit(main())
