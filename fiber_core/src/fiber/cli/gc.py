"""``fiber gc``: removes what ended runs left."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fiber.backend_parts.liveness import Liveness, liveness_of, owner_of
from fiber.cli.options import BackendCommand, backend_option, loaded_plugins
from fiber.cli.output import note
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._plugins.manager import Plugins


@click.command("gc", cls=BackendCommand, short_help="Remove what ended runs left.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@backend_option
@click.pass_context
def command(ctx: click.Context, dry_run: bool, backend: str | None) -> None:
    """Remove runs whose program has died, and detached runs whose jobs have all ended.

    That is their logs, their folders on this host, and whatever else they left on their backend.
    Runs that began on this host are looked at, of all backends or of the one that is named; and
    on the backend in use, where it can tell, those that began elsewhere.
    """
    from fiber._agent import rundir

    plugins = loaded_plugins()
    only = None if backend is None else plugins.find_backend(backend).name
    failed, printed = False, set[str]()
    for folder, description in rundir.runs():
        name = str(description.get("backend", ""))
        if only not in {None, name}:
            continue
        try:
            why = _collect(plugins, name, folder, description, dry_run=dry_run)
        except FiberError as error:
            # the others can still be collected
            note(f"run {folder.name} is kept: {error}")
            failed = True
            continue
        if why:
            printed.add(folder.name)
            _print(folder.name, why, dry_run=dry_run)
    _sweep(backend, printed, dry_run=dry_run)
    ctx.exit(1 if failed else 0)


def _sweep(backend: str | None, printed: AbstractSet[str], *, dry_run: bool) -> None:
    from fiber.cli.session import Session

    with Session.load(backend).open_backend() as loaded:
        for run_id in loaded.sweep(dry_run=dry_run):
            if run_id not in printed:
                _print(run_id, "whoever began it is gone", dry_run=dry_run)


def _print(run_id: str, why: str, *, dry_run: bool) -> None:
    click.echo(f"{'Would remove' if dry_run else 'Removed'} run: {run_id} ({why})")


def _collect(
    plugins: Plugins, backend: str, folder: Path, description: dict[str, Any], *, dry_run: bool
) -> str:
    """Remove a run if it is over; returns the reason, "" where it is not over."""
    from fiber._agent import rundir
    from fiber.cli.jobs import list_jobs
    from fiber.cli.session import Session

    program = liveness_of(folder)
    if program is Liveness.ALIVE:
        # it may be about to submit the job of a detached run
        return ""
    if program is Liveness.UNKNOWN:
        owner = owner_of(folder)
        process = "" if owner is None else f", process {owner.pid} of {owner.host},"
        note(
            f"run {folder.name} is kept: nothing seen from here proves that its "
            f"program{process} has ended; run fiber gc where it ran, or remove {folder}"
        )
        return ""
    settings = dict(description.get("settings") or {})
    origin = f"of this run, which process {description.get('pid')} began"
    session = Session.load(backend, plugins=plugins, settings=settings, origin=origin)
    with session.open_backend() as loaded:
        if description.get("detached"):
            jobs = list_jobs(loaded, folder.name)
            if not all(item.status.state.is_terminal for item in jobs):
                return ""
            why = "its jobs have ended"
        else:
            why = f"its program, process {description.get('pid')}, has died"
        if not dry_run:
            loaded.cleanup(folder.name)
            rundir.remove(folder)
    return why
