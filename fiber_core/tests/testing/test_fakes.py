"""The fake backend fails on demand, and only then."""

import attrs
import pytest

from fiber.exceptions import BackendUnavailableError
from fiber.model import BackendContext, JobSpec, JobState
from fiber.testing import FakeBackend, FakePlatform, FakeProvider, programs
from fiber.testing.fakes import CAPABILITIES
from fiber.testing.kit.lifecycle import Stops
from fiber.testing.kit.options import Groups, Options

RUN = "0123abcd"


@pytest.fixture
def platform():
    return FakePlatform(FakeProvider().parse('["F-0", "F-1"]'))


@pytest.fixture
def backend(platform):
    made = FakeBackend(BackendContext(run_id=RUN, providers={"fake": FakeProvider()}), platform)
    yield made
    platform.available = True
    made.cleanup(RUN)
    made.close()


def spec(argv=None, **fields):
    return JobSpec(run_id=RUN, name="job", argv=argv or programs.sleep_forever(), **fields)


class TestWhatJobsElsewhereCannot(Groups, Options, Stops):
    """Groups, devices, exec and forks, which the remote fake has not; see test_fake_remote."""

    capabilities = CAPABILITIES

    @pytest.fixture
    def reopen(self, platform):
        return lambda context: FakeBackend(
            attrs.evolve(context, providers={"fake": FakeProvider()}), platform
        )

    @pytest.fixture
    def backend(self, context, reopen):
        made = reopen(context)
        yield made
        made.close()


def test_a_platform_that_is_away_is_an_error_and_no_state(backend, platform):
    job = backend.submit(spec())
    platform.available = False

    for ask in (lambda: backend.status([job]), lambda: backend.submit(spec()), backend.list):
        with pytest.raises(BackendUnavailableError, match="does not answer"):
            ask()

    platform.available = True
    assert not backend.status([job])[0].state.is_terminal


def test_held_jobs_wait_and_start_when_released(backend, platform):
    platform.hold()
    job = backend.submit(spec(programs.exit_with(3)))
    assert backend.status([job])[0].state is JobState.PENDING

    platform.release()

    ends = (status for _, status in backend.events(RUN) if status.state.is_terminal)
    assert next(ends).exit_code == 3


def test_one_that_is_closed_is_of_no_use_any_more(backend):
    backend.close()

    with pytest.raises(BackendUnavailableError, match="closed; make another one"):
        backend.submit(spec())


def test_providers_of_the_same_devices_are_equal():
    assert {FakeProvider(), FakeProvider()} == {FakeProvider()}
