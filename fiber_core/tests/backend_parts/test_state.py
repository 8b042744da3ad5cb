"""What a backend keeps without a clock of its own: statuses that go forward, and an outage."""

import pytest

from fiber.backend_parts.feed import Feed
from fiber.backend_parts.outage import Outage
from fiber.exceptions import BackendUnavailableError
from fiber.model import Job, JobState, JobStatus
from fiber.model.timing import Timing

# Statuses go forward, and each end is delivered once.


PENDING, RUNNING = JobStatus(state=JobState.PENDING), JobStatus(state=JobState.RUNNING)
ENDED = JobStatus(state=JobState.SUCCEEDED, exit_code=0)


def job(name="a", run_id="r"):
    return Job(id=name, name=name, run_id=run_id, backend="made-up")


@pytest.fixture
def feed():
    return Feed()


def test_a_stream_begins_with_what_is_in_its_run(feed):
    feed.publish(job(), PENDING)
    feed.publish(job(), RUNNING)
    feed.publish(job("b", "other"), RUNNING)
    events = feed.events("r")
    feed.close()

    assert list(events) == [(job(), RUNNING)]


def test_changes_follow_in_their_order_and_going_back_is_dropped_and_each_end_told_once():
    ends = []
    feed = Feed(ends.append)
    events = feed.events("r")
    feed.publish(job("b", "other"), RUNNING)
    for status in (PENDING, RUNNING, PENDING, RUNNING, ENDED, RUNNING, ENDED):
        feed.publish(job(), status)
    feed.close()

    assert list(events) == [(job(), PENDING), (job(), RUNNING), (job(), ENDED)]
    assert ends == [job()]


def test_jobs_that_were_seen_to_run_are_known(feed):
    feed.publish(job("a"), RUNNING)
    feed.publish(job("b"), PENDING)
    feed.publish(job("c"), ENDED)

    assert feed.running("r") == [job("a")]


def test_jobs_are_placed_once_none_is_pending(feed):
    feed.publish(job("a"), PENDING)
    assert not feed.wait_placed(["a", "unknown"], 0)

    feed.publish(job("a"), RUNNING)

    assert feed.wait_placed(["a", "unknown"], 0)


def test_ended_jobs_are_forgotten_in_the_end_and_others_when_left_to_their_platform(
    feed, monkeypatch
):
    monkeypatch.setattr("fiber.backend_parts.feed._REMEMBERED", 3)
    feed.add(job("left"), PENDING)
    for number in range(5):
        feed.publish(job(str(number)), ENDED)
    feed.forget("left")
    feed.forget("0")

    known = [name for name in ("left", *"01234") if feed.job(name) is not None]
    assert known == ["2", "3", "4"]
    assert feed.status("2") == ENDED


def test_waiting_for_an_end_returns_with_it(feed):
    feed.publish(job("a"), RUNNING)
    assert not feed.wait_ended("a", 0)
    assert feed.wait_ended("unknown", 0)

    feed.publish(job("a"), ENDED)

    assert feed.wait_ended("a", 0)


# How long a platform that cannot be asked is waited for, decided without a clock.


TIMING = Timing()
ERROR = BackendUnavailableError("the engine does not answer")


@pytest.fixture
def outage():
    return Outage()


def test_the_pauses_between_attempts_grow_to_a_bound(outage):
    pauses = []
    for _ in range(len(TIMING.outage_backoff) + 2):
        outage.failed(ERROR, 0.0, 10.0)
        pauses.append(outage.retry_at - 10.0)
    assert pauses == pytest.approx(
        [*TIMING.outage_backoff, TIMING.outage_backoff[-1], TIMING.outage_backoff[-1]]
    )


def test_it_is_over_when_the_platform_was_asked_for_long_enough(outage):
    outage.failed(ERROR, 0.0, 0.0)
    outage.failed(ERROR, 10.0, TIMING.outage - 0.1)
    assert not outage.is_over
    outage.failed(ERROR, TIMING.outage, TIMING.outage)
    assert outage.is_over
    assert outage.lasted == TIMING.outage


def test_an_attempt_that_waited_by_itself_has_used_up_as_much(outage):
    outage.failed(ERROR, 0.0, TIMING.outage)
    assert outage.is_over


def test_the_notice_comes_once_and_not_for_a_short_one(outage):
    outage.failed(ERROR, 0.0, 1.0)
    assert outage.notice(TIMING.outage_notice - 0.1) is None
    outage.failed(ERROR, 2.0, TIMING.outage_notice)
    assert outage.due == TIMING.outage_notice
    assert outage.notice(TIMING.outage_notice) == (
        "the platform cannot be asked, and is asked again for 60 s in all: the engine does not answer"
    )
    outage.failed(ERROR, 7.0, 8.0)
    assert outage.due is outage.notice(100.0) is None


def test_each_outage_is_one_of_its_own(outage):
    outage.failed(ERROR, 0.0, TIMING.outage)
    outage.notice(TIMING.outage)
    outage.ended()
    assert not outage.is_over
    outage.failed(ERROR, 100.0, 100.0)
    assert not outage.is_over
    assert outage.due == 100.0 + TIMING.outage_notice
    assert outage.retry_at == 100.0 + TIMING.outage_backoff[0]
