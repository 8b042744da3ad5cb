"""The folder of a run is private to its owner, names it, and is swept when it has died."""

import os
import resource
import tempfile
from pathlib import Path

import pytest

import owners
from fiber._agent import rundir
from fiber.backend_parts.liveness import Liveness, liveness_of
from fiber.exceptions import FiberError


@pytest.fixture(autouse=True)
def runtime(monkeypatch, folder):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    return folder


BEGIN = """
import sys
from fiber._agent import rundir
print(rundir.create(sys.argv[1], "some", detached="detached" in sys.argv), flush=True)
"""


def left(run_id, *words):
    """Folder of a run whose program was killed."""
    with owners.running(BEGIN, run_id, *words, inside=False) as folder:
        pass
    return Path(folder)


class TestRoot:
    def test_it_is_in_the_users_runtime_folder_and_closed_to_others(self, runtime):
        assert rundir.run_root() == runtime / "fiber"
        assert rundir.run_root().stat().st_mode & 0o777 == 0o700

    def test_without_one_it_is_in_the_temporary_folder_whoever_took_its_name(
        self, runtime, monkeypatch
    ):
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr(tempfile, "tempdir", str(runtime))

        taken = runtime / f"fiber-{os.getuid()}"
        assert rundir.run_root() == taken
        # another user was faster: all commands agree upon another folder, and make one if need be
        monkeypatch.setenv("HOME", str(runtime / "home"))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        taken.rmdir()
        taken.symlink_to(runtime)
        for _ in range(2):
            root = rundir.run_root()
            assert (root.parent, root.stat().st_mode & 0o777) == (runtime, 0o700)
            assert rundir.run_root() == root != taken
            root.rmdir()
        monkeypatch.setenv("HOME", os.devnull)
        with pytest.raises(FiberError, match="is not a folder of user .*XDG_RUNTIME_DIR"):
            rundir.run_root()

    def test_a_folder_too_long_for_sockets_is_not_used(self, runtime, monkeypatch):
        long = runtime / ("x" * 80)
        long.mkdir()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))

        room = rundir.MAX_SOCKET_PATH - len(os.fsencode(rundir.run_root()))

        assert room >= len("/12345678/1234567890123456.sock")

    def test_a_runtime_folder_that_is_a_file_is_not_used(self, runtime, monkeypatch):
        (runtime / "file").touch()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "file"))
        monkeypatch.setattr(tempfile, "tempdir", str(runtime))

        assert rundir.run_root().parent == runtime

    def test_where_none_is_writable_the_error_says_what_helps(self, runtime, monkeypatch):
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(runtime / "none")])

        with pytest.raises(FiberError, match="No usable temporary.*none.*set XDG_RUNTIME_DIR"):
            rundir.run_root()

    def test_one_that_others_may_enter_is_refused_with_the_cure(self, runtime):
        rundir.run_root().chmod(0o750)

        with pytest.raises(FiberError, match="chmod 700"):
            rundir.run_root()

    def test_what_is_no_folder_of_ours_is_refused(self, runtime):
        (runtime / "elsewhere").mkdir()
        (runtime / "fiber").symlink_to(runtime / "elsewhere")

        with pytest.raises(FiberError, match="is not a folder of user"):
            rundir.run_root()


class TestRuns:
    def test_a_run_names_its_owner(self):
        folder = rundir.create("0000000a", "some")

        description = rundir.describe(folder)

        assert folder.stat().st_mode & 0o777 == 0o700
        assert description["run_id"] == "0000000a"
        assert (description["pid"], description["backend"]) == (os.getpid(), "some")
        assert liveness_of(folder) is Liveness.ALIVE

    def test_on_a_full_disk_the_error_says_what_helps_and_nothing_is_left(self, runtime):
        rundir.run_root()
        # no file may be longer, as on a disk without room
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        try:
            with pytest.raises(FiberError, match="0000000a cannot be .*room.*set XDG_RUNTIME_DIR"):
                rundir.create("0000000a", "some")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert list(rundir.run_root().iterdir()) == []

    def test_runs_come_oldest_first(self):
        folders = [rundir.create(run, "some") for run in ("0000000b", "0000000a")]

        assert [folder for folder, _ in rundir.runs()] == folders

    def test_a_folder_without_a_description_is_no_run(self):
        (rundir.run_root() / "0000000a").mkdir()
        (rundir.run_root() / "0000000b").mkdir()
        (rundir.run_root() / "0000000b" / "run.json").write_text("[1")

        assert list(rundir.runs()) == []

    def test_folders_of_its_processes_are_swept_with_it(self):
        run = left("0000000a")
        made = rundir.make_folder(run, "of-a-process-")
        assert (made.parent, made.stat().st_mode & 0o777) == (run, 0o700)

        rundir.sweep()

        assert not made.exists()

    @pytest.mark.parametrize("run", [None, "too long"])
    def test_without_a_run_with_room_for_sockets_they_are_in_the_temporary_folder(
        self, run, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        deep = tmp_path / ("x" * 40)
        deep.mkdir()

        assert rundir.make_folder(run and deep, "of-a-process-").parent == tmp_path


class TestSweeping:
    def test_what_a_dead_program_left_is_removed_when_the_next_run_begins(self):
        alive = rundir.create("0000000b", "some")
        dead = left("0000000a")

        rundir.create("0000000c", "some")

        assert (dead.exists(), alive.exists()) == (False, True)

    @pytest.mark.parametrize(
        "words, missing, swept",
        [
            # one that was removed in part goes, and one whose owner is not known stays
            ((), "run.json", True),
            ((), "owner", False),
            # a detached one outlives its program
            (("detached",), None, False),
        ],
    )
    def test_one_goes_whose_program_is_known_to_have_died(self, words, missing, swept):
        folder = left("0000000a", *words)
        if missing:
            (folder / missing).unlink()

        assert rundir.sweep() == ["0000000a"] * swept
        assert folder.exists() != swept
