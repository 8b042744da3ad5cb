"""Folders of jobs are private, and are swept once their owners are proven to be dead."""

import os
import tempfile
from pathlib import Path

import pytest

import owners
from fiber._agent.job import folder as folders
from fiber._agent.job.folder import JobFolder
from fiber.backend_parts import liveness

MAKE = """
from fiber._agent.job.folder import JobFolder
folder = JobFolder('0123abcd')
print(folder.path, flush=True)
"""
SWEEP = "from fiber._agent.job import folder; print(folder.sweep(), flush=True)"


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


def test_a_job_in_another_pid_namespace_sweeps_none_of_ours(environ):
    owners.need()
    ours = JobFolder("0123abcd")
    with (
        owners.running(MAKE, env=environ) as theirs,
        owners.running(SWEEP, env=environ) as swept,
    ):
        assert swept == "[]"
        assert Path(theirs).exists()
    assert Path(ours.path).exists()
    ours.remove()


def test_one_on_a_shared_file_system_is_left_to_its_own_host(environ, monkeypatch):
    owners.need()
    shared = "from fiber.backend_parts import liveness\nliveness._is_local = lambda _: False\n"
    with owners.running(shared + MAKE, env=environ) as theirs:
        pass
    with owners.running(shared + MAKE, env=environ, inside=False) as ours:
        pass
    # no lock proves anything there, whatever this host takes the file system for
    assert folders.sweep() == [ours]
    assert Path(theirs).exists()
    monkeypatch.setattr(liveness, "_is_local", lambda _: False)
    assert folders.sweep() == []


def test_what_is_left_of_one_keeps_its_owners_name(environ, monkeypatch):
    with owners.running(MAKE, env=environ, inside=False) as folder:
        (Path(folder) / "code").mkdir()
    # a process of the job writes there still
    monkeypatch.setattr("shutil.rmtree", lambda *_, **__: None)
    assert folders.sweep() == []
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(Path(folder).parent))
    assert folders.sweep() == [folder]


def test_folders_without_a_claim_are_left_alone(place):
    for name in ("fiber-0123abcd-mine", "fiber-something", "other"):
        (place / name).mkdir()
        os.utime(place / name, (0, 0))
    (place / "fiber-0123abcd-file").touch()
    (place / "fiber-0123abcd-link").symlink_to(place / "other")
    assert folders.sweep() == []
    assert len(list(place.iterdir())) == 5
