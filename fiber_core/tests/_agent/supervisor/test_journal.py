"""The journal of a run: its readers know the run's jobs without the supervisor."""

import os
from pathlib import Path

import attrs
import pytest

from fiber._agent.supervisor.jobs import report_exit
from fiber._agent.supervisor.journal import JOURNAL, Journal, JournalReader, read_ids, read_journal
from fiber.backend_parts.liveness import Owner, start_time
from fiber.model import JobSpec, JobState, ProcessStatus, Reason, ReasonKind

SPEC = JobSpec(
    run_id="0badcafe",
    name="näme",
    argv=("prog", "two words"),
    processes=2,
    private=b"secret",
    env={"TOKEN": "secret"},
)


def ended(index, pid, code):
    """The status of a process that exited with ``code``."""
    report = report_exit(code << 8)
    return ProcessStatus(
        index=index,
        state=report.state,
        pid=pid,
        reason=report.reason,
        exit_code=report.exit_code,
        message=report.message,
        log_tail=("last words",),
        peak_memory=5,
    )


def running(journal, folder):
    """Job of which one process of two is this one."""
    journal.submitted("a", SPEC, None, "host")
    journal.started("a", 0, os.getpid())
    return read_journal(folder)["a"]


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


FULL = pytest.param(
    "/dev/full",
    "No space left",
    marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full"),
)


@pytest.mark.parametrize("target, words", [("missing/journal", "is incomplete from here"), FULL])
def test_one_that_cannot_be_written_is_reported_once(tmp_path, failures, target, words):
    (tmp_path / JOURNAL).symlink_to(target)
    journal = Journal(str(tmp_path), failures.append)
    descriptor = journal.open()
    journal.submitted("a", SPEC, None, "host")
    journal.started("a", 0, os.getpid())
    if descriptor is not None:
        os.close(descriptor)

    (failure,) = failures
    assert words in failure


def test_a_living_process_is_the_one_that_was_written_down(journal, tmp_path):
    job = running(journal, tmp_path)

    assert job.living() == (os.getpid(),)
    assert job.status().state is JobState.RUNNING
    # the same number, begun at another time, is somebody else
    job.start_times[os.getpid()] = start_time(os.getpid()) + 1
    assert job.living() == ()


def test_processes_without_an_end_are_lost_with_their_supervisor(journal, tmp_path):
    job = running(journal, tmp_path)
    job.supervisor = Owner.current()._replace(started=0.0)

    status = job.status()

    assert status.state is JobState.FAILED
    assert status.reason == Reason(ReasonKind.NODE_LOST)
    assert [p.exit_code for p in status.processes] == [-9, -9]


def test_of_a_supervisor_in_another_pid_namespace_or_on_another_host_nothing_is_known(
    journal, tmp_path
):
    job = running(journal, tmp_path)
    job.supervisor = job.supervisor._replace(place="elsewhere/boot/1/1")

    assert job.status().state is JobState.UNKNOWN
    # its number is another process's here
    assert job.living() == ()


def test_an_end_that_was_written_down_is_one_wherever_it_was(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")
    for index in range(SPEC.processes):
        journal.ended("a", ended(index, None, 0))
    job = read_journal(tmp_path)["a"]
    job.supervisor = job.supervisor._replace(place="elsewhere/boot/1/1")

    assert job.status().state is JobState.SUCCEEDED


def test_lines_that_make_no_sense_are_passed_over(journal, tmp_path):
    journal.submitted("a", SPEC, None, "host")
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"event":"submitted","jo\n[1]\n\xff\n{"event":"started","job":"a"}\n')
        file.write(b'{"event":"ended","job":"nobody","index":0}\n{"event":"new","job":"a"}\n')
    journal.submitted("b", SPEC, None, "host")

    assert list(read_journal(tmp_path)) == ["a", "b"]


def test_a_history_reads_what_was_appended(journal, tmp_path):
    assert read_journal(tmp_path / "missing") == {}
    history = JournalReader(tmp_path)
    assert history.jobs() == {}
    journal.submitted("a", SPEC, None, "host")
    assert list(history.jobs()) == ["a"]

    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"event":"submitted","jo')
    assert list(history.jobs()) == ["a"]
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'b":1}\n')
    journal.submitted("b", SPEC, None, "host")
    journal.ended("b", ended(0, None, 3))

    assert list(history.jobs()) == ["a", "b"]
    assert history.jobs()["b"].processes[0].exit_code == 3


def test_a_history_begins_anew_with_a_new_file(journal, tmp_path):
    history = JournalReader(tmp_path)
    journal.submitted("a", SPEC, None, "host")
    assert list(history.jobs()) == ["a"]

    (tmp_path / JOURNAL).unlink()
    assert history.jobs() == {}
    other = Journal(str(tmp_path), print)
    descriptor = other.open()
    other.submitted("b", SPEC, None, "host")
    os.close(descriptor)

    assert list(history.jobs()) == ["b"]


def test_ids_are_read_whatever_names_hold(journal, tmp_path):
    journal.submitted("a1", attrs.evolve(SPEC, name='\n{"event":"submitted","job":"x"'), None, "h")
    journal.submitted("b2", SPEC, None, "host")
    journal.started("c3", 0, 1)

    assert read_ids(tmp_path) == {"a1", "b2"}
    assert read_ids(tmp_path / "missing") == set()
