"""Tables of commands, on terminals and elsewhere, and the ages in them."""

import re
import sys

import pytest

from fiber.cli import output

HEADERS = ["ID", "STATE", "HOST", "AGE", "PROGRAM"]
PROGRAM = "python train.py --population 400 --generations 1000 --environment CartPole-v1 --seed 7"
ROWS = [
    ["0f3a1b2c", "failed EXIT(2)", "gpu-host-17", "3m", PROGRAM],
    ["9d8e7f60", "running", "localhost", "2h", "[bold]sleep[/bold] 60"],
]


@pytest.fixture
def on_terminal(monkeypatch, capsys):
    """Prints the table on a terminal of some width; the lines with their styles."""

    def lines(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        output.table(HEADERS, ROWS, styles={"failed": "red"})
        return capsys.readouterr().out.splitlines()

    return lines


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_wide_column_gives_way_and_nothing_is_cut(on_terminal, columns):
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in on_terminal(columns)]

    assert all(len(line) <= columns for line in lines)
    for cell in [*HEADERS, *ROWS[0][:-1], *ROWS[1]]:
        assert any(cell in line for line in lines), cell
    assert all(any(word in line for line in lines) for word in PROGRAM.split())


def test_a_row_is_one_line_where_there_is_room_with_its_columns_aligned_and_words_coloured(
    on_terminal,
):
    _, failed, running = on_terminal(160)

    assert "\x1b[31mfailed EXIT(2)" in failed
    # a cell's brackets are no markup
    assert "[bold]sleep[/bold] 60" in running
    assert running.index("localhost") > running.index("running") + len("failed EXIT(2)")


def test_without_a_terminal_cells_are_separated_by_tabs_and_nothing_else(capsys):
    output.table(
        ("JOB", "NAME"), [("ab12", "[bold]two words[/bold]"), ("x\ty", "1\n2\x1b[31m"), ("", "")]
    )

    assert capsys.readouterr().out == (
        "JOB\tNAME\nab12\t[bold]two words[/bold]\nx y\t1 2 [31m\n\t\n"
    )


@pytest.mark.parametrize(
    "seconds,told",
    [(0.2, "0s"), (59.9, "59s"), (61, "1m"), (7200, "2h"), (86400 * 9 + 5, "9d"), (-3, "0s")],
)
def test_an_age_is_shown_in_its_largest_unit(seconds, told):
    assert output.age(seconds) == told
