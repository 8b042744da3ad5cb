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


def collect(feed, run_id="r"):
    events = feed.events(run_id)
    feed.close()
    return [(one.id, status.state) for one, status in events]


def test_a_stream_begins_with_what_is(feed):
    feed.publish(job(), PENDING)
    feed.publish(job(), RUNNING)

    assert collect(feed) == [("a", JobState.RUNNING)]


def test_changes_follow_in_their_order_and_going_back_is_dropped(feed):
    events = feed.events("r")
    for status in (PENDING, RUNNING, PENDING, RUNNING, ENDED, RUNNING, ENDED):
        feed.publish(job(), status)
    feed.close()

    assert [status for _, status in events] == [PENDING, RUNNING, ENDED]


def test_statuses_go_to_their_own_runs_subscribers(feed):
    feed.publish(job("b", "other"), RUNNING)

    assert collect(feed) == []


def test_each_end_is_reported_once():
    ends = []
    feed = Feed(ends.append)
    feed.publish(job(), ENDED)
    feed.publish(job(), ENDED)

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
