"""What is said of workers that wait, decided without a clock."""

import pytest

from fiber._workers.state import PATIENCE, REPORT_AGAIN, Places
from fiber.model import JobState, JobStatus

FULL = "0/1 nodes are available: 1 Insufficient cpu."
RUNNING = JobStatus(state=JobState.RUNNING)


def waits(words=FULL):
    return JobStatus(state=JobState.PENDING, message=words)


@pytest.fixture
def places():
    return Places()


def test_a_worker_that_waits_for_long_is_told_of_once_in_the_platforms_words(places):
    places.observed("a", waits(), 100.0)
    assert places.due == 100.0 + PATIENCE
    assert places.next(places.due - 0.1, running=2, wanted=3) is None
    said = places.next(places.due, running=2, wanted=3)
    assert said == f"2 of 3 workers run, 1 waits for a place: {FULL}"
    places.observed("a", waits(), 200.0)
    assert places.due is None


def test_several_are_told_of_together(places):
    places.observed("a", waits(), 100.0)
    places.observed("b", waits("something else"), 101.0)
    said = places.next(places.due, running=1, wanted=3)
    assert said == f"1 of 3 workers run, 2 wait for a place: {FULL}"


def test_one_that_runs_soon_is_not_told_of(places):
    places.observed("a", waits(), 100.0)
    places.observed("a", RUNNING, 101.0)
    assert places.due is None


def test_one_that_waits_without_a_word_is_on_its_way(places):
    places.observed("a", JobStatus(state=JobState.PENDING), 100.0)
    assert places.due is None


def test_other_words_are_told_after_a_while(places):
    places.observed("a", waits(), 100.0)
    places.next(105.0, running=1, wanted=2)
    places.observed("a", waits("0/2 nodes are available"), 110.0)
    assert places.due == 105.0 + REPORT_AGAIN
    assert "0/2 nodes" in places.next(places.due, running=1, wanted=2)


def test_one_that_could_not_be_started_is_told_of_at_once(places):
    places.failed("worker-4: exceeded quota", 100.0)
    assert places.due == 100.0
    said = places.next(100.0, running=3, wanted=4)
    assert said == "3 of 4 workers run; another one was not started: worker-4: exceeded quota"
    places.failed("worker-4: exceeded quota", 104.0)
    assert places.due is None


def test_when_all_run_nothing_is_said_and_what_was_said_is_forgotten(places):
    places.failed("no", 100.0)
    places.next(100.0, running=1, wanted=2)
    places.failed("still no", 101.0)
    assert places.next(places.due, running=2, wanted=2) is None
    places.failed("no", 300.0)
    assert places.next(300.0, running=1, wanted=2) is not None


def test_a_job_of_which_nothing_was_said_ends_without_a_word(places):
    places.observed("a", RUNNING, 100.0)
    assert places.due is None
