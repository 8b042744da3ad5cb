"""Reports of workers that wait for a place, decided without a clock."""

import pytest

from fiber._workers.state import PendingReport
from fiber.model import JobState, JobStatus, Timing

FULL = "0/1 nodes are available: 1 Insufficient cpu."
TIMING = Timing()
RUNNING = JobStatus(state=JobState.RUNNING)


def waits(words=FULL):
    return JobStatus(state=JobState.PENDING, message=words)


@pytest.fixture
def report():
    return PendingReport(TIMING)


def test_a_worker_that_waits_for_long_is_reported_once_in_the_platforms_words(report):
    report.observed("a", waits(), 100.0)
    assert report.due == 100.0 + TIMING.wait_report
    assert report.next(report.due - 0.1, running=2, desired=3) is None
    text = report.next(report.due, running=2, desired=3)
    assert text == f"2 of 3 workers run, 1 waits for a place: {FULL}"
    report.observed("a", waits(), 200.0)
    assert report.due is None


def test_several_are_reported_together(report):
    report.observed("a", waits(), 100.0)
    report.observed("b", waits("something else"), 101.0)
    text = report.next(report.due, running=1, desired=3)
    assert text == f"1 of 3 workers run, 2 wait for a place: {FULL}"


def test_one_that_runs_soon_is_not_reported(report):
    report.observed("a", waits(), 100.0)
    report.observed("a", RUNNING, 101.0)
    assert report.due is None


def test_one_that_waits_without_a_message_is_on_its_way(report):
    report.observed("a", JobStatus(state=JobState.PENDING), 100.0)
    assert report.due is None


def test_another_text_is_reported_after_a_while(report):
    report.observed("a", waits(), 100.0)
    report.next(105.0, running=1, desired=2)
    report.observed("a", waits("0/2 nodes are available"), 110.0)
    assert report.due == 105.0 + TIMING.wait_report_again
    assert "0/2 nodes" in report.next(report.due, running=1, desired=2)


def test_one_that_could_not_be_started_is_reported_at_once(report):
    report.failed("worker-4: exceeded quota", 100.0)
    assert report.due == 100.0
    text = report.next(100.0, running=3, desired=4)
    assert text == "3 of 4 workers run; another one was not started: worker-4: exceeded quota"
    report.failed("worker-4: exceeded quota", 104.0)
    assert report.due is None


def test_when_all_run_nothing_is_reported_and_earlier_reports_are_forgotten(report):
    report.failed("no", 100.0)
    report.next(100.0, running=1, desired=2)
    report.failed("still no", 101.0)
    assert report.next(report.due, running=2, desired=2) is None
    report.failed("no", 300.0)
    assert report.next(300.0, running=1, desired=2) is not None


def test_a_job_that_was_not_reported_ends_without_a_report(report):
    report.observed("a", RUNNING, 100.0)
    assert report.due is None
