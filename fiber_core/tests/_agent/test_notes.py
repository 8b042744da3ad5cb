"""What a process notes is there after its end."""

import os
from pathlib import Path

import pytest

from fiber._agent import rundir
from fiber._agent.rundir import Notes, collect_notes


def test_what_was_noted_is_collected_once(tmp_path):
    mine = Notes(tmp_path)
    first, second = mine.take(), mine.take()
    mine.page[second] = 5
    mine.page[first] = 1
    mine.free(first)

    assert collect_notes(str(tmp_path), os.getpid()) == bytes([0, 5])
    assert collect_notes(str(tmp_path), os.getpid()) is None
    assert list(tmp_path.iterdir()) == []


def test_slots_are_used_again_late_and_there_may_be_none(monkeypatch):
    monkeypatch.setattr(rundir, "SLOTS", 3)
    mine = Notes(None)
    assert [mine.take() for _ in range(2)] == [0, 1]
    mine.free(0)

    assert [mine.take() for _ in range(3)] == [2, 0, -1]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to(__file__)])
def test_what_is_no_page_is_not_waited_for(tmp_path: Path, make):
    make(tmp_path / "1.notes")

    assert not collect_notes(str(tmp_path), 1)
