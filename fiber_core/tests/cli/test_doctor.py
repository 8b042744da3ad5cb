"""The doctor: each check passes on a sound machine and finds its fault, printed with its fix."""

import importlib.metadata
import os
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from fiber import _version
from fiber._agent import rundir
from fiber._plugins.manager import load_plugins
from fiber.cli import doctor
from fiber.cli.doctor import core_checks, plugin_checks
from fiber.hookspecs import hookimpl
from fiber.model import BackendInfo, Check

VersionInfo = namedtuple("VersionInfo", "major minor micro")  # noqa: PYI024  compares as a tuple


def check(name):
    (found,) = [check for check in core_checks() if check.name == name]
    return found


@pytest.fixture
def versions(monkeypatch):
    """Versions of distributions in place of the installed ones; absent ones are not installed."""
    found = {"fiber-core": _version.__version__, "pynng": "0.9"}

    def version(name):
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


class TestCore:
    def test_a_sound_installation_has_no_fault(self, versions):
        assert [(c.name, c.detail) for c in core_checks() if not c.ok] == []

    def test_an_old_python_is_found(self, monkeypatch, versions):
        monkeypatch.setattr(sys, "version_info", VersionInfo(3, 9, 2))

        found = check("python")

        assert not found.ok
        assert found.fix == "use Python 3.10 or later"

    @pytest.mark.parametrize(
        "installed, told",
        [("0.0.1", "the installed fiber-core is 0.0.1"), (None, "no fiber-core is installed")],
    )
    def test_code_of_another_version_than_the_installed_one_is_found(
        self, versions, installed, told
    ):
        versions.pop("fiber-core")
        if installed:
            versions["fiber-core"] = installed

        found = check("fiber-core")

        assert not found.ok
        assert told in found.detail

    def test_the_older_project_of_the_same_import_name_is_found_with_the_cure(self, versions):
        assert check("import name").ok

        versions["fiber"] = "0.2.1"

        found = check("import name")
        assert not found.ok
        assert "'fiber' 0.2.1 is another project" in found.detail
        assert "uninstall -y fiber && " in found.fix
        assert "--force-reinstall" in found.fix

    def test_a_library_that_cannot_be_loaded_is_found(self, monkeypatch, versions):
        monkeypatch.setitem(sys.modules, "fiber._wire.nng", None)

        found = check("transport")

        assert not found.ok
        assert "pynng" in found.fix

    def test_a_run_folder_that_others_may_enter_is_found(self, monkeypatch, versions):
        # a short path: where sockets would not fit, another folder is taken
        with tempfile.TemporaryDirectory(prefix="fc-") as runtime:
            folder = Path(runtime, "fiber")
            folder.mkdir()
            folder.chmod(0o755)
            monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)

            found = check("run folder")

        assert not found.ok
        assert "chmod 700" in found.detail

    def test_a_run_folder_without_room_is_found(self, monkeypatch, versions):
        def refuse(**_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)

        found = check("run folder")

        assert not found.ok
        assert "No space left on device" in found.detail

    def test_a_clock_that_was_set_back_is_found(self, monkeypatch, versions):
        written = os.stat(_version.__file__).st_mtime  # noqa: PTH116  a path as text
        monkeypatch.setattr("time.time", lambda: written - 3600)

        found = check("clock")

        assert not found.ok
        assert "earlier than the time at which Fiber was installed" in found.detail


class TestPlugins:
    @pytest.fixture
    def site(self, tmp_path, monkeypatch):
        from distributions import Site

        made = Site(tmp_path / "site")
        monkeypatch.syspath_prepend(str(made.folder))
        return made

    @staticmethod
    def checks(site):
        return list(plugin_checks(load_plugins(entry_points=site.entry_points())))

    def add(self, site, name, *requires, source=""):
        module = f"plugin_checked_{name}"
        site.add(f"fiber-{name}", entry_points={name: module}, modules={module: source})
        (metadata,) = site.folder.glob(f"fiber_{name}-*/METADATA")
        lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        metadata.write_text(metadata.read_text() + lines)

    def test_sound_plugins_are_one_line_with_their_versions(self, site):
        self.add(site, "good", "fiber-core>=0.1", f"fiber_core=={_version.__version__}")

        (found,) = self.checks(site)

        assert found.ok
        assert found.detail == f"fiber-core {_version.__version__}, fiber-good 1.0"

    def test_versions_that_do_not_fit_each_other_are_found(self, site):
        self.add(site, "old", "fiber-core==0.0.1", "fiber-core==7; extra == 'never'")

        (found,) = self.checks(site)

        assert not found.ok
        assert found.detail == (
            f"fiber-old needs fiber-core==0.0.1, installed is {_version.__version__}"
        )
        assert found.fix == "python3 -m pip install 'fiber-core==0.0.1'"

    def test_a_broken_plugin_is_found(self, site):
        self.add(site, "bad", source="1 / 0")

        (found,) = self.checks(site)

        assert not found.ok
        assert "plugin 'bad' of fiber-bad 1.0 is broken" in found.detail


@pytest.fixture
def sound(monkeypatch):
    """A core without fault, whatever this machine is."""
    well = [Check(name="python", ok=True, detail="3.14")]
    monkeypatch.setattr(doctor, "core_checks", lambda: iter(well))


def test_a_sound_installation_is_ok_line_by_line(fiber, sound):
    lines = fiber.lines("doctor")

    assert lines[0] == "ok      python: 3.14"
    assert lines[-2] == "ok      settings: backend 'fake', default"
    assert lines[-1] == "ok      fake: fake platform: it answers"
    assert list(rundir.runs()) == []


def test_a_failed_check_is_shown_with_its_fix(fiber, platform, sound):
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
