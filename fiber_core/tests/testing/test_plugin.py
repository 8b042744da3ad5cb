"""The fake plugin passes the kit for plugins, and the kit finds plugins that do not conform."""

import os
import sys
import types

import attrs
import pytest

from commands import ran
from distributions import Site
from fiber._plugins.manager import load_plugins
from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo, Capabilities
from fiber.testing import PluginConformance


class TestFakePlugin(PluginConformance):
    module = "fiber.testing.fake_plugin"
    sdks = ("pytest", "pynng", "click")

    @pytest.fixture(autouse=True)
    def _installed(self, tmp_path, monkeypatch):
        site = Site(tmp_path / "site")
        site.add("fiber-fake", entry_points={"fake": "fiber.testing.fake_plugin"})
        monkeypatch.syspath_prepend(str(site.folder))


@attrs.frozen
class Odd:
    weights: dict = attrs.field(factory=dict)


@attrs.frozen
class Required:
    host: str


@attrs.frozen
class Fine:
    host: str = "localhost"
    ports: list[int] = attrs.field(factory=list)


def load(**fields):
    module = types.ModuleType("mine")

    def fiber_backends():
        return [BackendInfo(load=lambda _: None, **{"name": "mine", "summary": "mine", **fields})]

    module.fiber_backends = hookimpl(fiber_backends)
    return load_plugins(entry_points=(), extra=[module])


@pytest.mark.parametrize(
    "fields, test",
    [
        ({"api": (99, 0)}, "test_its_backends_are_for_this_api"),
        ({"summary": ""}, "test_its_backends_say_what_they_are"),
        ({"config": Odd}, "test_its_settings_can_be_read_from_text"),
        ({"config": Required}, "test_its_settings_can_be_read_from_text"),
        ({"config": dict}, "test_its_hooks_are_those_that_fiber_calls"),
        (
            {"capabilities": Capabilities(follow_logs=True)},
            "test_capabilities_that_need_others_have_them",
        ),
    ],
)
def test_the_kit_finds_what_is_wrong(fields, test):
    getattr(PluginConformance(), test)(load(config=Fine) if "config" in fields else load())
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(PluginConformance(), test)(load(**fields))


def test_the_fakes_need_no_pytest():
    code = "import fiber.testing.fakes, fiber.testing.programs, sys; print('pytest' in sys.modules)"
    answer = ran([sys.executable, "-c", code], check=True)

    assert answer.stdout.strip() == "False"


def test_a_program_runs_on_it_and_its_pool_survives_a_killed_worker(tmp_path):
    site = Site(tmp_path / "site")
    site.add("fiber-fake", entry_points={"fake": "fiber.testing.fake_plugin"})
    path = os.pathsep.join(filter(None, [str(site.folder), os.environ.get("PYTHONPATH")]))

    done = ran(
        [sys.executable, "-m", "fiber.testing.apps", "killed_worker"],
        env={**os.environ, "PYTHONPATH": path, "FIBER_BACKEND": "fake"},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "a worker's death" in done.stdout
