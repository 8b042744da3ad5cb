"""``fiber doctor``: checks this installation and a backend, and prints how to mend what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fiber.cli.backend_options import BackendCommand, loaded_plugins
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber.model import Check

__all__ = ["command"]


class _Quiet(BackendCommand):
    """Plugins that cannot be used are lines of what it prints, and no warnings."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Its own options and arguments, then those of backends."""
        from fiber.cli.plugins import quiet_plugins

        with quiet_plugins():
            return super().get_params(ctx)


@click.command("doctor", cls=_Quiet, short_help="Check this installation and a backend.")
@click.argument("backend", required=False)
@click.pass_context
def command(ctx: click.Context, backend: str | None) -> None:
    """Check Fiber's installation, and BACKEND or the one that would be used, end to end.

    Each check is a line; below one that failed stands what mends it. The exit code is 1 if any
    failed.
    """
    from fiber.cli.plugins import quiet_plugins

    failed = False
    with quiet_plugins():
        for check in _checks(backend):
            failed = failed or not check.ok
            _show(check)
    ctx.exit(1 if failed else 0)


def _checks(backend: str | None) -> Iterator[Check]:
    from fiber.cli.checks import core_checks, plugin_checks
    from fiber.cli.session import Session
    from fiber.model import Check

    yield from core_checks()
    plugins = loaded_plugins()
    yield from plugin_checks(plugins)
    try:
        session = Session.load(backend, plugins=plugins)
        found = f"backend {session.info.name!r}, {session.config.origin('backend')}"
        yield Check(name="settings", ok=True, detail=found)
        with session.begin_run() as run:
            for check in run.backend.check():
                yield Check(
                    name=f"{session.info.name}: {check.name}",
                    ok=check.ok,
                    detail=check.detail,
                    fix=check.fix,
                )
    except FiberError as error:
        # what cannot even be asked is told as what was asked and failed
        yield Check(name="backend", ok=False, detail=str(error), fix="mend that and ask again")


def _show(check: Check) -> None:
    word = click.style("ok    ", fg="green") if check.ok else click.style("failed", fg="red")
    detail = " ".join(check.detail.split())
    click.echo(f"{word}  {check.name}{': ' if detail else ''}{detail}")
    if not check.ok and check.fix:
        click.echo(f"        fix: {check.fix}")
