"""Settings of backends with metadata for it are options of commands."""

import attrs
import pytest

from fiber._agent import rundir
from fiber.cli.session import Session
from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo
from fiber.testing import FakeBackend, fakes, programs
from owners import DEAD, owned_by


@attrs.frozen(kw_only=True)
class Settings:
    region: str = attrs.field(
        default="here", metadata={"option": "--region", "help": "region of the jobs"}
    )
    count: int = attrs.field(default=1, metadata={"option": "--count", "commands": ("run",)})
    account: str | None = attrs.field(
        default=None, metadata={"option": "--account", "passed_on": False}
    )
    image: str | None = attrs.field(default=None, metadata={"option": "--image"})


class Offers:
    """A backend with options, on the fake platform."""

    def __init__(self, name, platform):
        self.name = name
        self.platform = platform
        self.seen = []

    @hookimpl
    def fiber_backends(self):
        def load(context):
            self.seen.append(context.config)
            made = FakeBackend(context, self.platform)
            made.name = self.name
            return made

        return [
            BackendInfo(name=self.name, capabilities=fakes.CAPABILITIES, config=Settings, load=load)
        ]


@pytest.fixture
def far(fiber, platform):
    made = Offers("far", platform)
    fiber.extra.append(made)
    return made


class TestOptions:
    def test_they_are_listed_with_their_backends(self, fiber, far):
        told = fiber("run", "--help").stdout

        assert "--region VALUE" in told
        assert "Region of the jobs (far)." in told

    def test_they_are_settings_and_reach_the_job(self, fiber, far, platform):
        done = fiber(
            "run", "--backend", "far", "--region", "eu", "-a", "printenv", "FIBER_FAR_REGION"
        )

        assert done.stdout == "eu\n"
        assert far.seen[0] == Settings(region="eu")

    def test_they_are_over_the_environment(self, fiber, far, monkeypatch):
        monkeypatch.setenv("FIBER_FAR_REGION", "us")

        fiber("ps", "--backend", "far", "--region", "eu")

        assert far.seen[0].region == "eu"

    def test_settings_of_this_host_alone_are_not_passed_on(self, fiber, far):
        done = fiber(
            "run", "--backend", "far", "--account", "me", "-a", "printenv", "FIBER_FAR_ACCOUNT"
        )

        assert far.seen[0].account == "me"
        assert (done.exit_code, done.stdout) == (1, "")

    def test_some_are_for_one_command(self, fiber, far):
        assert "such option" in fiber.fails("ps", "--count", "2", code=2)

    def test_a_commands_own_option_stays_its_own(self, fiber, far):
        assert "--image is" not in fiber("run", "--help").stdout
        assert "--image IMAGE" in fiber("run", "--help").stdout

    def test_a_bad_value_is_a_wrong_option(self, fiber, far):
        told = fiber.fails("run", "--backend", "far", "--count", "many", "true", code=2)

        assert "'many'" in told
        assert "far_count" in told

    def test_another_backends_option_is_refused(self, fiber, far):
        told = fiber.fails("run", "--region", "eu", "true", code=2)

        assert "--region is an option of far, and the backend is fake" in told

    def test_two_backends_may_have_the_same(self, fiber, far, platform):
        near = Offers("near", platform)
        fiber.extra.append(near)

        fiber("ps", "--backend", "near", "--region", "eu")

        assert "(far, near)" in fiber("ps", "--help").stdout
        assert near.seen[0].region == "eu"

    def test_a_backend_without_settings_has_none(self, fiber):
        assert "--region" not in fiber("run", "--help").stdout


class TestRunsBegunWithThem:
    def test_they_are_found_again_where_they_are(self, fiber, far, platform):
        fiber(
            "run", "--backend", "far", "--region", "eu", "--account", "me", *programs.exit_with(0)
        )
        (job,) = platform.jobs()
        assert platform.find(job).ended.wait(30)
        far.seen.clear()
        ((folder, _),) = rundir.runs()
        # the command that began it is this process
        owned_by(folder, DEAD)

        (line,) = fiber.lines("gc")

        assert line == f"Removed run: {job.run_id} (its jobs have ended)"
        assert far.seen == [Settings(region="eu", account="me")]

    def test_settings_of_a_run_are_not_the_commands(self, fiber, far):
        session = Session.load("far", settings={"far_region": "eu"})

        assert session.config.settings == Settings(region="eu")
