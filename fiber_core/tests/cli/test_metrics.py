"""``fiber metrics``: what Prometheus reads of runs, and the dashboard that draws it."""

import json
import re
import urllib.request

import pytest
from click.testing import CliRunner

import fiber as mp
import require
from fiber._runtime import runtime
from fiber._watch import metrics
from fiber.cli.main import cli
from fiber.exceptions import ConfigError, FiberError
from pool_tasks import fail_at


@pytest.fixture(autouse=True)
def client():
    require.need_module("prometheus_client")


def fail_on_three(number):
    return fail_at(number, bad=3)


def invoke(*words):
    return CliRunner().invoke(cli, ["metrics", *words], prog_name="fiber")


@pytest.fixture
def run():
    """A run with a pool of two workers that has done five tasks, of which one failed."""
    queue = mp.Queue()
    with mp.Pool(2) as pool:
        with pytest.raises(ValueError):
            pool.map(fail_on_three, range(5))
        yield runtime.current().run_id
    pool.join()
    queue.close()


def test_a_run_is_told_by_its_pools_workers_and_tasks(run):
    done = invoke("--once", run)
    assert done.exit_code == 0, done.output
    of_pool = rf'{{pool="pool-\d+",run="{run}"}}'
    assert re.search(rf"^fiber_tasks_done_total{of_pool} 5.0$", done.output, re.MULTILINE)
    assert re.search(rf"^fiber_tasks_failed_total{of_pool} 1.0$", done.output, re.MULTILINE)
    assert re.search(rf"^fiber_pool_workers_wanted{of_pool} 2.0$", done.output, re.MULTILINE)
    assert re.search(rf"^fiber_pool_workers_slow{of_pool} 0.0$", done.output, re.MULTILINE)
    assert 'fiber_run_info{backend="local",pid=' in done.output
    assert re.search(
        r'^fiber_pool_workers{host=.*,state="(idle|busy)"} [12].0$', done.output, re.MULTILINE
    )


def test_the_dashboard_draws_metrics_that_there_are(run):
    served = set(re.findall(r"^(fiber_\w+)", invoke("--once").output, re.MULTILINE))
    named = set(re.findall(r"^# TYPE (fiber_\w+)", invoke("--once").output, re.MULTILINE))
    panels = json.loads(invoke("--grafana").output)["panels"]
    drawn = {name for panel in panels for name in re.findall(r"fiber_\w+", str(panel["targets"]))}
    assert drawn
    assert drawn <= served | named


def test_a_program_serves_its_own_where_a_setting_says_so(monkeypatch):
    monkeypatch.setenv("FIBER_METRICS", "127.0.0.1:0")
    with mp.Pool(1) as pool:
        assert pool.apply(abs, (-1,)) == 1
        (server,) = (
            part for part in runtime.current().parts if isinstance(part, metrics.MetricsServer)
        )
        with urllib.request.urlopen(server.url, timeout=30) as answer:
            text = answer.read().decode()
        assert 'fiber_pool_workers_ready{pool="pool-' in text
        assert runtime.current().run_id in text
    pool.join()


def test_an_address_that_is_taken_is_told_and_costs_a_program_nothing(run, caplog):
    registry = metrics.registry_of(list)
    with pytest.raises(ConfigError, match=r"HOST:PORT, such as 127.0.0.1:9464, and not at '9464'"):
        metrics.MetricsServer(registry, "9464")
    first = metrics.MetricsServer(registry, "127.0.0.1:0")
    address = re.search(r"//(.*)/", first.url)[1]
    with pytest.raises(FiberError, match=f"cannot be served at {address}: Address already in use"):
        metrics.MetricsServer(registry, address)
    assert metrics.serve_run(runtime.current(), address) is None
    assert "the program runs without" in caplog.text
    first.close()
