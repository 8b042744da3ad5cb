"""The doctor: each check passes on a sound machine and finds its fault, printed with its fix."""

import importlib.metadata
import itertools
import re
from collections import namedtuple

import pytest

from distributions import Answers
from fiber import _version
from fiber._agent import rundir
from fiber._plugins.manager import load_plugins
from fiber.cli import installation
from fiber.cli.installation import core_checks, plugin_checks
from fiber.model import BackendInfo, Check

VERSION = _version.__version__
NUMBERS = itertools.count()
VersionInfo = namedtuple("VersionInfo", "major minor micro")  # noqa: PYI024  compares as a tuple


def check(name):
    (found,) = [check for check in core_checks() if check.name == name]
    return found


@pytest.fixture
def versions(monkeypatch):
    """Versions of distributions in place of the installed ones; absent ones are not installed."""
    found = {"fiber-core": VERSION, "pynng": "0.9"}

    def version(name):
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


def refuse(*_, **__):
    raise OSError(28, "No space left on device")


class TestCore:
    @pytest.mark.parametrize(
        "place, fault, name, told",
        [
            ("sys.version_info", VersionInfo(3, 9, 2), "python", "use Python 3.10 or later"),
            ("tempfile.NamedTemporaryFile", refuse, "run folder", "No space left on device"),
            ("os.getuid", lambda: 1234, "run folder", "is not a folder of user 1234"),
            ("importlib.import_module", refuse, "transport", "messaging library cannot be loaded"),
            ("time.time", lambda: 0.0, "clock", "earlier than the time at which Fiber was"),
        ],
    )
    def test_a_fault_is_found(self, monkeypatch, versions, place, fault, name, told):
        monkeypatch.setattr(place, fault)

        found = check(name)

        assert not found.ok
        assert told in f"{found.detail} {found.fix}"

    @pytest.mark.parametrize(
        "name, installed, check_name, told",
        [
            ("fiber-core", "0.0.1", "fiber-core", "the installed fiber-core is 0.0.1"),
            ("fiber-core", None, "fiber-core", "no fiber-core is installed"),
            ("fiber", "0.2.1", "import name", "'fiber' 0.2.1 is another project"),
        ],
    )
    def test_another_version_or_project_than_this_one_is_found(
        self, versions, name, installed, check_name, told
    ):
        versions.pop(name, None)
        if installed:
            versions[name] = installed

        found = check(check_name)

        assert not found.ok
        assert told in found.detail
        if name == "fiber":
            assert "uninstall -y fiber && " in found.fix
            assert "--force-reinstall" in found.fix

    def test_the_library_that_encrypts_is_named_with_its_version(self, versions):
        assert re.fullmatch(r"pynng 0.9, nng [\d.]+, Mbed TLS [\d.]+", check("transport").detail)


class TestPlugins:
    @staticmethod
    def checks(site):
        return list(plugin_checks(load_plugins(entry_points=site.entry_points())))

    def add(self, site, name, *requires, source=""):
        # each of its own name: what was imported stays so
        module = f"plugin_checked_{next(NUMBERS)}"
        site.add(f"fiber-{name}", entry_points={name: module}, modules={module: source})
        (metadata,) = site.folder.glob(f"fiber_{name}-*/METADATA")
        lines = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        metadata.write_text(metadata.read_text() + lines)

    @pytest.mark.parametrize(
        "requires, source, told, fix",
        [
            (("fiber-core>=0.1", f"fiber_core=={VERSION}"), "", f"fiber-core {VERSION}, fiber-x 1.0", None),
            (
                ("fiber-core==0.0.1", "fiber-core==7; extra == 'never'"),
                "",
                f"fiber-x needs fiber-core==0.0.1, installed is {VERSION}",
                "python3 -m pip install 'fiber-core==0.0.1'",
            ),
            ((), "1 / 0", "plugin 'x' of fiber-x 1.0 is broken", ""),
        ],
        ids=["sound", "other versions", "broken"],
    )  # fmt: skip
    def test_plugins_are_a_line_with_what_is_wrong(self, site, requires, source, told, fix):
        self.add(site, "x", *requires, source=source)

        (found,) = self.checks(site)

        assert found.ok == (fix is None)
        assert told in found.detail
        assert (fix or "") in (found.fix or "")


@pytest.fixture
def sound(monkeypatch):
    """A core without fault, whatever this machine is."""
    well = [Check(name="python", ok=True, detail="3.14")]
    monkeypatch.setattr(installation, "core_checks", lambda: iter(well))


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


def load(context):
    raise ImportError("no SDK")


OTHER = Answers("fiber_backends", [BackendInfo(name="other", load=load)])
BROKEN = Answers("fiber_backends", RuntimeError("out of order"))


@pytest.mark.parametrize(
    "words, told",
    [
        ((), "failed  backend: bad value 'many' for 'cpu' (environment FIBER_CPU)"),
        ((), "is broken and not used: RuntimeError: out of order"),
        (("other",), "failed  backend: backend 'other' of Answers cannot be loaded: ImportError: no SDK"),
    ],
    ids=["a setting", "a plugin", "a backend"],
)  # fmt: skip
def test_what_is_wrong_is_a_line_and_no_noise(fiber, monkeypatch, words, told):
    if "cpu" in told:
        monkeypatch.setenv("FIBER_CPU", "many")
    fiber.extra += [BROKEN] if "order" in told else [OTHER]

    done = fiber("doctor", *words)

    assert (done.exit_code, done.stderr) == (1, "")
    assert told in done.stdout
    assert "        fix: " in done.stdout
