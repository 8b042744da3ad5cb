"""``fiber metrics``: metrics of the runs of this host for Prometheus."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from fiber.cli import output
from fiber.cli.output import note


@click.command("metrics", short_help="Serve metrics of runs for Prometheus.")
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:9464", help="Where they are served."
)
@click.option("--once", is_flag=True, help="Print them once.")
@click.option("--grafana", is_flag=True, help="Print a dashboard of them for Grafana.")
@click.argument("run", metavar="[RUN]", default="")
def command(run: str, listen: str, once: bool, grafana: bool) -> None:
    """Serve metrics of your runs whose programs are on this host, at /metrics, until Ctrl-C.

    RUN, an id or the beginning of one, is for one of them. A program serves its own where the setting
    metrics names an address: FIBER_METRICS=0.0.0.0:9464.
    """
    from fiber._watch import metrics

    if grafana:
        output.as_json(metrics.dashboard())
        return
    registry = metrics.registry_of(lambda: _statuses(run))
    if once:
        from prometheus_client import generate_latest

        click.echo(generate_latest(registry).decode(), nl=False)
        return
    with contextlib.closing(metrics.MetricsServer(registry, listen)) as server:
        note(f"metrics are at {server.url}; Ctrl-C ends this")
        threading.Event().wait()


def _statuses(word: str) -> Iterator[Mapping[str, Any]]:
    from fiber._watch.status import Asker
    from fiber.cli.runs import find_runs
    from fiber.exceptions import FiberError
    from fiber.model import Timing

    runs: Iterable[Any] = ()
    # a run of that word may come, and go
    with contextlib.suppress(FiberError):
        runs = find_runs(word)
    for run in runs:
        # it may have ended, or be another host's
        with contextlib.suppress(FiberError), Asker(run.folder, Timing().parent_answer) as asker:
            yield asker.status()
