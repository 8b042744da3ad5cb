"""Tables are tabs for programs, aligned for people; JSON is JSON."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from fiber.cli import show

ROWS = [("ab12", "running", "two words"), ("cd34", "failed EXIT(7)", "[bold]x[/bold]")]


def test_without_a_terminal_cells_are_separated_by_tabs_and_nothing_else(capsys):
    show.table(("JOB", "STATE", "NAME"), ROWS, styles={"failed": "red"})

    assert capsys.readouterr().out == (
        "JOB\tSTATE\tNAME\nab12\trunning\ttwo words\ncd34\tfailed EXIT(7)\t[bold]x[/bold]\n"
    )


def test_a_cell_is_one_line_and_one_column(capsys):
    show.table(("A", "B"), [("x\ty", "1\n2\x1b[31m")])

    assert capsys.readouterr().out == "A\tB\nx y\t1 2 [31m\n"


def test_on_a_terminal_columns_are_aligned_and_words_coloured():
    code = (
        "from fiber.cli import show; "
        f"show.table(('JOB', 'STATE', 'NAME'), {ROWS!r}, styles={{'failed': 'red'}})"
    )
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    environ.pop("NO_COLOR", None)
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, env=environ) as process:
        os.close(theirs)
        text = b""
        try:
            while data := os.read(ours, 65536):
                text += data
        except OSError:
            # the other end of a terminal is closed by an error on Linux
            pass
        assert process.wait() == 0
    os.close(ours)

    lines = text.decode().splitlines()
    assert "\x1b[31mfailed EXIT(7)" in lines[2]
    # a cell's brackets are no markup
    assert "[bold]x[/bold]" in lines[2]
    assert lines[1].index("two words") > lines[1].index("running") + len("failed EXIT(7)")


def test_values_that_json_has_not_are_texts(capsys):
    show.as_json({"path": Path("/x"), "names": ("a", "b")})

    assert json.loads(capsys.readouterr().out) == {"path": "/x", "names": ["a", "b"]}


@pytest.mark.parametrize(
    "seconds,told",
    [(0.2, "0s"), (59.9, "59s"), (61, "1m"), (7200, "2h"), (86400 * 9 + 5, "9d"), (-3, "0s")],
)
def test_an_age_is_shown_in_its_largest_unit(seconds, told):
    assert show.age(seconds) == told
