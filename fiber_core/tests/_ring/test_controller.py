"""The controller's parts: its event loop, the outcome that threads wait for, jobs and their failures."""

import os
import pickle
import threading
import time
from types import SimpleNamespace

import pytest

from fiber._ring.controller import EventLoop, Outcome
from fiber._ring.events import StartRun, StartWorker
from fiber._ring.member import MemberSpec
from fiber._ring.model import Failure, Group, RingPhase, RingStatus
from fiber._ring.timing import RingTiming
from fiber._ring.workers import JobThreads, WorkerHandle, failed_process, start_failure
from fiber.exceptions import SubmitError
from fiber.model import Gang, JobState, JobStatus, ProcessStatus, Reason, ReasonKind


@pytest.fixture
def loop():
    found = EventLoop()
    yield found
    found.close()


def test_what_is_posted_from_any_thread_is_called(loop):
    seen = []
    thread = threading.Thread(target=lambda: loop.post(lambda: (seen.append(1), loop.stop())))
    thread.start()

    loop.run(lambda: None)

    thread.join()
    assert seen == [1]


def test_a_descriptor_is_read_until_it_is_not_watched(loop):
    reading, writing = os.pipe()
    os.write(writing, b"xy")
    seen = []

    def read():
        seen.append(os.read(reading, 1))
        if len(seen) == 2:
            loop.unwatch(reading)
            loop.unwatch(reading)
            loop.stop()

    loop.watch(reading, read)
    loop.run(lambda: None)

    assert seen == [b"x", b"y"]
    os.close(reading)
    os.close(writing)


def test_its_turn_comes_when_it_asked_for_it(loop):
    turns = []

    def turn():
        turns.append(time.monotonic())
        if len(turns) == 3:
            loop.stop()
        return time.monotonic() + 0.01

    loop.run(turn)

    assert len(turns) == 3


def test_a_callback_posted_to_a_closed_loop_is_ignored(loop):
    loop.close()
    loop.post(lambda: pytest.fail("nobody is there to call it"))
    loop.close()


NEW, RUNNING = RingStatus(phase=RingPhase.NEW), RingStatus(phase=RingPhase.RUNNING)


def test_waiting_for_the_end_returns_at_the_end():
    outcome = Outcome(NEW)
    assert not outcome.wait(0)
    thread = threading.Thread(target=lambda: outcome.finish(None, [pickle.dumps(5)]))
    thread.start()

    assert outcome.wait(30)

    thread.join()
    assert outcome.results() == [5]


def test_the_first_word_on_its_end_counts():
    outcome = Outcome(NEW)
    outcome.finish(Failure(reason="OOM"))
    outcome.finish(None)

    assert outcome.failure == Failure(reason="OOM")


def test_waiting_for_a_status_ends_when_it_holds():
    outcome = Outcome(NEW)
    thread = threading.Thread(target=lambda: outcome.update(RUNNING))
    thread.start()

    assert outcome.wait_for(lambda status: status.phase is RingPhase.RUNNING, 30)
    thread.join()


def test_waiting_for_a_status_ends_with_the_ring():
    outcome = Outcome(NEW)
    outcome.finish(None)

    assert not outcome.wait_for(lambda status: status.phase is RingPhase.RUNNING, 30)


WORK = MemberSpec(
    name="ring-7",
    function=print,
    initializer=None,
    initargs=(),
    framework=None,
    heartbeat_interval=1.0,
    timing=RingTiming(),
)
ONE = Group(workers=1)


class Launcher:
    """Records gangs and refuses every job."""

    def __init__(self):
        self.gangs = []

    def launch(self, process, *, gang, **_):
        self.gangs.append(gang)
        raise SubmitError("no room")


class JobListener:
    def not_launched(self, number, error):
        assert isinstance(error, SubmitError)


@pytest.fixture
def launcher():
    return Launcher()


@pytest.fixture
def job_threads(launcher):
    made = []

    def make(gang_timeout):
        made.append(
            JobThreads(SimpleNamespace(launcher=launcher), WORK, JobListener(), gang_timeout)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


def start(job_threads, *command):
    job_threads.assign_gangs(command)
    for one in command:
        if isinstance(one, StartWorker) and not one.group.is_caller:
            job_threads.launch(one)


@pytest.mark.usefixtures("shared_runtime")
def test_those_of_a_step_are_a_gang_and_those_of_the_next_another(job_threads, launcher):
    started = job_threads(60.0)

    start(started, StartWorker(1, 0, ONE), StartRun(1), StartWorker(2, 1, ONE))
    start(started, StartWorker(3, 0, ONE))

    first = Gang(name="ring-7-1", size=2, timeout=60.0)
    assert launcher.gangs == [first, first, Gang(name="ring-7-3", size=1, timeout=60.0)]


@pytest.mark.usefixtures("shared_runtime")
def test_the_caller_is_no_job_of_the_gang(job_threads, launcher):
    caller = Group(workers=1, is_caller=True)

    start(job_threads(60.0), StartWorker(1, 0, caller), StartWorker(2, 1, ONE))

    assert [gang.size for gang in launcher.gangs] == [1]


@pytest.mark.usefixtures("shared_runtime")
def test_an_elastic_ring_is_no_gang(job_threads, launcher):
    start(job_threads(None), StartWorker(1, 0, ONE), StartWorker(2, 1, ONE))

    assert launcher.gangs == [None, None]


def worker(slots=1):
    return WorkerHandle(1, Group(workers=1, slots=slots))


def ended(index, code, **more):
    state = JobState.SUCCEEDED if code == 0 else JobState.FAILED
    reason = Reason(ReasonKind.EXIT, code)
    return ProcessStatus(index=index, state=state, reason=reason, exit_code=code, **more)


def test_a_rank_that_returned_and_exited_is_no_failure():
    found = worker()
    found.returned[0] = b""

    status = JobStatus(state=JobState.SUCCEEDED, exit_code=0, processes=(ended(0, 0),))
    assert failed_process(found, status) is None


def test_a_rank_that_exits_before_it_returned_is_one_whatever_its_code():
    status = JobStatus(state=JobState.SUCCEEDED, exit_code=0, processes=(ended(0, 0),))

    slot, failure = failed_process(worker(), status)

    assert (slot, failure.reason, failure.exit_code) == (0, "EXIT(0)", 0)


def test_the_first_failed_rank_is_reported_with_its_last_output():
    running = ProcessStatus(index=0, state=JobState.RUNNING)
    status = JobStatus(state=JobState.RUNNING, processes=(running, ended(1, 3, log_tail=("last",))))

    slot, failure = failed_process(worker(2), status)

    assert (slot, failure.reason, failure.log_tail) == (1, "EXIT(3)", ("last",))


def test_a_job_without_processes_has_the_platforms_message():
    status = JobStatus(
        state=JobState.FAILED, reason=Reason(ReasonKind.IMAGE), message="no such image"
    )

    slot, failure = failed_process(worker(2), status)

    assert (slot, failure.reason, failure.message) == (None, "IMAGE", "no such image")


def test_a_refusal_has_type_and_text():
    assert str(start_failure(ValueError("no"))) == "ValueError: no"
