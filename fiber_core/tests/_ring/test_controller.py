"""The controller's parts: its event loop, the outcome that threads wait for, jobs and their failures."""

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


def test_a_callback_posted_to_a_closed_loop_is_ignored():
    loop = EventLoop()
    loop.close()
    loop.post(lambda: pytest.fail("nobody is there to call it"))
    loop.close()


def test_the_first_word_on_its_end_counts_and_ends_all_waiting():
    outcome = Outcome(RingStatus(phase=RingPhase.NEW))
    assert not outcome.wait(0)

    outcome.finish(Failure(reason="OOM"))
    outcome.finish(None)

    assert outcome.failure == Failure(reason="OOM")
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
CALLER = Group(workers=1, is_caller=True)


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
@pytest.mark.parametrize(
    "commands, sizes",
    [
        ((StartWorker(1, 0, ONE), StartRun(1), StartWorker(2, 1, ONE)), [2, 2]),
        ((StartWorker(1, 0, CALLER), StartWorker(2, 1, ONE)), [1]),
    ],
    ids=["jobs alone", "the caller is no job"],
)
def test_jobs_of_a_step_are_a_gang_and_those_of_the_next_another(
    job_threads, launcher, commands, sizes
):
    started = job_threads(60.0)

    start(started, *commands)
    start(started, StartWorker(3, 0, ONE))

    assert [gang.size for gang in launcher.gangs] == [*sizes, 1]
    assert launcher.gangs[-1] == Gang(name="ring-7-3", size=1, timeout=60.0)
    assert len(set(launcher.gangs)) == 2


@pytest.mark.usefixtures("shared_runtime")
def test_an_elastic_ring_is_no_gang(job_threads, launcher):
    start(job_threads(None), StartWorker(1, 0, ONE), StartWorker(2, 1, ONE))

    assert launcher.gangs == [None, None]


def ended(index, code, **more):
    state = JobState.SUCCEEDED if code == 0 else JobState.FAILED
    reason = Reason(ReasonKind.EXIT, code)
    return ProcessStatus(index=index, state=state, reason=reason, exit_code=code, **more)


RETURNED = JobStatus(state=JobState.SUCCEEDED, exit_code=0, processes=(ended(0, 0),))
ONE_OF_TWO = (ProcessStatus(index=0, state=JobState.RUNNING), ended(1, 3, log_tail=("last",)))
NO_IMAGE = {"reason": Reason(ReasonKind.IMAGE), "message": "no such image"}


@pytest.mark.parametrize(
    "status, has_returned, expected",
    [
        (RETURNED, True, None),
        (RETURNED, False, (0, "EXIT(0)", 0, ())),
        (JobStatus(state=JobState.RUNNING, processes=ONE_OF_TWO), False, (1, "EXIT(3)", 3, ("last",))),
        (JobStatus(state=JobState.FAILED, **NO_IMAGE), False, (None, "IMAGE", None, ())),
    ],
    ids=["returned", "exits before it returned", "the first that failed", "no process at all"],
)  # fmt: skip
def test_the_end_of_a_rank_is_a_failure_unless_its_function_returned(
    status, has_returned, expected
):
    worker = WorkerHandle(1, Group(workers=1, slots=2))
    if has_returned:
        worker.returned[0] = b""

    found = failed_process(worker, status)

    if found is not None:
        slot, failure = found
        assert failure.message == (status.message or failure.message)
        found = slot, failure.reason, failure.exit_code, failure.log_tail
    assert found == expected


def test_a_refusal_has_type_and_text():
    assert str(start_failure(ValueError("no"))) == "ValueError: no"
