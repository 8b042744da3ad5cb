"""Changes are found by comparing one look at the journals with the next."""

from fiber.model import Job, JobState, JobStatus
from fiber_local.follower import JournalFollower

RUNNING = JobStatus(state=JobState.RUNNING)
ENDED = JobStatus(state=JobState.SUCCEEDED)


def job(name):
    return Job(id=name, name=name, run_id="0badcafe", backend="local")


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
    assert states(follower.changes()) == [("a", JobState.SUCCEEDED)]
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
