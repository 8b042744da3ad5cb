"""What a backend inherits: groups for platforms that know none."""

import pytest

from fiber.exceptions import SubmitError, UnknownJobError
from fiber.model import BackendContext, JobSpec, JobState, JobStatus
from fiber.testing import FakeBackend

RUN = "0badcafe"


class Grouping(FakeBackend):
    """The fake platform, with the groups that every backend may have."""

    def __init__(self):
        super().__init__(BackendContext(run_id=RUN))
        self.placed = True
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
def backend():
    backend = Grouping()
    yield backend
    backend.cleanup(RUN)
    backend.close()


def specs(*argvs):
    return [
        JobSpec(run_id=RUN, name=f"member {number}", argv=argv) for number, argv in enumerate(argvs)
    ]


def test_all_started_jobs_are_returned_in_their_order(backend):
    jobs = backend.submit_group(specs(("true",), ("true",)), 1.0)

    assert [job.name for job in jobs] == ["member 0", "member 1"]


@pytest.mark.parametrize(
    "second,text,killed",
    [
        ((), "nothing to run", ["member 0"]),
        (
            ("true",),
            "not all of 2 jobs could be started within 1 s: no room",
            ["member 0", "member 1"],
        ),
    ],
    ids=["one is refused", "they wait for too long"],
)
def test_those_that_were_started_end_with_the_platforms_words(backend, second, text, killed):
    backend.placed = False
    with pytest.raises(SubmitError, match=text):
        backend.submit_group(specs(("true",), second), 1.0)
    assert backend.killed == killed
