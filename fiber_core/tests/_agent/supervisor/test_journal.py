"""The journal of a run: its readers know the run's jobs without the supervisor."""

import os
from pathlib import Path

import pytest

from fiber._agent.supervisor.journal import JOURNAL, Journal, read_journal
from fiber.model import JobState
from journal_world import SPEC, ended


def test_what_happened_is_read_back(journal, tmp_path):
    journal.submitted("a", SPEC, ("parent", 0), "host")
    journal.started("a", 0, os.getpid())
    journal.ended("a", ended(0, os.getpid(), 7))
    journal.ended("a", ended(1, None, 0))

    (job,) = read_journal(tmp_path).values()

    assert (job.id, job.name, job.run_id, job.parent) == ("a", "näme", "0badcafe", "parent")
    assert job.argv == ("prog", "two words")
    assert job.processes[0] == ended(0, os.getpid(), 7)
    status = job.status()
    assert (status.state, status.exit_code, status.host) == (JobState.FAILED, 7, "host")
    assert job.submitted <= job.ended


def test_no_secret_is_written_down(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")

    assert "secret" not in (tmp_path / JOURNAL).read_text()
    assert (tmp_path / JOURNAL).stat().st_mode & 0o077 == 0


def test_supervisors_of_one_run_share_a_journal(tmp_path, failures):
    journals = [Journal(str(tmp_path), failures.append) for _ in range(2)]
    descriptors = [journal.open() for journal in journals]
    for number in range(10):
        journals[number % 2].submitted(str(number), SPEC, None, "host")
    for descriptor in descriptors:
        os.close(descriptor)

    assert list(read_journal(tmp_path)) == [str(number) for number in range(10)]


def test_a_journal_that_cannot_be_opened_is_reported_once(tmp_path, failures):
    journal = Journal(str(tmp_path / "missing"), failures.append)

    assert journal.open() is None
    journal.submitted("a", SPEC, None, "host")

    assert len(failures) == 1
    assert "is incomplete from here" in failures[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_once(tmp_path, failures):
    (tmp_path / JOURNAL).symlink_to("/dev/full")
    journal = Journal(str(tmp_path), failures.append)
    descriptor = journal.open()
    journal.submitted("a", SPEC, None, "host")
    journal.started("a", 0, os.getpid())
    os.close(descriptor)

    assert len(failures) == 1
    assert "No space left" in failures[0]
