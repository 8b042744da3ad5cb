"""Statuses reach every stream, once and in order; those of others are found by comparing journals."""

import threading

import pytest

from fiber.model import Job, JobState, JobStatus
from fiber_local.feed import StatusFeed
from fiber_local.follower import JournalFollower

RUNNING = JobStatus(state=JobState.RUNNING)
ENDED = JobStatus(state=JobState.FAILED, exit_code=1)


def job(name):
    return Job(id=name, name=name, run_id="0badcafe", backend="local")


@pytest.fixture
def feed():
    feed = StatusFeed(journal_check=0.01, remembered=3)
    yield feed
    feed.close()


def rest(events):
    return [(job.id, status.state) for job, status in events]


def test_what_was_comes_first_and_then_what_happens(feed):
    feed.add(job("a"), "0badcafe", "host")
    feed.publish("a", RUNNING)
    events = feed.events("0badcafe")
    feed.publish("a", ENDED)
    feed.close()

    assert rest(events) == [("a", JobState.RUNNING), ("a", JobState.FAILED)]


def test_nothing_follows_the_end(feed):
    events = feed.events("0badcafe")
    feed.add(job("a"), "0badcafe", "host")
    for status in (ENDED, ENDED, RUNNING):
        feed.publish("a", status)
    feed.close()

    assert rest(events) == [("a", JobState.FAILED)]


def test_runs_and_strangers_are_kept_apart(feed):
    events = feed.events("0badcafe")
    feed.add(job("a"), "another", "host")
    feed.publish("a", RUNNING)
    feed.publish("stranger", RUNNING)
    feed.close()

    assert rest(events) == []


def test_every_stream_gets_everything(feed):
    streams = [feed.events("0badcafe") for _ in range(3)]
    feed.add(job("a"), "0badcafe", "host")
    feed.publish("a", RUNNING)
    feed.close()

    assert [rest(events) for events in streams] == [[("a", JobState.RUNNING)]] * 3
    assert rest(feed.events("0badcafe")) == [("a", JobState.RUNNING)]


def test_ended_jobs_are_forgotten_in_the_end(feed):
    for number in range(5):
        feed.add(job(str(number)), "0badcafe", "host")
        feed.publish(str(number), ENDED)

    assert [feed.status(str(number)) is None for number in range(5)] == [True] * 2 + [False] * 3


def test_a_job_can_be_left_to_its_journal(feed):
    feed.add(job("a"), "0badcafe", "host")
    feed.forget("a")
    feed.forget("a")

    assert feed.status("a") is None


def test_placement_is_waited_for(feed):
    feed.add(job("a"), "0badcafe", "host")
    feed.add(job("b"), "0badcafe", "host")
    assert not feed.wait_placed(["a", "b"], 0.0)
    feed.publish("a", RUNNING)

    timer = threading.Timer(0.01, feed.publish, ["b", ENDED])
    timer.start()

    assert feed.wait_placed(["a", "b"], 30.0)
    timer.join()


def test_jobs_of_others_are_followed_between(feed):
    looks = [[(job("o"), RUNNING)], [(job("o"), ENDED)]]
    follower = JournalFollower(
        lambda: looks.pop(0) if looks else [], lambda found: found.id == "a", is_open=False
    )
    events = feed.events("0badcafe", follower)
    assert rest([next(events)]) == [("o", JobState.RUNNING)]
    feed.add(job("a"), "0badcafe", "host")
    feed.publish("a", RUNNING)
    found = rest([next(events), next(events)])
    feed.close()

    assert sorted(found, key=str) == [("a", JobState.RUNNING), ("o", JobState.FAILED)]
    assert rest(events) == []


class Looks:
    def __init__(self):
        self.now = {}

    def __call__(self):
        return [(job(name), status) for name, status in self.now.items()]


def states(changes):
    return [(found.id, status.state) for found, status in changes]


def test_a_change_is_reported_once():
    looks = Looks()
    follower = JournalFollower(looks, lambda _: False, is_open=True)
    looks.now["a"] = RUNNING
    assert states(follower.changes()) == [("a", JobState.RUNNING)]
    assert follower.changes() == []

    looks.now["a"] = ENDED
    assert states(follower.changes()) == [("a", JobState.FAILED)]
    looks.now["a"] = RUNNING
    assert follower.changes() == []


def test_own_jobs_are_not_followed():
    looks = Looks()
    looks.now = {"mine": RUNNING, "theirs": RUNNING}
    follower = JournalFollower(looks, lambda found: found.id == "mine", is_open=True)

    assert states(follower.changes()) == [("theirs", JobState.RUNNING)]


def test_an_open_one_goes_on_and_finds_new_jobs():
    looks = Looks()
    follower = JournalFollower(looks, lambda _: False, is_open=True)
    assert follower.changes() == []
    assert follower.is_active

    looks.now["late"] = RUNNING
    assert states(follower.changes()) == [("late", JobState.RUNNING)]


def test_a_closed_one_ends_with_the_jobs_of_its_first_look():
    looks = Looks()
    looks.now["a"] = RUNNING
    follower = JournalFollower(looks, lambda _: False, is_open=False)
    assert follower.is_active
    follower.changes()
    looks.now["late"] = RUNNING
    assert follower.changes() == []
    assert follower.is_active

    looks.now["a"] = ENDED
    follower.changes()
    assert not follower.is_active
