"""``fiber plugin``: makes a new plugin, and runs the conformance kit on an installed one."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["command"]


@click.group("plugin", short_help="Write a plugin, and check one by the conformance kit.")
def command() -> None:
    """Write a plugin, and check one by the conformance kit.

    ``fiber plugins`` lists those that are installed.
    """


@command.command("new", short_help="Make a plugin to begin with.")
@click.argument("name")
@click.option("--resource", metavar="KIND", help="Make a resource provider for devices of a kind.")
@click.option(
    "--directory",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to write it; fiber-NAME by default.",
)
def new(name: str, resource: str | None, directory: Path | None) -> None:
    """Write a distribution fiber-NAME with a backend NAME that works and passes the kit.

    With --resource it has a provider of devices instead, which users ask for as
    @fiber.meta(KIND=1).
    """
    from fiber.cli.scaffold import NewPlugin, create

    plugin = NewPlugin(name, resource)
    folder = directory if directory is not None else Path(plugin.distribution)
    for path in create(plugin, folder):
        click.echo(f"wrote {path}")
    checked = resource or name
    click.echo(
        f'next: pip install -e "{folder}[test]", pytest {folder}, fiber plugin check {checked}'
    )


@command.command("check", short_help="Run the kit on an installed plugin.")
@click.argument("name")
@click.option(
    "--levels", metavar="LEVELS", help="Levels of the kit, as 1-3 or 2,6; all by default."
)
@click.option("--image", help="The image that jobs run in.")
@click.option("--python", metavar="PYTHON", help="The Python that jobs run.")
@click.option(
    "--json",
    "results",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to a file.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show what pytest prints.")
@click.pass_context
def check(
    ctx: click.Context,
    name: str,
    levels: str | None,
    image: str | None,
    python: str | None,
    results: Path | None,
    verbose: bool,
) -> None:
    """Run the conformance kit on the backend or the kind of devices NAME.

    The backend is used with the settings that are in force here. The exit code is 1 if a test
    failed.
    """
    from fiber.cli import conformance

    target = conformance.find(name, image=image, python=python)
    found = conformance.run(target, levels=levels, verbose=verbose)
    if results is not None:
        conformance.save(found, results)
    conformance.show(found)
    ctx.exit(0 if conformance.passed(found) else 1)
