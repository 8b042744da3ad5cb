#!/usr/bin/env python3
"""Draws architecture.svg, the picture in the README and in design/overview.md."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 500
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


BOXES = (
    Box("your code", ("Pool.map, apply, imap …",), 40, 60, 200, 60, "#fff8e1"),
    Box("dispatch", ("batches by measured time",), 40, 175, 200, 60),
    Box(
        "pending table", ("who holds what, what to run", "again, what to give up"), 40, 290, 200, 80
    ),
    Box("fleet", ("keeps n workers alive",), 40, 420, 200, 50),
    Box("transport", ("unix sockets, or TLS", "between machines"), 330, 165, 150, 80),
    Box("backend", ("a plugin: this", "machine, or others"), 330, 405, 150, 80, "#e8f4fd"),
    Box("worker", ("asks for work,", "runs it, answers"), 690, 95, 170, 75, "#fff8e1"),
    Box("worker", ("asks for work,", "runs it, answers"), 690, 215, 170, 75, "#fff8e1"),
    Box(
        "supervisor", ("forks and watches,", "runs none of your code"), 690, 405, 170, 80, "#e8f4fd"
    ),
)

#: points of a line, its text and where that stands
ARROWS = (
    (((120, 120), (120, 175)), "tasks", (92, 152)),
    (((160, 175), (160, 120)), "results", (193, 152)),
    (((120, 235), (120, 290)), "events", (90, 267)),
    (((160, 290), (160, 235)), "instructions", (207, 267)),
    (((140, 420), (140, 370)), "worker lost", (185, 400)),
    (((240, 192), (330, 192)), "", (0, 0)),
    (((330, 218), (240, 218)), "", (0, 0)),
    (((480, 180), (690, 120)), "tasks it asked for", (575, 128)),
    (((690, 148), (480, 200)), "", (0, 0)),
    (((480, 212), (690, 240)), "", (0, 0)),
    (((690, 268), (480, 232)), "requests, results", (575, 278)),
    (((240, 435), (330, 435)), "start, kill", (285, 426)),
    (((330, 460), (240, 460)), "ended, why", (286, 478)),
    (((480, 430), (690, 430)), "jobs to start, to end", (585, 421)),
    (((690, 460), (480, 460)), "exit code, signal, last lines", (585, 479)),
    (((775, 405), (775, 290)), "fork", (797, 352)),
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
        "The way of a task: from your code over dispatch, pending table and transport to a worker "
        "and back; supervisors tell why a worker ended"
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
        rectangle(15, 15, 485, 478, "#f6f8fa", "#d0d7de"),
        rectangle(670, 15, 215, 478, "#f6f8fa", "#d0d7de"),
        text("your program", 30, 40, "place"),
        text("a job, here or elsewhere", 685, 40, "place"),
        *(box.draw() for box in BOXES),
        *(arrow(*one) for one in ARROWS),
        "</svg>\n",
    ]
    return "".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("architecture.svg").write_text(draw(), encoding="utf-8")
