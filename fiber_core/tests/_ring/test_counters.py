"""How rings are counted."""

from fiber._ring import counters
from fiber._ring.counters import RingCounters, StatusCounter
from fiber._ring.model import Condition, ConditionKind, RingPhase, RingStatus

CREATED = (
    Condition(kind=ConditionKind.CREATED, is_true=True, reason="RingCreated", message="", time=0),
)


def status(phase, restarts=0):
    return RingStatus(phase=phase, conditions=CREATED, restarts=restarts)


def test_each_ring_is_counted_once_however_many_statuses_it_has(monkeypatch):
    monkeypatch.setattr(counters, "_counts", RingCounters())
    good, bad = StatusCounter(), StatusCounter()
    for phase, restarts in (("starting", 0), ("running", 1), ("succeeded", 1), ("succeeded", 1)):
        good(status(RingPhase(phase), restarts))
    for phase, restarts in (("starting", 0), ("failed", 2)):
        bad(status(RingPhase(phase), restarts))

    assert counters.counters() == RingCounters(created=2, succeeded=1, failed=1, restarts=3)


def test_prometheus_reads_them():
    text = RingCounters(created=3, restarts=1).to_prometheus()

    assert "# TYPE fiber_rings_created_total counter\nfiber_rings_created_total 3\n" in text
    assert text.endswith("fiber_rings_restarts_total 1\n")
