"""What the end of a job says of its ranks."""

from fiber._ring.model import Group
from fiber._ring.workers import Worker, ended_badly, why
from fiber.model import JobState, JobStatus, ProcessStatus, Reason, ReasonKind


def worker(slots=1):
    return Worker(1, Group(workers=1, slots=slots))


def ended(index, code, **more):
    state = JobState.SUCCEEDED if code == 0 else JobState.FAILED
    reason = Reason(ReasonKind.EXIT, code)
    return ProcessStatus(index=index, state=state, reason=reason, exit_code=code, **more)


def test_a_rank_that_returned_and_exited_is_no_failure():
    found = worker()
    found.returned[0] = b""

    status = JobStatus(state=JobState.SUCCEEDED, exit_code=0, processes=(ended(0, 0),))
    assert ended_badly(found, status) is None


def test_a_rank_that_exits_before_it_returned_is_one_whatever_its_code():
    status = JobStatus(state=JobState.SUCCEEDED, exit_code=0, processes=(ended(0, 0),))

    slot, failure = ended_badly(worker(), status)

    assert (slot, failure.reason, failure.exit_code) == (0, "EXIT(0)", 0)


def test_the_first_of_several_ranks_is_told_with_its_last_words():
    running = ProcessStatus(index=0, state=JobState.RUNNING)
    status = JobStatus(state=JobState.RUNNING, processes=(running, ended(1, 3, log_tail=("last",))))

    slot, failure = ended_badly(worker(2), status)

    assert (slot, failure.reason, failure.log_tail) == (1, "EXIT(3)", ("last",))


def test_a_job_that_never_had_processes_tells_the_platforms_words():
    status = JobStatus(
        state=JobState.FAILED, reason=Reason(ReasonKind.IMAGE), message="no such image"
    )

    slot, failure = ended_badly(worker(2), status)

    assert (slot, failure.reason, failure.message) == (None, "IMAGE", "no such image")


def test_a_refusal_is_told_by_its_words():
    assert str(why(ValueError("no"))) == "ValueError: no"
