"""Plugins and their commands: listed with their offers, unusable ones with the reason."""

import json

import click
import pytest

from distributions import Answers
from fiber._version import __version__
from fiber.cli.main import BUILT_IN


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
