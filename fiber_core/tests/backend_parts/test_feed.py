"""Statuses go forward, and each end is delivered once."""

import pytest

from fiber.backend_parts.feed import Feed
from fiber.model import Job, JobState, JobStatus

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


def test_waiting_for_an_end_returns_with_it(feed):
    feed.publish(job("a"), RUNNING)
    assert not feed.wait_ended("a", 0)
    assert feed.wait_ended("unknown", 0)

    feed.publish(job("a"), ENDED)

    assert feed.wait_ended("a", 0)
