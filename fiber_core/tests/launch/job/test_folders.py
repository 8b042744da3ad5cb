"""Folders of jobs are private, and are swept once nobody owns them."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fiber.launch.job import folders


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_one_is_its_owners_alone_and_goes_with_it():
    folder = Path(folders.make("0123abcd"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folders.sweep() == []
    folders.remove(str(folder))
    assert not folder.exists()


def test_one_of_a_dead_supervisor_is_swept(place):
    program = "import os; from fiber.launch.job import folders; print(folders.make('0123abcd'))"
    environ = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )
    folder = done.stdout.strip()
    assert Path(folder, "supervisor").exists()
    assert folders.sweep() == [folder]
    assert not Path(folder).exists()


def test_an_empty_one_without_an_owner_is_swept_once_it_is_old(place):
    made = place / "fiber-0123abcd-empty"
    made.mkdir()
    assert folders.sweep() == []
    os.utime(made, (0, 0))
    assert folders.sweep() == [str(made)]


def test_what_is_not_one_is_left_alone(place):
    mine = place / "fiber-0123abcd-mine"
    mine.mkdir()
    (mine / "file").touch()
    os.utime(mine, (0, 0))
    (place / "fiber-something").mkdir()
    (place / "other").mkdir()
    assert folders.sweep() == []
    assert len(list(place.iterdir())) == 3
