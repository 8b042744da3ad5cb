"""``fiber dashboard``: a page on which people see what their runs do."""

from __future__ import annotations

import contextlib
import webbrowser
from typing import TYPE_CHECKING

import click

from fiber.cli.errors import note
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._dashboard.feed import Run
    from fiber.cli.runs import LocalRun

__all__ = ["command"]


@click.command("dashboard", short_help="Show what runs on this host on a page in a browser.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="",
    help="Where it is served; by default 127.0.0.1:8237, or another port where that is taken.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@click.argument("run", metavar="[RUN]", default="")
def command(run: str, listen: str, opens: bool) -> None:
    """Serve a page with the pools, workers, tasks, errors and logs of your runs, until Ctrl-C.

    RUN, an id or the beginning of one, is for one of them. The page is for who has the address that is
    printed, and changes nothing. A program serves its own by the setting dashboard: FIBER_DASHBOARD=1.
    """
    from fiber._config.settings import DASHBOARD
    from fiber._dashboard.server import Server, require
    from fiber.cli.runs import find_runs
    from fiber.model import Timing

    require()
    if run:
        # a word that means nothing is told at once
        find_runs(run)
    server = Server(lambda: _runs(run), listen or DASHBOARD, Timing())
    note(f"the dashboard is at {server.url}; Ctrl-C ends it")
    if opens:
        webbrowser.open(server.url)
    server.run()


def _runs(word: str) -> list[Run]:
    from fiber.cli.runs import find_runs

    found: list[LocalRun] = []
    # a run of that word may come, and go
    with contextlib.suppress(FiberError):
        found = find_runs(word)
    return [_as_run(one) for one in found]


def _as_run(found: LocalRun) -> Run:
    from fiber._dashboard.feed import Run
    from fiber._watch.status import Asker
    from fiber.model import Timing

    described = found.description
    return Run(
        id=found.id,
        program=tuple(map(str, described.get("program") or ())),
        backend=str(described.get("backend", "")),
        created=described.get("created"),
        connect=lambda: Asker(found.folder, Timing().connect),
    )
