"""The manager's thread carries out the steps of its state, on a platform played by the tests."""

import threading

import pytest

from fiber._base import values
from fiber._workers.manager import WorkerManager
from fiber.exceptions import SubmitError
from fiber.model import JobState, JobStatus, ProcessStatus, Timing
from tasks_world import LEFT, RUNNING, STOPPED, FakeJob
from waiting import until


class Platform:
    """Starts jobs, and notes the calls of the manager."""

    def __init__(self, per_job=1, lease=3.0, **timing):
        self.children = []
        self.lost, self.retired, self.errors = [], [], []
        self.handed_back = []
        self.ended = threading.Event()
        self.refusals = []
        self.at_start = lambda child: None
        self.can_retire = True
        self.manager = WorkerManager(
            start=self.start,
            lost=self.lost.append,
            retire=self.retire,
            fail=self.errors.append,
            ended=self.ended.set,
            lease=lease,
            per_job=per_job,
            name="fiber-test",
            timing=Timing(**timing),
        )

    def start(self, count, on_status, waits):
        if self.refusals:
            raise self.refusals.pop(0)
        child = FakeJob(str(len(self.children)), count, on_status)
        self.at_start(child)
        self.children.append(child)
        return child

    def retire(self, ident, hand_back):
        self.retired.append(ident)
        self.handed_back.append(hand_back)
        if self.can_retire:
            self.children[int(ident)].report(LEFT)
        return self.can_retire

    def work(self, count):
        """Begin with so many workers and have them ready."""
        self.manager.begin(count)
        until(lambda: len(self.children) == count)
        self.up()

    def up(self):
        for child in self.children:
            child.report(RUNNING)
            self.manager.worker_ready(child.ident)


@pytest.fixture
def platforms():
    made = []

    def make(**options):
        made.append(Platform(**options))
        return made[-1]

    yield make
    for platform in made:
        platform.manager.terminate()
        assert platform.manager.join(20)


@pytest.fixture
def platform(platforms):
    return platforms()


def test_the_first_is_started_by_the_caller_and_the_others_by_the_manager(platform):
    threads = []
    platform.at_start = lambda _: threads.append(threading.current_thread().name)
    platform.manager.begin(3)
    assert threads[0] == threading.current_thread().name
    until(lambda: len(platform.children) == 3)
    assert threads[1:] == ["fiber-test"] * 2
    assert platform.manager.size == 3


def test_what_cannot_be_started_is_the_callers_error_and_may_be_tried_again(platform):
    platform.refusals = [SubmitError("no")]
    with pytest.raises(SubmitError):
        platform.manager.begin(2)
    platform.manager.begin(2)
    until(lambda: len(platform.children) == 2)


@pytest.mark.parametrize("error", [SubmitError("quota"), OSError("too many open files")])
def test_a_start_that_fails_later_is_tried_again_whatever_it_raised(platform, error):
    platform.work(1)
    platform.refusals = [error]
    platform.children[0].kill()
    until(lambda: len(platform.children) == 2)
    assert not platform.errors
    (loss,) = platform.lost
    assert (loss.ident, loss.counts, loss.expected) == ("0", True, False)


def test_statuses_that_come_before_the_submission_returned_are_not_lost_and_keep_their_order(
    platform,
):
    def at_start(child):
        if child.ident == "0":
            child.report(RUNNING)
            child.kill()

    platform.at_start = at_start
    platform.manager.begin(1)
    until(lambda: len(platform.children) == 2)
    assert [loss.ident for loss in platform.lost] == ["0"]


def test_resized_it_adds_and_retires(platform):
    platform.manager.begin(1)
    platform.manager.resize(3)
    until(lambda: len(platform.children) == 3)
    platform.up()
    platform.manager.resize(1)
    until(lambda: len(platform.manager.workers()) == 1)
    assert sorted(platform.retired) == ["1", "2"]


def test_one_that_cannot_be_retired_is_ended(platform):
    platform.can_retire = False
    platform.work(1)
    platform.manager.close()
    assert platform.manager.join(20)
    assert platform.children[0].kills == 1


def test_never_begun_it_is_joined_at_once(platform):
    platform.manager.close()
    assert platform.manager.join(0)


def test_terminated_by_several_threads_it_ends_once(platform):
    platform.manager.begin(3)
    threads = [threading.Thread(target=platform.manager.terminate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert platform.manager.join(20)
    assert len(platform.lost) == len(platform.children)
    assert all(loss.expected for loss in platform.lost)


def test_a_job_that_was_being_submitted_at_the_end_is_ended(platform):
    begun, go_on = threading.Event(), threading.Event()

    def at_start(_):
        begun.set()
        assert go_on.wait(20)

    platform.at_start = at_start
    thread = threading.Thread(target=platform.manager.begin, args=(1,))
    thread.start()
    assert begun.wait(20)
    platform.manager.terminate()
    go_on.set()
    thread.join(20)
    assert platform.manager.join(20)
    assert platform.children[0].kills == 1


def test_a_platform_that_does_not_answer_is_asked_again_to_end_a_worker(platforms):
    platform = platforms(kill_again=0.05)
    platform.manager.begin(1)
    platform.children[0].unreachable = 2
    platform.manager.terminate()
    assert platform.manager.join(20)
    assert platform.children[0].kills == 3


@pytest.mark.parametrize(
    "options,silence,reason",
    [
        ({"lease": 0.05}, lambda platform: platform.children[0].report(STOPPED), "LEASE"),
        (
            {"exit_report": 0.05},
            lambda platform: platform.manager.worker_disconnected("0"),
            "SIGNAL(9)",
        ),
    ],
    ids=["stopped", "disconnected"],
)
def test_a_silent_worker_is_ended_after_a_while(platforms, options, silence, reason):
    platform = platforms(**options)
    platform.work(1)
    silence(platform)
    until(lambda: len(platform.children) == 2)
    assert str(platform.lost[0].attempt.reason) == reason


def test_of_a_job_with_others_only_the_silent_process_is_ended(platforms):
    platform = platforms(per_job=2, lease=0.05)
    platform.manager.begin(2)
    (child,) = platform.children
    parts = [
        ProcessStatus(index=0, state=STOPPED.state, reason=STOPPED.reason),
        ProcessStatus(index=1, state=JobState.RUNNING),
    ]
    signalled = []
    child.signal = lambda index, signum: signalled.append((index, signum))
    child.report(JobStatus(state=JobState.RUNNING, processes=tuple(parts)))
    until(lambda: signalled)
    assert signalled[0] == (0, 9)
    del child.signal


def test_it_does_not_spin_while_it_waits_for_the_last_to_go(platform):
    platform.work(3)
    turns = []
    state = platform.manager._state
    following = state.next
    state.next = lambda now: turns.append(now) or following(now)
    for child in platform.children:
        child.kill = lambda: None
    platform.manager.terminate()
    platform.children[0].report(LEFT)
    assert not platform.ended.wait(0.1)
    assert len(turns) < 10
    for child in platform.children[1:]:
        child.report(LEFT)


def test_a_worker_whose_place_is_taken_away_is_asked_for_its_work_and_replaced(platform):
    platform.work(1)
    platform.children[0].report(values.evolve(RUNNING, draining=True))
    until(lambda: len(platform.children) == 2)
    assert platform.retired == ["0"]
    assert platform.handed_back == [True]
    (loss,) = platform.lost
    assert loss.expected
