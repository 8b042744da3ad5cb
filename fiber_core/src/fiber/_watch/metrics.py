"""Metrics of runs for Prometheus: samples made of their statuses when they are asked for.

Nothing is counted for them: a program that nobody scrapes pays nothing. Names follow Prometheus'
conventions; :func:`dashboard` draws them for Grafana.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fiber._config.convert import host_and_port
from fiber.exceptions import ConfigError, FiberError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from fiber._runtime.runtime import Runtime

log = logging.getLogger("fiber")

#: gauges of a pool: name, field of its status, help
_GAUGES = (
    ("fiber_pool_workers_wanted", "wanted", "Workers that there should be."),
    ("fiber_pool_workers_ready", "ready", "Workers that are ready."),
    ("fiber_tasks_waiting", "waiting", "Tasks that no worker holds."),
    ("fiber_tasks_running", "running", "Tasks that workers hold."),
)
_COUNTERS = (
    ("fiber_tasks_done", "done", "Tasks that have ended, the failed ones among them."),
    ("fiber_tasks_failed", "failed", "Tasks that raised, or were given up."),
    ("fiber_tasks_retried", "retried", "Tasks that ran again because a worker was lost."),
)
#: panels of the dashboard: title, expression, legend
_PANELS = (
    ("Tasks a second", "sum by (run, pool) (rate(fiber_tasks_done_total[1m]))", "{{run}} {{pool}}"),
    ("Tasks that wait", "sum by (run, pool) (fiber_tasks_waiting)", "{{run}} {{pool}}"),
    ("Workers by state", "sum by (state) (fiber_pool_workers)", "{{state}}"),
    (
        "Workers whose task takes long",
        "sum by (run, pool) (fiber_pool_workers_slow)",
        "{{run}} {{pool}}",
    ),
    ("Workers by host", "sum by (host) (fiber_pool_workers)", "{{host}}"),
    (
        "Workers that are missing",
        "sum by (run, pool) (fiber_pool_workers_wanted - fiber_pool_workers_ready)",
        "{{run}} {{pool}}",
    ),
    (
        "Failed tasks and tasks that ran again, a second",
        "sum by (run) (rate(fiber_tasks_failed_total[1m]) + rate(fiber_tasks_retried_total[1m]))",
        "{{run}}",
    ),
    ("Items in queues", "fiber_queue_items", "{{run}} {{queue}}"),
    ("Processes by state", "sum by (state) (fiber_processes)", "{{state}}"),
)


class RunCollector:
    """Collector of Prometheus' client for the statuses of runs.

    Args:
        ask: returns the statuses, as :class:`fiber.watching.RunStatus` has them, of JSON's types.
    """

    def __init__(self, ask: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all runs at this moment."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        of_pool = ("run", "pool")
        gauges = [GaugeMetricFamily(name, text, labels=of_pool) for name, _, text in _GAUGES]
        counters = [CounterMetricFamily(name, text, labels=of_pool) for name, _, text in _COUNTERS]
        workers = GaugeMetricFamily(
            "fiber_pool_workers", "Workers by host and state.", labels=(*of_pool, "host", "state")
        )
        slow = GaugeMetricFamily(
            "fiber_pool_workers_slow",
            "Workers whose task has run for five times the median of its call.",
            labels=of_pool,
        )
        processes = GaugeMetricFamily(
            "fiber_processes", "Processes that are no workers.", labels=("run", "state")
        )
        queues = GaugeMetricFamily("fiber_queue_items", "Items in it.", labels=("run", "queue"))
        info = InfoMetricFamily("fiber_run", "A run.", labels=("run",))
        for status in self._ask():
            run = status["run"]
            info.add_metric((run,), {"backend": status["backend"], "pid": str(status["pid"])})
            for pool in status["pools"]:
                labels = run, pool["name"]
                for gauge, (_, field, _) in zip(gauges, _GAUGES, strict=True):
                    gauge.add_metric(labels, pool[field])
                for counter, (_, field, _) in zip(counters, _COUNTERS, strict=True):
                    counter.add_metric(labels, pool[field])
                # a program with an older fiber does not tell
                slow.add_metric(labels, sum(bool(one.get("is_slow")) for one in pool["workers"]))
                places = ((worker["host"], worker["state"]) for worker in pool["workers"])
                for place, count in Counter(places).items():
                    workers.add_metric((*labels, *place), count)
            states = Counter(process["state"] for process in status["processes"])
            for state, count in states.items():
                processes.add_metric((run, state), count)
            for queue in status["queues"]:
                queues.add_metric((run, str(queue["number"])), queue["length"])
        yield from (info, *gauges, *counters, workers, slow, processes, queues)


def registry_of(ask: Callable[[], Iterable[Mapping[str, Any]]]) -> CollectorRegistry:
    """Return a registry with the metrics of the runs that ``ask`` tells of, and nothing else.

    Raises:
        FiberError: Prometheus' client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        msg = "metrics need Prometheus' client: pip install 'fiber-core[prometheus]'"
        raise FiberError(msg) from error
    registry = CollectorRegistry()
    registry.register(RunCollector(ask))
    return registry


class MetricsServer:
    """HTTP server of a registry's metrics, at ``/metrics``, on a thread of its own.

    Args:
        registry: the metrics.
        address: ``HOST:PORT``; port 0 for any that is free.

    Raises:
        ConfigError: it is no such address.
        FiberError: it cannot be listened at.
    """

    def __init__(self, registry: CollectorRegistry, address: str) -> None:
        from prometheus_client import start_http_server

        use = "metrics are served at HOST:PORT, such as 127.0.0.1:9464"
        host, port = host_and_port(address, use)
        try:
            self._server, self._thread = start_http_server(port, host, registry=registry)
        except OSError as error:
            msg = f"metrics cannot be served at {address}: {error.strerror or error}"
            raise FiberError(msg) from error
        #: where they are served
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """End the server and its thread. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        if self._thread is not threading.current_thread():
            self._thread.join()


def serve_run(runtime: Runtime, address: str) -> MetricsServer | None:
    """Serve the metrics of this process's run; None, with a warning, where that cannot be.

    Raises:
        ConfigError: it is no address.
    """
    from fiber._watch.status import as_data

    try:
        return MetricsServer(registry_of(lambda: [as_data(runtime)]), address)
    except ConfigError:
        raise
    except FiberError as error:
        log.warning("fiber: %s; the program runs without", error)
        return None


def dashboard() -> dict[str, Any]:
    """Return a dashboard of these metrics, as Grafana imports it."""
    source = {"type": "prometheus", "uid": "${source}"}
    panels = [
        {
            "id": number + 1,
            "title": title,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
            "targets": [
                {"refId": "A", "datasource": source, "expr": expression, "legendFormat": legend}
            ],
        }
        for number, (title, expression, legend) in enumerate(_PANELS)
    ]
    variable = {"name": "source", "type": "datasource", "query": "prometheus"}
    return {
        "title": "Fiber",
        "uid": "fiber",
        "schemaVersion": 39,
        "time": {"from": "now-30m", "to": "now"},
        "refresh": "5s",
        "templating": {"list": [variable]},
        "panels": panels,
    }
