"""Wait statuses become states, reasons and sentences, those of processes the status of a job.

The journal of a run has them: its readers know the run's jobs without the supervisor.
"""

import json
import os
import resource
import signal
from pathlib import Path

import attrs
import pytest

from fiber._agent.supervisor.jobs import (
    JobTable,
    combine,
    ended_before_start,
    report_exit,
    signal_name,
)
from fiber._agent.supervisor.journal import (
    JOURNAL,
    Journal,
    JournaledJob,
    JournalReader,
    read_ids,
    read_journal,
)
from fiber.backend_parts.liveness import Owner, start_time
from fiber.model import JobSpec, JobState, ProcessStatus, Reason, ReasonKind


@pytest.fixture
def table():
    return JobTable("here")


@pytest.fixture
def begun(table):
    """A table with a job whose one process runs."""
    table.add("a", owner=None, processes=1)
    table.started("a", 0, 100)
    return table


def test_a_job_is_pending_until_a_process_is_started_and_says_what_it_waits_for(table):
    table.add("a", owner=None, processes=2, waiting="waits for a device")
    status = table.status("a")
    assert (status.state, status.message) == (JobState.PENDING, "waits for a device")
    assert status.reason == Reason(ReasonKind.UNSCHEDULABLE)

    table.started("a", 0, 100)

    status = table.status("a")
    assert (status.state, status.host, status.message) == (JobState.RUNNING, "here", "")
    assert [p.pid for p in status.processes] == [100, None]


def test_stopping_and_going_on_are_news_once(begun):
    assert begun.stopped(100, 19) is not None
    assert begun.stopped(100, 19) is None
    status = begun.status("a")
    assert (status.state, status.reason) == (JobState.SUSPENDED, Reason(ReasonKind.SIGNAL, 19))
    assert "SIGSTOP" in status.message

    assert begun.continued(100) is not None
    assert begun.continued(100) is None
    assert begun.status("a").state is JobState.RUNNING
    assert begun.status("a").reason is None


def test_nothing_follows_the_end(begun):
    begun.ended(100, report_exit(0))

    assert begun.stopped(100, 19) is None
    assert begun.ended(100, report_exit(9)) is None
    assert begun.status("a").state is JobState.SUCCEEDED


def test_what_was_not_started_never_will_be(table):
    table.add("a", owner=None, processes=2, waiting="waits")
    table.started("a", 0, 100)

    table.abandoned("a", ended_before_start(9))

    first, second = table.status("a").processes
    assert first.state is JobState.RUNNING
    assert (second.state, second.exit_code) == (JobState.FAILED, -9)


def test_a_forgotten_job_leaves_nothing(begun):
    begun.forget("a")

    assert "a" not in begun
    assert begun.find(100) is None
    assert list(begun) == []


def process(index, state, code=None):
    reason = None if code is None else Reason(ReasonKind.EXIT, code)
    return ProcessStatus(index=index, state=state, exit_code=code, reason=reason)


def test_a_job_fails_with_any_of_its_processes_and_has_the_first_ones_code():
    status = combine(
        [
            process(0, JobState.SUCCEEDED, 0),
            process(1, JobState.FAILED, 5),
            process(2, JobState.FAILED, 6),
        ],
        host=None,
    )

    assert status.state is JobState.FAILED
    assert status.reason == Reason(ReasonKind.EXIT, 5)
    assert status.exit_code == 0


def test_a_job_is_suspended_when_all_that_live_are():
    stopped, running = process(0, JobState.SUSPENDED), process(1, JobState.RUNNING)
    ended = process(2, JobState.SUCCEEDED, 0)

    assert combine([stopped, running], host=None).state is JobState.RUNNING
    assert combine([stopped, ended], host=None).state is JobState.SUSPENDED


MB = 1 << 20
EXIT, SIGNAL, OOM, START = ReasonKind.EXIT, ReasonKind.SIGNAL, ReasonKind.OOM, ReasonKind.START


@pytest.mark.parametrize(
    "wait_status, known, reason, message",
    [
        (0, {}, Reason(EXIT, 0), "ended"),
        (1 << 8, {}, Reason(EXIT, 1), "ended with exit code 1"),
        (137 << 8, {}, Reason(EXIT, 137), "ended with exit code 137"),
        (15, {}, Reason(SIGNAL, 15), "killed by SIGTERM"),
        (6 | 0x80, {}, Reason(SIGNAL, 6), "killed by SIGABRT, a core was dumped"),
        (9, {"requested": True}, Reason(SIGNAL, 9), "killed by SIGKILL, as asked"),
        (
            9,
            {"peak_memory": 300 * MB},
            Reason(SIGNAL, 9),
            "killed by SIGKILL, cause unknown; its largest resident size was 300 MB",
        ),
        (
            9,
            {"peak_memory": 300 * MB, "memory_limit": 400 * MB},
            Reason(SIGNAL, 9),
            "killed by SIGKILL, cause unknown; its largest resident size was 300 MB of 400 MB",
        ),
        (
            9,
            {"peak_memory": 99 * MB, "memory_limit": 100 * MB, "out_of_memory": True},
            Reason(OOM),
            "out of memory: its limit is 100 MB, its peak was 99 MB",
        ),
        # what was never started has the system's words
        (127 << 8, {"failure": "cannot run 'x'"}, Reason(START), "cannot run 'x'"),
    ],
)
def test_a_wait_status_has_a_reason_a_code_and_a_sentence(wait_status, known, reason, message):
    report = report_exit(wait_status, **known)

    assert report.state is (JobState.FAILED if wait_status else JobState.SUCCEEDED)
    assert (report.reason, report.message) == (reason, message)
    assert report.exit_code == os.waitstatus_to_exitcode(wait_status)


def test_signals_without_a_name_have_a_number():
    assert signal_name(signal.SIGRTMIN + 3) == f"signal {signal.SIGRTMIN + 3}"


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
    told = JournaledJob.from_events(json.loads(json.dumps(job.events())))
    assert (told.processes, told.submission()) == (job.processes, job.submission())


def test_words_of_another_version_are_unknown_and_no_error(journal, tmp_path):
    submitted, changed, _ = running(journal, tmp_path).events()
    changed |= {"state": "dreaming", "reason": "tired"}

    process = JournaledJob.from_events([submitted, changed]).processes[0]

    assert process.state is JobState.UNKNOWN
    assert process.reason == Reason(ReasonKind.UNKNOWN)
    assert process.pid == os.getpid()
    with pytest.raises(ValueError, match="makes no sense"):
        JournaledJob.from_events([changed])


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


def test_one_that_may_not_become_larger_says_why(tmp_path, failures):
    journal = Journal(str(tmp_path), failures.append)
    descriptor = journal.open()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        journal.submitted("a", SPEC, None, "host")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        os.close(descriptor)
    (failure,) = failures
    assert "File too large" in failure
    assert "`ulimit -f`" in failure


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
