"""Ended runs are removed and printed; others are left alone."""

import json

import pytest

import owners
from fiber._agent import rundir
from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo
from fiber.testing import FakeBackend, programs


def orphan(run_id, **changes):
    """A run whose program has died."""
    # not by rundir.create(), which sweeps the orphans before
    folder = rundir.run_root() / run_id
    folder.mkdir(mode=0o700)
    owners.owned_by(folder, owners.DEAD)
    description = {"backend": "fake", "pid": owners.DEAD.pid, **changes}
    (folder / "run.json").write_text(json.dumps(description))
    return folder


def test_a_run_whose_program_has_died_is_removed_with_its_jobs(fiber, submit, platform):
    folder = orphan("00000001")
    submit()
    pid = rundir.describe(folder)["pid"]

    lines = fiber.lines("gc")

    assert lines == [f"Removed run: 00000001 (its program, process {pid}, has died)"]
    assert not folder.exists()
    assert platform.jobs() == []


def test_a_run_whose_program_lives_is_left_alone(fiber, submit, platform):
    folder = rundir.create("00000001", "fake")
    job = submit(programs.exit_with(0))
    assert platform.find(job).ended.wait(30)

    assert fiber.lines("gc") == []
    assert folder.exists()


@pytest.mark.parametrize("detached", [False, True])
def test_a_run_whose_program_cannot_be_checked_is_kept_and_reported(
    fiber, submit, platform, detached
):
    folder = orphan("00000001", detached=detached)
    job = submit(programs.exit_with(0), detached=detached)
    assert platform.find(job).ended.wait(30)
    owners.owned_by(folder, owners.REMOTE)

    done = fiber("gc")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "run 00000001 is kept: nothing seen from here proves that its program, process 17 of far," in done.stderr  # fmt: skip
    assert folder.exists()
    assert len(platform.jobs()) == 1


def test_a_detached_run_is_removed_once_its_jobs_have_ended(fiber, submit, platform):
    folder = orphan("00000001", detached=True)
    job = submit(detached=True)

    assert fiber.lines("gc") == []

    platform.find(job).kill()
    assert platform.find(job).ended.wait(30)

    assert fiber.lines("gc") == ["Removed run: 00000001 (its jobs have ended)"]
    assert not folder.exists()
    assert platform.jobs() == []


def test_a_detached_run_that_is_being_begun_is_left_alone(fiber):
    folder = rundir.create("00000001", "fake", detached=True)

    assert fiber.lines("gc") == []
    assert folder.exists()


def test_a_dry_run_only_prints(fiber):
    folder = orphan("00000001")

    (line,) = fiber.lines("gc", "--dry-run")

    assert line.startswith("Would remove run: 00000001 (")
    assert folder.exists()


def test_a_run_that_cannot_be_collected_is_kept_and_the_others_are_not(fiber):
    foreign, ours = orphan("00000001", backend="elsewhere"), orphan("00000002")

    done = fiber("gc")

    assert done.exit_code == 1
    assert "run 00000001 is kept: unknown backend 'elsewhere'" in done.stderr
    assert done.stdout.startswith("Removed run: 00000002")
    assert (foreign.exists(), ours.exists()) == (True, False)


def test_runs_of_one_backend_can_be_collected_alone(fiber, platform):
    class Other:
        @hookimpl
        def fiber_backends(self):
            return [BackendInfo(name="other", load=lambda context: None)]

    fiber.extra.append(Other())
    other, ours = orphan("00000001", backend="other"), orphan("00000002")

    fiber.lines("gc", "--backend", "fake")

    assert (other.exists(), ours.exists()) == (True, False)


class TestRunsOfOtherHosts:
    @pytest.fixture
    def swept(self, monkeypatch):
        """Calls of a backend that finds the remains of a run of another host."""
        calls = []

        def sweep(_, *, dry_run=False):
            calls.append(dry_run)
            return ["0000000f"]

        monkeypatch.setattr(FakeBackend, "sweep", sweep)
        return calls

    @pytest.mark.parametrize(
        "words, told",
        [((), "Removed run: 0000000f ("), (("--dry-run",), "Would remove run: 0000000f (")],
    )
    def test_they_are_removed_where_the_backend_can_tell(self, fiber, swept, words, told):
        assert fiber.lines("gc", *words) == [told + "whoever began it is gone)"]
        assert swept == [bool(words)]

    def test_one_that_began_on_this_host_is_printed_once(self, fiber, swept):
        orphan("0000000f")

        (line,) = fiber.lines("gc", "--dry-run")

        assert "has died" in line
