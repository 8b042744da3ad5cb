"""Counters outlive rings and programs, and have Prometheus' format."""

import threading

import pytest

from fiber._ring.command_rings.records import add_counts, to_prometheus, totals
from fiber._ring.counters import RingCounters


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_nothing_was_counted_at_first():
    assert totals() == RingCounters()


def test_what_is_counted_adds_up_whoever_counts():
    threads = [threading.Thread(target=add_counts, kwargs={"created": 1}) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    add_counts(succeeded=1, restarts=3)

    assert totals() == RingCounters(created=20, succeeded=1, restarts=3)


def test_prometheus_reads_totals_and_rings():
    add_counts(created=2, failed=1)
    ring = {"name": "r", "backend": "local", "phase": "running", "up": 2, "wanted": 3}

    lines = to_prometheus([{**ring, "start_time": 5.5, "completion_time": None}]).splitlines()

    assert "fiber_rings_created_total 2" in lines
    assert "fiber_rings_failed_total 1" in lines
    assert 'fiber_ring_info{name="r",backend="local",phase="running"} 1' in lines
    assert 'fiber_ring_up{name="r"} 2' in lines
    assert 'fiber_ring_start_time_seconds{name="r"} 5.5' in lines
    assert not [line for line in lines if line.startswith("fiber_ring_completion_time_seconds{")]
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_labels_are_escaped_as_prometheus_requires():
    found = to_prometheus([{"name": 'a"b\\c', "backend": "x\ny"}])

    assert r'name="a\"b\\c",backend="x\ny"' in found
