"""Tables of commands, on terminals and elsewhere."""

import re
import sys

import pytest

from fiber.cli import show

HEADERS = ["ID", "STATE", "HOST", "AGE", "PROGRAM"]
PROGRAM = "python train.py --population 400 --generations 1000 --environment CartPole-v1 --seed 7"
ROWS = [
    ["0f3a1b2c", "failed EXIT(2)", "gpu-host-17", "3m", PROGRAM],
    ["9d8e7f60", "running", "localhost", "2h", "sleep 60"],
]


@pytest.fixture
def on_terminal(monkeypatch, capsys):
    """Prints the table on a terminal of some width; the lines without their styles."""

    def lines(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        show.table(HEADERS, ROWS)
        text = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        return text.splitlines()

    return lines


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_the_wide_column_gives_way_and_nothing_is_cut(on_terminal, columns):
    lines = on_terminal(columns)

    assert all(len(line) <= columns for line in lines)
    for cell in [*HEADERS, *ROWS[0][:-1], *ROWS[1]]:
        assert any(cell in line for line in lines), cell
    assert all(any(word in line for line in lines) for word in PROGRAM.split())


def test_a_row_is_one_line_where_there_is_room(on_terminal):
    assert len(on_terminal(160)) == 3
