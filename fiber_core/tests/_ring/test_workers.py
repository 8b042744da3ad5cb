"""Failures of ranks, from the status of their job."""

from fiber._ring.model import Group
from fiber._ring.workers import WorkerHandle, failed_process, start_failure
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind


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
