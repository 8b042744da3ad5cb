"""The doctor checks the core, the plugins and a backend, and prints fixes."""

import pytest

from fiber._agent import rundir
from fiber.cli import doctor
from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo, Check


@pytest.fixture(autouse=True)
def sound(monkeypatch):
    """A core without fault, whatever this machine is."""
    well = [Check(name="python", ok=True, detail="3.14")]
    monkeypatch.setattr(doctor, "core_checks", lambda: iter(well))


def test_a_sound_installation_is_ok_line_by_line(fiber, platform):
    lines = fiber.lines("doctor")

    assert lines[0] == "ok      python: 3.14"
    assert lines[-2] == "ok      settings: backend 'fake', default"
    assert lines[-1] == "ok      fake: fake platform: it answers"
    assert list(rundir.runs()) == []


def test_a_failed_check_is_shown_with_its_fix(fiber, platform):
    platform.available = False
    cleanup = "the fake platform does not answer; set its 'available' to True"

    done = fiber("doctor")

    assert done.exit_code == 1
    assert (
        "failed  fake: fake platform: it does not answer\n"
        "        fix: set the platform's 'available' to True\n"
    ) in done.stdout
    # a platform that does not answer cannot be cleaned up either
    assert done.stdout.endswith(
        f"failed  backend: {cleanup}\n        fix: mend that and ask again\n"
    )


def test_the_backend_is_the_one_that_is_named(fiber):
    class Other:
        @hookimpl
        def fiber_backends(self):
            def load(context):
                raise ImportError("no SDK")

            return [BackendInfo(name="other", load=load)]

    fiber.extra.append(Other())

    done = fiber("doctor", "other")

    assert done.exit_code == 1
    assert "failed  backend: backend 'other' of Other cannot be loaded: ImportError: no SDK" in (
        done.stdout
    )


def test_a_setting_that_is_wrong_is_a_line_too(fiber, monkeypatch):
    monkeypatch.setenv("FIBER_CPU", "many")

    done = fiber("doctor")

    assert (done.exit_code, done.stderr) == (1, "")
    assert "failed  backend: bad value 'many' for 'cpu' (environment FIBER_CPU)" in done.stdout


def test_a_broken_plugin_is_a_line_and_no_noise(fiber):
    class Broken:
        @hookimpl
        def fiber_backends(self):
            raise RuntimeError("out of order")

    fiber.extra.append(Broken())

    done = fiber("doctor")

    assert (done.exit_code, done.stderr) == (1, "")
    assert "is broken and not used: RuntimeError: out of order" in done.stdout
    assert "        fix: " in done.stdout
