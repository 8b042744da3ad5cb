"""Commands are found without plugins where they are the core's own, and those of plugins by name."""

import click
import pytest

from distributions import Site
from fiber._plugins.manager import load_plugins
from fiber.cli.group import BUILT_IN
from fiber.hookspecs import hookimpl


class Adds:
    """A plugin with these commands."""

    def __init__(self, *commands):
        self._commands = commands

    @hookimpl
    def fiber_commands(self):
        return self._commands


class Broken:
    @hookimpl
    def fiber_commands(self):
        raise RuntimeError("out of order")


def sing():
    return click.Command("sing", callback=lambda: click.echo("la"), help="Sing a song.")


def test_a_plugins_command_runs_and_is_listed_after_the_cores(fiber):
    fiber.extra.append(Adds(sing()))

    listed = [line.split()[0] for line in fiber("--help").stdout.splitlines() if line[:2] == "  "]

    assert fiber.lines("sing") == ["la"]
    assert [*BUILT_IN, "sing"] == listed[-len(BUILT_IN) - 1 :]


def test_no_plugin_is_asked_for_the_cores_own_commands(fiber):
    asked = []

    class Curious:
        @hookimpl
        def fiber_commands(self):
            asked.append(True)
            return []

    fiber.extra.append(Curious())

    fiber("run", "--help")

    assert asked == []


def test_a_broken_plugin_breaks_no_command_and_is_named(fiber):
    fiber.extra += [Broken(), Adds(sing())]

    done = fiber("sing")

    assert (done.exit_code, done.stdout) == (0, "la\n")
    assert "Broken" in done.stderr
    assert "RuntimeError: out of order" in done.stderr
    assert "run" in fiber("--help").stdout


def test_a_command_that_two_distributions_add_names_both(fiber, tmp_path, monkeypatch):
    site = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(site.folder))
    source = """
        import click

        @hookimpl
        def fiber_commands():
            return [click.Command("sing"), click.Command("{own}")]
        """
    for name in ("one", "two"):
        module = f"plugin_sing_{name}"
        site.add(
            f"fiber-{name}",
            entry_points={name: module},
            modules={module: source.format(own=f"only-{name}")},
        )
    monkeypatch.setattr(
        "fiber._plugins.manager.load_plugins",
        lambda: load_plugins(entry_points=site.entry_points()),
    )

    told = fiber.fails("sing")

    assert "the command 'sing' is offered by fiber-one 1.0 and fiber-two 1.0" in told
    assert fiber("only-one").exit_code == 0


def test_the_core_keeps_its_own_names(fiber):
    fiber.extra.append(Adds(click.Command("ps", callback=lambda: click.echo("mine"))))

    assert fiber.lines("ps")[0].startswith("RUN")


class Named:
    """Not a click command."""

    name = "sing"


def test_what_is_no_command_is_refused_by_name(fiber):
    fiber.extra.append(Adds(Named()))

    assert "the command 'sing' of a plugin is no click command" in fiber.fails("sing")
    assert "(broken:" in fiber("--help").stdout


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_command_of_the_core_has_help(fiber, name):
    printed = fiber("--help").stdout
    own = fiber(name, "--help")

    assert f"  {name}" in printed
    assert own.exit_code == 0
    assert own.stdout.startswith(f"Usage: fiber {name} ")
