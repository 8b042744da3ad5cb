"""The controller's parts: the outcome that threads wait for, jobs and their failures."""

import contextlib
from types import SimpleNamespace

import pytest

from fiber._ring.controller import JobThreads, MemberProtocol, Outcome, jobs_of
from fiber._ring.events import StartRun, StartWorker
from fiber._ring.member import MemberSpec
from fiber._ring.model import Failure, Group, RingPhase, RingStatus, RingTiming
from fiber._ring.workers import WorkerHandle, failed_process
from fiber.exceptions import SubmitError
from fiber.model import Gang, JobState, JobStatus, ProcessStatus, Reason, ReasonKind


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
GANG = MemberProtocol(WORK)
ONE = Group(workers=1)
CALLER = Group(workers=1, is_caller=True)
JOBS = (StartWorker(1, 0, ONE), StartRun(1), StartWorker(2, 1, ONE))


@pytest.mark.usefixtures("shared_runtime")
@pytest.mark.parametrize(
    "commands, timeout, sizes",
    [
        (JOBS, 60.0, [2, 2, 1]),
        ((StartWorker(1, 0, CALLER), StartWorker(2, 1, ONE)), 60.0, [1, 1]),
        (JOBS, None, [None, None, None]),
    ],
    ids=["jobs alone", "the caller is no job", "an elastic ring is no gang"],
)
def test_jobs_of_a_step_are_a_gang_and_those_of_the_next_another(commands, timeout, sizes):
    gangs = []

    def launch_many(jobs):
        gangs.extend(options["gang"] for _, options in jobs)
        raise SubmitError("no room")

    runtime = SimpleNamespace(launcher=SimpleNamespace(launch_many=launch_many, takes_many=False))
    listener = SimpleNamespace(not_launched=lambda number, error: None)
    with contextlib.closing(JobThreads(runtime, GANG, listener, timeout)) as threads:
        for step in (commands, [StartWorker(3, 0, ONE)]):
            threads.assign_gangs(jobs_of(step))
            for one in jobs_of(step):
                threads.launch([one])

    assert [gang and gang.size for gang in gangs] == sizes
    if timeout is not None:
        assert gangs[-1] == Gang(name="ring-7-3", size=1, timeout=60.0)
        assert len(set(gangs)) == 2


@pytest.mark.usefixtures("shared_runtime")
def test_a_gang_is_one_call_where_the_platform_takes_several_jobs_in_one():
    asked, told = [], []

    def launch_many(jobs):
        asked.append([options["gang"].size for _, options in jobs])
        return [SubmitError("no room") for _ in jobs]

    launcher = SimpleNamespace(launch_many=launch_many, takes_many=True)
    listener = SimpleNamespace(not_launched=lambda number, error: told.append(number))
    step = [StartWorker(1, 0, ONE), StartWorker(2, 1, ONE), StartWorker(3, 2, ONE)]
    with contextlib.closing(
        JobThreads(SimpleNamespace(launcher=launcher), GANG, listener, 60.0)
    ) as threads:
        threads.assign_gangs(step)
        (call,) = threads.calls(step)
        threads.launch_in_background(call)
    assert (asked, told) == ([[3, 3, 3]], [1, 2, 3])


@pytest.mark.usefixtures("shared_runtime")
def test_workers_that_are_no_gang_come_one_by_one():
    runtime = SimpleNamespace(launcher=SimpleNamespace(takes_many=True))
    step = [StartWorker(1, 0, ONE), StartWorker(2, 1, ONE)]
    with contextlib.closing(JobThreads(runtime, GANG, None, None)) as threads:
        threads.assign_gangs(step)
        assert threads.calls(step) == [[one] for one in step]
        assert threads.calls([]) == []


RETURNED = JobStatus(
    state=JobState.SUCCEEDED,
    processes=(
        ProcessStatus(
            index=0, state=JobState.SUCCEEDED, reason=Reason(ReasonKind.EXIT, 0), exit_code=0
        ),
    ),
)
NO_IMAGE = JobStatus(
    state=JobState.FAILED, reason=Reason(ReasonKind.IMAGE), message="no such image"
)


def test_the_end_of_a_rank_is_a_failure_unless_its_function_returned():
    worker = WorkerHandle(1, Group(workers=1, slots=2))

    slot, failure = failed_process(worker, RETURNED)
    assert (slot, failure.reason, failure.exit_code) == (0, "EXIT(0)", 0)
    slot, failure = failed_process(worker, NO_IMAGE)
    assert (slot, failure.reason, failure.message) == (None, "IMAGE", "no such image")

    worker.returned[0] = b""
    assert failed_process(worker, RETURNED) is None
