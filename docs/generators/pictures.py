"""The pictures of a program that is watched; run it to draw them anew from a run, in half a minute.

It starts ``watched.py`` on this machine, kills one of its workers, and looks at it as ``fiber top``, the
progress bar and the dashboard do. The trace of that run is what ``fiber trace summary`` and the timeline
show. Needs matplotlib, a Chromium, and ``fiber-core[dashboard]``.

python docs/generators/pictures.py
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from fiber._watch import progress
from fiber.cli import top, trace
from fiber.hookspecs import hookimpl
from fiber.testing.fakes import FakeProvider
from fiber.watching import Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
PROGRAM = Path(__file__).parent / "watched.py"
FIBER = Path(sys.executable).with_name("fiber")
#: seconds between two looks at the run, at which look a worker is killed, and which one is drawn
INTERVAL, KILLED, DRAWN = 0.4, 6, 12
#: legible on the light and the dark pages of GitHub and of the documentation
THEME = TerminalTheme(
    (31, 35, 40),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (177, 186, 196),
    ],
)
#: rich's own format, without the font that it would fetch
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width }}
.{unique_id}-title {{ font-size: 18px; font-family: system-ui, sans-serif }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def terminal(shown: RenderableType, title: str, width: int) -> str:
    """Draw what a terminal of so many columns shows, as SVG."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(
            record=True, width=width, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        console.print(shown)
        return console.export_svg(title=title, theme=THEME, code_format=FRAME, unique_id="fiber")


def bar(now: Progress) -> RenderableType:
    """Return the progress bar of a map."""
    bars = progress._Bars()
    try:
        bars.update(bars.begin(now.function), now)
        return Group(*bars._progress.get_renderables())
    finally:
        bars._progress.stop()


def timeline(axes: Axes, events: Iterable[dict[str, Any]]) -> None:
    """Draw the rows of a trace: who ran what when, and who died."""
    events = list(events)
    rows = {
        event["tid"]: event["args"]["name"].partition(" ")[0]
        for event in events
        if event["name"] == "thread_name" and event["tid"]
    }
    # by the number in the name: rows are numbered in the order of their first tasks
    ordered = sorted(rows, key=lambda row: int(rows[row].rpartition("-")[2]))
    places = {row: place for place, row in enumerate(ordered)}
    for row, place in places.items():
        tasks = [event for event in events if event.get("ph") == "X" and event["tid"] == row]
        spans = [(task["ts"] / 1e6, task["dur"] / 1e6) for task in tasks]
        axes.broken_barh(spans, (place - 0.4, 0.8), color="tab:blue", edgecolor="white", lw=0.6)
    for kind, sign, colour, text in (
        ("death", "X", "tab:red", "a worker died"),
        ("failed", "v", "tab:orange", "a task failed"),
    ):
        found = [event for event in events if event.get("args", {}).get("kind") == kind]
        at = [event["ts"] / 1e6 for event in found]
        # what concerns the pool stands above the workers
        of = [places.get(event["tid"], -1) for event in found]
        axes.plot(at, of, sign, color=colour, markersize=9, markeredgecolor="white", label=text)
    axes.set_yticks(range(-1, len(rows)), ["the pool", *(rows[row] for row in ordered)])
    axes.set_xlabel("seconds since the program began")
    axes.invert_yaxis()
    axes.margins(x=0.01)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


@hookimpl
def fiber_resource_providers() -> Sequence[FakeProvider]:
    """Offer accelerators, one fewer than the program has workers."""
    return [FakeProvider(7, "accelerator")]


@contextlib.contextmanager
def running(scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the program with its accelerators; its trace is in the scratch folder."""
    info = scratch / "fiber_pictures-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: fiber-pictures\nVersion: 0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[fiber]\npictures = pictures\n", encoding="utf-8")
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(scratch), str(PROGRAM.parent)]),
        "FIBER_BACKEND": "local",
        "FIBER_TRACE": str(scratch / "out.json"),
    }
    with subprocess.Popen(
        [sys.executable, PROGRAM],
        env=environ,
        cwd=scratch,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            yield program
        finally:
            program.kill()


@contextlib.contextmanager
def dashboard(run: str) -> Iterator[Any]:
    """Open the dashboard of a run; yields the browser that shows it."""
    # what tests look at the page with
    sys.path.append(str(ROOT / "tests" / "support"))
    from browser import Browser

    command = [str(FIBER), "dashboard", "--listen", "127.0.0.1:0", run]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server,
        Browser(1200, 1350) as browser,
    ):
        try:
            assert server.stderr is not None
            browser.open(re.findall(r"http://\S+?(?=;)", server.stderr.readline())[0])
            yield browser
        finally:
            server.terminate()


def watch(program: subprocess.Popen[str]) -> tuple[RenderableType, Progress]:
    """Look at the run until it is drawn; return what ``fiber top`` shows then, and how far it is."""
    assert program.stdin is not None
    assert program.stdout is not None
    lines = (json.loads(line) for line in program.stdout)
    run = next(lines)["run"]
    with contextlib.closing(top.Board(run)) as board, dashboard(run) as page:
        print(file=program.stdin, flush=True)
        for look in range(DRAWN + 1):
            board.look()
            if look == KILLED:
                busy = [worker for _, worker in board.workers() if worker["running"]]
                os.kill(min(busy, key=lambda one: one["seconds"])["pid"], signal.SIGKILL)
            due = time.monotonic() + INTERVAL
            for line in lines:
                now = Progress(**line["progress"])
                if time.monotonic() >= due:
                    break
        page.send("Emulation.setScrollbarsHidden", hidden=True)
        page.evaluate("document.querySelector('button[data-seconds=\"60\"]').click()")
        page.screenshot(IMAGES / "dashboard.png")
        return top.render(board, top.View(), height=40, width=100), now


def main() -> None:
    """Draw all pictures."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with tempfile.TemporaryDirectory() as folder:
        with running(Path(folder)) as program:
            shown, now = watch(program)
            program.communicate()
        file = Path(folder) / "out.json"
        events = trace.read(file)
        said = subprocess.run(
            [FIBER, "trace", "summary", file.name],
            cwd=folder,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    write("top.svg", terminal(shown, "fiber top", 100))
    write("progress.svg", terminal(bar(now), "pool.map(…, progress=True)", 100))
    summary = Text(f"$ fiber trace summary {file.name}\n{said.rstrip()}")
    write("trace-summary.svg", terminal(summary, "fiber trace summary", 100))

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    timeline(axes, events)
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(IMAGES / "timeline.png", dpi=150)


def write(name: str, text: str) -> None:
    """Write a picture."""
    (IMAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
