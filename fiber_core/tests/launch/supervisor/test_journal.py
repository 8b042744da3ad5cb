"""The journal of a run: who reads it knows the run's jobs without asking anybody."""

import os
from pathlib import Path

import pytest

from fiber.launch.pids import start_time
from fiber.launch.supervisor.journal import JOURNAL, Journal, read_journal
from fiber.launch.supervisor.verdict import judge
from fiber.model import JobSpec, JobState, ProcessStatus, Reason, ReasonKind

SPEC = JobSpec(
    run_id="0badcafe",
    name="näme",
    argv=("prog", "two words"),
    processes=2,
    private=b"secret",
    env={"TOKEN": "secret"},
)


@pytest.fixture
def failures():
    return []


@pytest.fixture
def journal(tmp_path, failures):
    journal = Journal(str(tmp_path), failures.append)
    descriptor = journal.open()
    yield journal
    os.close(descriptor)


def ended(index, pid, code):
    verdict = judge(code << 8)
    return ProcessStatus(
        index=index,
        state=verdict.state,
        pid=pid,
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        message=verdict.message,
        log_tail=("last words",),
        peak_memory=5,
    )


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


def test_a_living_process_is_the_one_that_was_written_down(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")
    journal.started("a", 0, os.getpid())

    job = read_journal(tmp_path)["a"]

    assert job.living() == (os.getpid(),)
    assert job.status().state is JobState.RUNNING
    # the same number, begun at another time, is somebody else
    job.start_times[os.getpid()] = start_time(os.getpid()) + 1
    assert job.living() == ()


def test_what_was_not_said_to_end_was_lost_with_its_supervisor(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")
    journal.started("a", 0, os.getpid())
    job = read_journal(tmp_path)["a"]
    job.supervisor = (os.getpid(), 0.0)

    status = job.status()

    assert status.state is JobState.FAILED
    assert status.reason == Reason(ReasonKind.NODE_LOST)
    assert [p.exit_code for p in status.processes] == [-9, -9]


def test_a_job_is_told_as_users_know_it(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")
    journal.started("a", 1, 4711)

    job = read_journal(tmp_path)["a"].job("local", "/run")

    assert (job.id, job.name, job.run_id, job.backend) == ("a", "näme", "0badcafe", "local")
    assert job.data == {"pids": [4711], "host": "host", "directory": "/run"}
    assert job.argv == SPEC.argv


def test_no_secret_is_written_down(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")

    assert "secret" not in (tmp_path / JOURNAL).read_text()
    assert (tmp_path / JOURNAL).stat().st_mode & 0o077 == 0


def test_lines_that_make_no_sense_are_passed_over(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"event":"submitted","jo\n[1]\n\xff\n{"event":"started","job":"a"}\n')
        file.write(b'{"event":"ended","job":"nobody","index":0}\n{"event":"new","job":"a"}\n')
    journal.submitted("b", SPEC, None, "host")

    assert list(read_journal(tmp_path)) == ["a", "b"]


def test_a_missing_journal_has_no_jobs(tmp_path):
    assert read_journal(tmp_path) == {}
    assert read_journal(tmp_path / "missing") == {}


def test_supervisors_of_one_run_share_a_journal(tmp_path, failures):
    journals = [Journal(str(tmp_path), failures.append) for _ in range(2)]
    descriptors = [journal.open() for journal in journals]
    for number in range(10):
        journals[number % 2].submitted(str(number), SPEC, None, "host")
    for descriptor in descriptors:
        os.close(descriptor)

    assert list(read_journal(tmp_path)) == [str(number) for number in range(10)]


def test_a_journal_that_cannot_be_opened_is_said_once(tmp_path, failures):
    journal = Journal(str(tmp_path / "missing"), failures.append)

    assert journal.open() is None
    journal.submitted("a", SPEC, None, "host")

    assert len(failures) == 1
    assert "is incomplete from here" in failures[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_said_once(tmp_path, failures):
    (tmp_path / JOURNAL).symlink_to("/dev/full")
    journal = Journal(str(tmp_path), failures.append)
    descriptor = journal.open()
    journal.submitted("a", SPEC, None, "host")
    journal.started("a", 0, os.getpid())
    os.close(descriptor)

    assert len(failures) == 1
    assert "No space left" in failures[0]
