"""Settings are shown with their origins; a mistake is one line."""

import json
import re
from pathlib import Path

import attrs
import pytest

from distributions import Answers
from fiber._agent import rundir
from fiber.hookspecs import hookimpl
from fiber.model import BackendClaim, BackendInfo
from fiber.testing import FakeBackend, fakes, programs
from owners import DEAD, owned_by


@attrs.frozen(kw_only=True)
class Secrets:
    """Settings of a backend."""

    token: str = attrs.field(default="", metadata={"secret": True})


def shown(fiber, *words):
    header, *lines = fiber.lines("config", *words)
    assert header == "KEY\tVALUE\tORIGIN"
    return {line.split("\t")[0]: tuple(line.split("\t")[1:]) for line in lines}


def test_each_value_is_shown_with_its_origin_and_secrets_are_not(fiber, monkeypatch):
    Path(".fiberconfig").write_text("memory = 4Gi\n")

    assert shown(fiber)["backend"] == ("fake", "default")
    here = BackendInfo(name="here", config=Secrets, load=lambda _: None)
    fiber.extra.append(Answers("fiber_backends", [here]))
    fiber.extra.append(Answers("fiber_detect_backend", BackendClaim("here", "a test")))
    monkeypatch.setenv("FIBER_HERE_TOKEN", "s3cret")
    assert shown(fiber)["backend"] == ("here", "detected")
    settings = shown(fiber, "--backend", "here")
    assert settings["memory"] == ("4096", f"{Path.cwd()}/.fiberconfig:1")
    assert settings["here_token"] == ("********", "environment FIBER_HERE_TOKEN")
    assert settings["backend"] == ("here", "option --backend")


def test_json_has_values_of_their_types(fiber, monkeypatch):
    monkeypatch.setenv("FIBER_ENV", "A,B")

    data = {s["key"]: s for s in json.loads(fiber("config", "--json").stdout)}

    assert data["env"]["value"] == ["A", "B"]
    debug = {"key": "debug", "value": False, "origin": "default", "help": "log everything"}
    assert data["debug"] == debug


@pytest.mark.parametrize("words", [("config",), ("ps",), ("run", "true")])
def test_a_mistake_is_one_line_and_exit_code_2(fiber, words):
    Path(".fiberconfig").write_text("memroy = 4Gi\n")

    told = fiber.fails(*words, code=2)

    assert told.startswith("fiber: ")
    assert "memroy" in told
    assert f"{Path.cwd()}/.fiberconfig:1" in told
    assert len(told.splitlines()) == 1


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
    def test_they_are_listed_with_their_backends(self, fiber, far, platform):
        fiber.extra.append(Offers("near", platform))

        told = fiber("run", "--help").stdout

        assert "--region VALUE" in told
        assert "Region of the jobs (far, near)." in told
        # a command's own option stays its own
        assert "--image is" not in told
        assert "--image IMAGE" in told

    def test_they_are_settings_over_the_environment_and_reach_the_job(
        self, fiber, far, monkeypatch
    ):
        monkeypatch.setenv("FIBER_FAR_REGION", "us")

        done = fiber(
            "run", "--backend", "far", "--region", "eu", "-a", "printenv", "FIBER_FAR_REGION"
        )

        assert done.stdout == "eu\n"
        assert far.seen[0] == Settings(region="eu")

    def test_settings_of_this_host_alone_are_not_passed_on(self, fiber, far):
        done = fiber(
            "run", "--backend", "far", "--account", "me", "-a", "printenv", "FIBER_FAR_ACCOUNT"
        )

        assert far.seen[0].account == "me"
        assert (done.exit_code, done.stdout) == (1, "")

    @pytest.mark.parametrize(
        "words, told",
        [
            (("ps", "--count", "2"), "such option"),
            (("run", "--backend", "far", "--count", "many", "true"), "'many'.*far_count"),
            (("run", "--region", "eu", "true"), "--region is an option of far, .* backend is fake"),
        ],
        ids=["another command's", "a bad value", "another backend's"],
    )
    def test_those_that_make_no_sense_are_refused(self, fiber, far, words, told):
        assert re.search(told, fiber.fails(*words, code=2))


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
