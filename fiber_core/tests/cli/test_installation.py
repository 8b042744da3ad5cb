"""What is installed: settings with their origins, plugins with their offers, and the doctor's checks."""

import importlib.metadata
import itertools
import json
import re
from collections import namedtuple
from pathlib import Path

import attrs
import click
import pytest

from distributions import Answers
from fiber import _version
from fiber._agent import rundir
from fiber._plugins.manager import load_plugins
from fiber._version import __version__
from fiber.cli import installation
from fiber.cli.installation import core_checks, plugin_checks
from fiber.cli.main import BUILT_IN
from fiber.hookspecs import hookimpl
from fiber.model import BackendClaim, BackendInfo, Check
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


def adding(command):
    """A plugin with one command."""
    return Answers("fiber_commands", [command])


def sing():
    return click.Command("sing", callback=lambda: click.echo("la"), help="Sing a song.")


def test_a_plugins_command_runs_and_is_listed_after_the_cores(fiber):
    fiber.extra.append(adding(sing()))

    listed = [line.split()[0] for line in fiber("--help").stdout.splitlines() if line[:2] == "  "]

    assert fiber.lines("sing") == ["la"]
    assert [*BUILT_IN, "sing"] == listed[-len(BUILT_IN) - 1 :]


def test_a_broken_plugin_breaks_no_command_and_is_named(fiber):
    class Broken(Answers):
        """One with a name of its own."""

    fiber.extra += [Broken("fiber_commands", RuntimeError("out of order")), adding(sing())]

    done = fiber("sing")

    assert (done.exit_code, done.stdout) == (0, "la\n")
    assert "Broken" in done.stderr
    assert "RuntimeError: out of order" in done.stderr
    assert "run" in fiber("--help").stdout


def test_the_core_keeps_its_own_names(fiber):
    fiber.extra.append(adding(click.Command("ps", callback=lambda: click.echo("mine"))))

    assert fiber.lines("ps")[0].startswith("RUN")


class Named:
    """Not a click command."""

    name = "sing"


def test_what_is_no_command_is_refused_by_name(fiber):
    fiber.extra.append(adding(Named()))

    assert "the command 'sing' of a plugin is no click command" in fiber.fails("sing")
    assert "(broken:" in fiber("--help").stdout


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_command_of_the_core_has_help(fiber, name):
    printed = fiber("--help").stdout
    own = fiber(name, "--help")

    assert f"  {name}" in printed
    assert own.exit_code == 0
    assert own.stdout.startswith(f"Usage: fiber {name} ")


GOOD = """
@hookimpl
def fiber_backends():
    return [BackendInfo(name="{name}", aliases=("{name}-too",), api={api}, load=refuse)]
"""
COMMANDS = """
import click

@hookimpl
def fiber_commands():
    return map(click.Command, {names})
"""


def add(site, name, source):
    module = f"plugin_listed_{name}"
    site.add(f"fiber-{name}", entry_points={name: module}, modules={module: source})


def rows(fiber):
    header, *lines = fiber.lines("plugins")
    assert header.split("\t") == ["DISTRIBUTION", "VERSION", "OFFERS", "NAME", "DETAIL"]
    return [tuple(line.split("\t")) for line in lines]


def test_what_a_backend_can_do_and_a_hook_are_listed(fiber):
    fiber.extra.append(Answers("fiber_worker_lost", None))

    details = {row[2:4]: row[4] for row in rows(fiber)}

    assert "follow_logs, fork, logs" in details["backend", "fake"]
    assert details["hook", "fiber_worker_lost"] == ""


@pytest.fixture
def various(site):
    """A plugin of each kind that the command tells apart."""
    add(site, "good", GOOD.format(name="good", api=(1, 0)))
    add(site, "next", GOOD.format(name="next", api=(9, 0)))
    add(site, "bad", "1 / 0")
    add(site, "shadow", COMMANDS.format(names=["run"]))
    for name in ("one", "two"):
        commands = COMMANDS.format(names=["sing", f"only-{name}"])
        add(site, name, GOOD.format(name="same", api=(1, 0)) + commands)


@pytest.mark.usefixtures("various")
def test_all_are_listed_with_what_is_wrong_with_them(fiber):
    found = {}
    for distribution, version, kind, name, detail in rows(fiber):
        found.setdefault((kind, name), []).append((distribution, version, detail))

    assert found["backend", "good, good-too"] == [("fiber-good", "1.0", "")]
    assert found["command", "only-one"] == [("fiber-one", "1.0", "")]
    assert found["resource", "gpu"] == [("fiber-core", __version__, "")]
    assert found["broken", "bad"] == [("fiber-bad", "1.0", "ZeroDivisionError: division by zero")]
    ((distribution, _, detail),) = found["refused", "next, next-too"]
    assert distribution == "fiber-next"
    assert "version 9.0 of the backend API" in detail
    clashes = [one[2] for (kind, _), many in found.items() if kind == "clash" for one in many]
    for clash in (
        "the backend name 'same' is offered by fiber-one 1.0 and fiber-two 1.0",
        f"the command 'run' is offered by fiber-core {__version__} and fiber-shadow 1.0",
    ):
        assert any(one.startswith(clash) for one in clashes)


@pytest.mark.usefixtures("various")
def test_a_command_that_two_distributions_add_names_both(fiber):
    told = fiber.fails("sing")

    assert "the command 'sing' is offered by fiber-one 1.0 and fiber-two 1.0" in told
    assert fiber("only-one").exit_code == 0


@pytest.mark.usefixtures("various")
def test_json_has_all_of_it(fiber):
    data = json.loads(fiber("plugins", "--json").stdout)

    good, later = (p for p in data["plugins"] if p["name"] in {"good", "next"})
    assert (good["distribution"], good["version"]) == ("fiber-good", "1.0")
    assert good["hooks"] == ["fiber_backends"]
    (backend,) = good["backends"]
    assert (backend["name"], backend["api"], backend["refused"]) == ("good", [1, 0], None)
    assert "upgrade fiber-core" in later["backends"][0]["refused"]
    error = "ZeroDivisionError: division by zero"
    broken = {"name": "bad", "distribution": "fiber-bad", "version": "1.0", "error": error}
    assert data["broken"] == [broken]
    assert data["clashes"]


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
