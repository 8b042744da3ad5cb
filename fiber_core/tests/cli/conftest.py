"""The command in this process on the fake backend."""

import attrs
import pytest
from click.testing import CliRunner

from distributions import Site
from fiber._plugins.manager import load_plugins
from fiber.cli.main import cli
from fiber.model import JobSpec
from fiber.testing import FakeBackend, FakePlatform, FakePlugin, fakes, programs


@pytest.fixture(autouse=True)
def run_root(monkeypatch, tmp_path, folder):
    """Runs of a test in a folder of their own, and no configuration file around."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def platform():
    made = FakePlatform()
    yield made
    made.available = True
    made.end(made.jobs(), forget=True)


@pytest.fixture
def backend(platform):
    made = FakeBackend(platform=platform)
    yield made
    made.close()


@pytest.fixture
def submit(backend):
    """Submit a job, one that sleeps unless a program is given."""

    def submitted(argv=None, run_id="00000001", name="job", **fields):
        argv = argv or programs.sleep_forever()
        return backend.submit(JobSpec(run_id=run_id, name=name, argv=argv, **fields))

    return submitted


@pytest.fixture
def capable(monkeypatch):
    """Change the fake backend's capabilities."""

    def declare(**changes):
        declared = attrs.evolve(fakes.CAPABILITIES, **changes)
        monkeypatch.setattr(fakes, "CAPABILITIES", declared)

    return declare


@attrs.define
class Command:
    """``fiber`` in this process: call it with its words."""

    #: more plugins than the fake one
    extra: list

    def __call__(self, *words):
        return CliRunner().invoke(cli, words, prog_name="fiber")

    def lines(self, *words):
        """Run a command that must succeed; returns the lines it prints."""
        done = self(*words)
        assert (done.exit_code, done.stderr) == (0, ""), done.output
        return done.stdout.splitlines()

    def fails(self, *words, code=1):
        """Run a command that must fail; returns its output on stderr."""
        done = self(*words)
        assert (done.exit_code, done.stdout) == (code, ""), done.output
        return done.stderr


@pytest.fixture
def fiber(monkeypatch, platform):
    """The command with no plugin but the fake one, and those that a test adds to ``extra``."""
    command = Command([])
    plugin = FakePlugin(platform, default=True)

    def load():
        return load_plugins(entry_points=[], extra=[plugin, *command.extra])

    monkeypatch.setattr("fiber._plugins.manager.load_plugins", load)
    return command


@pytest.fixture
def site(fiber, tmp_path, monkeypatch):
    """Installed distributions, seen by the command in place of the real ones."""
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    monkeypatch.setattr(
        "fiber._plugins.manager.load_plugins",
        lambda: load_plugins(entry_points=made.entry_points()),
    )
    return made
