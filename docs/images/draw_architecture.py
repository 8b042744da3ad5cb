#!/usr/bin/env python3
"""Draws architecture.svg, the picture in the README and in design/overview.md."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 610
INK, QUIET = "#24292f", "#57606a"
STYLE = f"""
  text {{ font-family: system-ui, sans-serif; font-size: 13px; fill: {INK}; text-anchor: middle }}
  .name {{ font-weight: 600; font-size: 14px }}
  .note {{ fill: {QUIET}; font-size: 12px }}
  .place {{ text-anchor: start; font-weight: 600; fill: {QUIET} }}
  .line {{ stroke: {QUIET}; stroke-width: 1.5; fill: none; marker-end: url(#tip) }}
"""


class Box(NamedTuple):
    """A part: its name, what it does in some lines, and where it is."""

    name: str
    lines: tuple[str, ...]
    left: int
    top: int
    width: int
    height: int
    fill: str = "#ffffff"

    def draw(self) -> str:
        """As SVG, its texts in the middle."""
        middle = self.left + self.width / 2
        first = self.top + self.height / 2 - 9 * len(self.lines) + 5
        texts = [text(self.name, middle, first, "name")]
        texts += [
            text(line, middle, first + 18 * number, "note")
            for number, line in enumerate(self.lines, 1)
        ]
        return rectangle(self.left, self.top, self.width, self.height, self.fill) + "".join(texts)


# the rows on the left are the layers of tests/support/layers.py: each imports only what is below it
BOXES = (
    Box("your code", ("Process, Pool, Queue, Lock, Manager, Ring …",), 40, 55, 420, 50, "#fff8e1"),
    Box("_ring", ("members, ranks,", "mpirun"), 40, 125, 130, 70),
    Box("_workers", ("keeps N workers", "alive"), 185, 125, 130, 70),
    Box("_objects", ("queues, locks,", "shared memory"), 330, 125, 130, 70),
    Box(
        "_runtime", ("what one process owns, made on first use, closed in order",), 40, 215, 420, 45
    ),
    Box("_launch", ("starts jobs, merges reports of their ends",), 40, 280, 420, 45),
    Box("_plugins, _config", ("backends by name, settings",), 40, 345, 203, 45),
    Box("_agent", ("forks, watches, ends",), 257, 345, 203, 45),
    Box("_tasks", ("the pending table: which worker runs what",), 40, 410, 420, 45),
    Box("_wire", ("frames, proofs, connections; _tunnel through streams",), 40, 475, 420, 45),
    Box("model, abc, hookspecs, exceptions, _base", ("values and contracts",), 40, 540, 420, 45),
    Box("backend", ("a plugin: this", "machine, or others"), 520, 262, 130, 80, "#e8f4fd"),
    Box("worker", ("_tasks: asks for work,", "runs it, answers"), 700, 410, 160, 75, "#fff8e1"),
    Box("worker", ("_objects: gets, puts,", "acquires, releases"), 700, 510, 160, 75, "#fff8e1"),
    Box("supervisor", ("_agent: runs none", "of your code"), 700, 262, 160, 80, "#e8f4fd"),
)

#: points of a line, its text and where that stands
ARROWS = (
    (((460, 292), (520, 292)), "start", (490, 284)),
    (((520, 318), (460, 318)), "status", (490, 336)),
    (((650, 292), (700, 292)), "", (0, 0)),
    (((700, 318), (650, 318)), "", (0, 0)),
    (((780, 342), (780, 410)), "fork, watch", (818, 380)),
    (((460, 487), (700, 437)), "tasks that were asked for", (575, 440)),
    (((700, 460), (460, 505)), "results", (575, 500)),
    (((460, 510), (700, 540)), "", (0, 0)),
    (((700, 562), (460, 516)), "requests, items, answers", (575, 566)),
)


def text(words: str, x: float, y: float, kind: str = "note") -> str:
    """Words around a point."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>\n'


def rectangle(left: int, top: int, width: int, height: int, fill: str, line: str = INK) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="8" '
        f'fill="{fill}" stroke="{line}"/>\n'
    )


def arrow(points: tuple[tuple[int, int], ...], words: str, at: tuple[int, int]) -> str:
    """A line with a tip, and its words."""
    line = " L ".join(f"{x} {y}" for x, y in points)
    return f'<path class="line" d="M {line}"/>\n' + (text(words, *at) if words else "")


def draw() -> str:
    """The picture as SVG."""
    title = (
        "The layers of the core, from your code down to values and contracts, and the jobs that a "
        "backend starts: a supervisor forks and watches workers, which talk to your program"
    )
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="{QUIET}"/></marker>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n',
        f"<title>{title}</title>\n<style>{STYLE}</style>\n<defs>{tip}</defs>\n",
        # white below all of it, for pages in dark mode
        rectangle(1, 1, WIDTH - 2, HEIGHT - 2, "#ffffff", "#ffffff"),
        rectangle(15, 15, 470, 585, "#f6f8fa", "#d0d7de"),
        rectangle(675, 222, 210, 378, "#f6f8fa", "#d0d7de"),
        text("your program", 30, 40, "place"),
        text("a job, on any host", 682, 246, "place"),
        *(box.draw() for box in BOXES),
        *(arrow(*one) for one in ARROWS),
        "</svg>\n",
    ]
    return "".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("architecture.svg").write_text(draw(), encoding="utf-8")
