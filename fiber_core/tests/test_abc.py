"""What a backend inherits: many jobs at once, for platforms without a call for them."""

import pytest

from fiber.exceptions import BackendUnavailableError, SubmitError, UnknownJobError
from fiber.model import BackendContext, JobSpec
from fiber.testing import FakeBackend

RUN = "0badcafe"


class OneByOne(FakeBackend):
    """The fake platform, which notes what is killed."""

    def __init__(self):
        super().__init__(BackendContext(run_id=RUN))
        self.killed = []

    def submit(self, spec):
        if not spec.argv:
            raise SubmitError("there is nothing to run")
        return super().submit(spec)

    def kill(self, job):
        self.killed.append(job.name)
        raise UnknownJobError(job.name)


@pytest.fixture
def backend():
    backend = OneByOne()
    yield backend
    backend.cleanup(RUN)
    backend.close()


def specs(*argvs):
    return [
        JobSpec(run_id=RUN, name=f"member {number}", argv=argv) for number, argv in enumerate(argvs)
    ]


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
