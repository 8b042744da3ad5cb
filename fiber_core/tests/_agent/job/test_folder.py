"""Folders of jobs are private, and are swept once their owners are proven to be dead."""

import os
import tempfile
from pathlib import Path

import pytest

import owners
from fiber._agent.job import server as folders
from fiber._agent.job.server import JobFolder

MAKE = """
from fiber._agent.job.server import JobFolder
folder = JobFolder('0123abcd')
print(folder.path, flush=True)
"""


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def environ(place):
    return {**os.environ, "TMPDIR": str(place)}


def test_one_is_its_owners_alone_and_goes_with_it():
    folder = JobFolder("0123abcd")
    path = Path(folder.path)
    (path / "code").mkdir()
    (path / "code" / "file").touch()
    assert path.stat().st_mode & 0o777 == 0o700
    assert folders.sweep() == []
    folder.remove()
    assert not path.exists()


@pytest.mark.parametrize("inside", [False, True], ids=["here", "in another pid namespace"])
def test_one_is_swept_when_its_supervisor_has_died_and_not_before(environ, inside):
    if inside:
        owners.need()
    with owners.running(MAKE, env=environ, inside=inside) as folder:
        (Path(folder) / "code").mkdir()
        assert folders.sweep() == []
        assert Path(folder).exists()
    assert folders.sweep() == [folder]
    assert not Path(folder).exists()


def test_folders_without_a_claim_are_left_alone(place):
    for name in ("fiber-0123abcd-mine", "fiber-something", "other"):
        (place / name).mkdir()
        os.utime(place / name, (0, 0))
    (place / "fiber-0123abcd-file").touch()
    (place / "fiber-0123abcd-link").symlink_to(place / "other")
    assert folders.sweep() == []
    assert len(list(place.iterdir())) == 5
