"""What a backend inherits: groups, and many jobs at once, for platforms that know neither."""

import pytest

from fiber.exceptions import BackendUnavailableError, SubmitError, UnknownJobError
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


def test_of_many_jobs_each_has_its_job_or_its_error_in_its_place(backend):
    first, refused, last = backend.submit_many(specs(("true",), (), ("true",)))

    assert (first.name, last.name) == ("member 0", "member 2")
    assert isinstance(refused, SubmitError)


def test_a_platform_that_cannot_be_asked_is_not_asked_for_each_of_many_jobs(backend):
    backend.platform.available = False
    before = backend.platform.calls
    found = backend.submit_many(specs(("true",), ("true",)))

    assert [type(one) for one in found] == [BackendUnavailableError] * 2
    assert backend.platform.calls == before + 1
    backend.platform.available = True


def test_many_jobs_end_where_an_error_of_another_kind_keeps_them_from_being_returned(backend):
    with pytest.raises(AttributeError):
        backend.submit_many([*specs(("true",)), None])
    assert backend.killed == ["member 0"]
