"""``fiber config``: shows the settings, each with its origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

from fiber.cli.options import BackendCommand, backend_option, json_option

if TYPE_CHECKING:
    from fiber._config.settings import Setting
    from fiber.cli.session import Session

__all__ = ["command"]


@click.command("config", cls=BackendCommand, short_help="Show the settings and where each was set.")
@json_option
@backend_option
def command(as_json: bool, backend: str | None) -> None:
    """Show the settings that a program started here would have, and where each was set."""
    from fiber._config.convert import render
    from fiber.cli import show
    from fiber.cli.session import Session

    settings = _explain(Session.load(backend))
    if as_json:
        show.as_json(
            [
                {"key": s.key, "value": s.value, "origin": str(s.origin), "help": s.help}
                for s in settings
            ]
        )
    else:
        rows = [(s.key, render(s.value), str(s.origin)) for s in settings]
        show.table(("KEY", "VALUE", "ORIGIN"), rows)


def _explain(session: Session) -> list[Setting]:
    from fiber._config.sources import Origin, OriginKind

    settings = session.config.explain()
    if session.config.backend is not None:
        return settings
    # none was named: show the one that would be used
    kind = OriginKind.DEFAULT if session.info.default else OriginKind.DETECTED
    return [
        attrs.evolve(s, value=session.info.name, origin=Origin(kind)) if s.key == "backend" else s
        for s in settings
    ]
