"""``fiber dashboard`` and ``fiber metrics``: what runs do, served to browsers and to Prometheus."""

from __future__ import annotations

import contextlib
import threading
import time
import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from fiber.cli import output
from fiber.cli.options import BackendCommand, backend_option
from fiber.cli.output import note
from fiber.exceptions import FiberError

if TYPE_CHECKING:
    from fiber._dashboard.server import Connection, Run
    from fiber.cli.runs import Answer, LocalRun, RemoteRuns
    from fiber.model import Timing


@click.command(
    "dashboard", cls=BackendCommand, short_help="Show what runs, on a page in a browser."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="",
    help="Where it is served; by default 127.0.0.1:8237, or another port where that is taken.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@backend_option
@click.argument("run", metavar="[RUN]", default="")
def command(run: str, listen: str, opens: bool, backend: str | None) -> None:
    """Serve a page with the pools, workers, tasks, errors and logs of your runs, until Ctrl-C.

    RUN, an id of a run or of its job, or the beginning of one, is for one of them. Runs whose programs are
    jobs elsewhere are asked there, as with fiber top; with --backend in all jobs there. The page is for
    who has the address that is printed, and changes nothing. A program serves its own by the setting
    dashboard: FIBER_DASHBOARD=1.
    """
    from fiber._config.settings import DASHBOARD
    from fiber._dashboard.server import Server, require
    from fiber.cli.runs import runs_elsewhere
    from fiber.model import Timing

    require()
    timing = Timing()
    run, remote = runs_elsewhere(run, backend, "fiber dashboard", timing)
    with contextlib.closing(remote):
        runs = _Runs(run, remote, timing)
        if run and not runs(waits=True):
            raise FiberError(runs.why())
        server = Server(runs, listen or DASHBOARD, timing)
        note(f"the dashboard is at {server.url}; Ctrl-C ends it")
        if opens:
            webbrowser.open(server.url)
        server.run()


class _Runs:
    """The runs that are shown: those of this host, and those that jobs elsewhere tell of.

    Args:
        word: beginning of the ids of those that are meant.
        remote: the jobs elsewhere.
        timing: durations.
    """

    def __init__(self, word: str, remote: RemoteRuns, timing: Timing) -> None:
        self._word = word
        self._remote = remote
        self._timing = timing
        self._looked = 0.0
        self._lock = threading.Lock()

    def __call__(self, *, waits: bool = False) -> list[Run]:
        """Find them; those elsewhere as they were told of last.

        Args:
            waits: True to wait until jobs elsewhere have answered.
        """
        from fiber._runtime.inspection import NAME
        from fiber.cli.runs import detached_runs, find_runs, is_meant

        every = {one.id: one for one in (*find_runs(), *detached_runs())}
        found = {ident: one for ident, one in every.items() if (one.folder / NAME).exists()}
        with self._lock:
            if not self._looked or time.monotonic() - self._looked > self._timing.job_search:
                # programs of the others may be in jobs
                self._remote.look(
                    {ident: one.description for ident, one in every.items() if ident not in found}
                )
                self._looked = time.monotonic()
        here = [
            self._here(one) for one in found.values() if is_meant(self._word, one.id, one.outer)
        ]
        if waits and not here:
            self._remote.wait()
        return [*here, *(self._there(one) for one in self._remote_answers() if one.id not in found)]

    def why(self) -> str:
        """Why none of those that are meant can be shown."""
        for ident, why in self._remote.troubles().items():
            if why and ident.startswith(self._word):
                return f"run {ident} cannot be shown: {why}"
        return (
            f"no program of yours on this host answers for run {self._word!r}; "
            "'fiber top --once' lists those that do"
        )

    def _remote_answers(self) -> Iterator[Answer]:
        from fiber.cli.runs import is_meant

        for one in self._remote.answers():
            if one.status is not None and is_meant(self._word, one.id, one.outer):
                yield one

    def _here(self, found: LocalRun) -> Run:
        from fiber._watch.status import Asker

        return _run(found.id, found.description, lambda: Asker(found.folder, self._timing.connect))

    def _there(self, answer: Answer) -> Run:
        return _run(answer.id, answer.description, lambda: self._remote.connect(answer))


def _run(ident: str, described: dict[str, Any], connect: Callable[[], Connection]) -> Run:
    from fiber._dashboard.server import Run

    return Run(
        id=ident,
        program=tuple(map(str, described.get("program") or ())),
        backend=str(described.get("backend", "")),
        created=described.get("created"),
        connect=connect,
    )


@click.command("metrics", short_help="Serve metrics of runs for Prometheus.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:9464", help="Where they are served."
)
@click.option("--once", is_flag=True, help="Print them once.")
@click.option("--grafana", is_flag=True, help="Print a dashboard of them for Grafana.")
@click.argument("run", metavar="[RUN]", default="")
def metrics(run: str, listen: str, once: bool, grafana: bool) -> None:
    """Serve metrics of your runs whose programs are on this host, at /metrics, until Ctrl-C.

    RUN, an id or the beginning of one, is for one of them. A program serves its own where the setting
    metrics names an address: FIBER_METRICS=0.0.0.0:9464.
    """
    from fiber._watch.metrics import MetricsServer, dashboard, registry_of

    if grafana:
        output.as_json(dashboard())
        return
    registry = registry_of(lambda: _statuses(run))
    if once:
        from prometheus_client import generate_latest

        click.echo(generate_latest(registry).decode(), nl=False)
        return
    with contextlib.closing(MetricsServer(registry, listen)) as server:
        note(f"metrics are at {server.url}; Ctrl-C ends this")
        threading.Event().wait()


def _statuses(word: str) -> Iterator[Mapping[str, Any]]:
    from fiber._watch.status import Asker
    from fiber.cli.runs import find_runs
    from fiber.model import Timing

    runs: Iterable[Any] = ()
    # a run of that word may come, and go
    with contextlib.suppress(FiberError):
        runs = find_runs(word)
    for run in runs:
        # it may have ended, or be another host's
        with contextlib.suppress(FiberError), Asker(run.folder, Timing().parent_answer) as asker:
            yield asker.status()
