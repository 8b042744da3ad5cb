"""The pictures of a program that is watched show what a terminal shows, and what is in a trace."""

import re
from xml.etree import ElementTree as ET

from rich.text import Text

import pictures
import require
from fiber.watching import Progress


def words(svg):
    """The words in a picture."""
    return " ".join("".join(ET.fromstring(svg).itertext()).split())


def row(number, name):
    return {"name": "thread_name", "ph": "M", "tid": number, "args": {"name": f"{name} on lab1"}}


def task(number, begin, seconds):
    return {"name": "work", "ph": "X", "tid": number, "ts": begin * 1e6, "dur": seconds * 1e6}


def mark(number, at, kind):
    return {"name": kind, "ph": "i", "tid": number, "ts": at * 1e6, "args": {"kind": kind}}


def test_what_a_terminal_shows_is_drawn_in_its_colours_and_nothing_is_fetched():
    svg = pictures.terminal(Text("waits for 1 gpu", "yellow"), "fiber top", 40)

    assert "fiber top waits for 1 gpu" in words(svg)
    (colour,) = re.findall(r'<text class="fiber-(r\d)"[^>]*>waits', svg)
    assert f".fiber-{colour} {{ fill: #e3b341" in svg
    assert re.findall(r"url\((?!#)|href|@import", svg) == []


def test_a_bar_says_how_far_a_map_is_and_what_is_missing():
    now = Progress(
        function="simulate",
        total=320,
        done=189,
        failed=1,
        elapsed=10.0,
        workers=7,
        wanted=8,
        waiting=1,
        reason="waits for 1 gpu",
        is_over=False,
    )

    shown = words(pictures.terminal(pictures.bar(now), "a map", 100))

    assert "189 of 320 done, 18.9/s, 6.9 s left, 1 failed" in shown
    assert "7 of 8 workers, 1 waits: waits for 1 gpu" in shown


def test_a_timeline_has_a_row_for_each_worker_and_marks_deaths_and_failures():
    require.need_module("matplotlib")
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    pictures.timeline(
        axes,
        [
            row(1, "PoolWorker-10"),
            row(2, "PoolWorker-9"),
            task(1, 0, 1),
            task(1, 1, 2),
            task(2, 0, 4),
            mark(1, 3, "death"),
            mark(0, 2, "failed"),
        ],
    )

    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["the pool", "PoolWorker-9", "PoolWorker-10"]
    assert sorted(len(bars.get_paths()) for bars in axes.collections) == [1, 2]
    marks = {line.get_label(): (*line.get_xdata(), *line.get_ydata()) for line in axes.lines}
    assert marks == {"a worker died": (3, 1), "a task failed": (2, -1)}
