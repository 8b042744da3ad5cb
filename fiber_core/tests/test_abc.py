"""What a backend inherits: groups for platforms that know none."""

import pytest

from fiber.exceptions import SubmitError, UnknownJobError
from fiber.model import BackendContext, JobSpec, JobState, JobStatus
from fiber.testing import FakeBackend

RUN = "0badcafe"


class Grouping(FakeBackend):
    """The fake platform, with the groups that every backend may have."""

    def __init__(self, context, *, placed=True):
        super().__init__(context)
        self.placed = placed
        self.killed = []

    def submit(self, spec):
        if not spec.argv:
            raise SubmitError("there is nothing to run")
        return super().submit(spec)

    def submit_group(self, specs, timeout):
        return self.start_group(specs, timeout, lambda jobs, seconds: self.placed)

    def status(self, jobs):
        return [JobStatus(state=JobState.PENDING, message="no room") for _ in jobs]

    def kill(self, job):
        self.killed.append(job.name)
        raise UnknownJobError(job.name)


@pytest.fixture
def opened():
    made = []

    def make(**options):
        made.append(Grouping(BackendContext(run_id=RUN), **options))
        return made[-1]

    yield make
    for backend in made:
        backend.cleanup(RUN)
        backend.close()


def specs(*argvs):
    return [
        JobSpec(run_id=RUN, name=f"member {number}", argv=argv) for number, argv in enumerate(argvs)
    ]


def test_all_started_jobs_are_returned_in_their_order(opened):
    jobs = opened().submit_group(specs(("true",), ("true",)), 1.0)

    assert [job.name for job in jobs] == ["member 0", "member 1"]


def test_one_that_is_refused_ends_those_before_it(opened):
    backend = opened()

    with pytest.raises(SubmitError, match="nothing to run"):
        backend.submit_group(specs(("true",), ()), 1.0)
    assert backend.killed == ["member 0"]


def test_those_that_wait_for_too_long_end_all_with_the_platforms_words(opened):
    backend = opened(placed=False)

    with pytest.raises(
        SubmitError, match=r"not all of 2 jobs could be started within 1 s: no room"
    ):
        backend.submit_group(specs(("true",), ("true",)), 1.0)
    assert backend.killed == ["member 0", "member 1"]
