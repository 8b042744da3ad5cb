"""Records of rings: found by name until deleted, with a status whoever owns them, and counted."""

import socket
import time
from pathlib import Path

import pytest

from fiber._ring.command_rings import (
    ControlServer,
    Record,
    add_counts,
    current_status,
    find,
    records,
    request,
    send_command,
    to_prometheus,
    totals,
)
from fiber._ring.model import RingCounters, RingTiming
from fiber.backend_parts.liveness import Liveness
from fiber.exceptions import FiberError
from owners import DEAD, REMOTE, owned_by
from wire_world import threads


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def begin(name="one"):
    return Record.begin(name, ("echo", "x"))


def test_a_ring_is_found_by_its_name_with_its_status_until_it_is_removed():
    begin("two")
    made = begin("one")

    assert [record.name for record in records()] == ["one", "two"]
    found = find("one")
    assert found == made
    made.take_ownership(door="/run/ring.sock", backend="local")
    assert (found.control_path, found.metadata()["argv"]) == ("/run/ring.sock", ["echo", "x"])
    assert found.liveness is Liveness.ALIVE
    assert found.status() == {}
    made.write({"phase": "running"})
    assert find("one").status() == {"phase": "running"}
    made.remove()
    # what comes late changes nothing
    made.write({"phase": "failed"})
    assert [record.name for record in records()] == ["two"]


def test_an_unknown_name_is_an_error_with_the_known_ones():
    begin("one")

    with pytest.raises(FiberError, match="no ring is called 'two'; there are: one"):
        find("two")
    with pytest.raises(FiberError, match="fiber ring delete one"):
        begin("one")


@pytest.mark.parametrize("name", ["", "../x", "A", "-a", "a b", "x" * 64])
def test_an_invalid_name_is_refused(name):
    with pytest.raises(FiberError, match="is no name for a ring"):
        begin(name)


def test_a_ring_of_another_host_has_its_last_written_status(state):
    record = begin()
    record.write({"phase": "running"})
    owned_by(record.path, REMOTE)

    assert current_status(record, RingTiming())["phase"] == "running"
    assert record.status() == {"phase": "running"}
    with pytest.raises(FiberError, match="one belongs to process 17 of far, and nothing seen from"):
        send_command(record, "terminate", RingTiming())


def test_it_goes_when_its_time_to_live_is_over():
    for name, ttl, ended in (
        ("runs", 0.0, None),
        ("stays", 1000.0, time.time()),
        ("goes", 1.0, time.time() - 2),
    ):
        Record.begin(name, ("true",), ttl).write({"completion_time": ended})

    assert [record.name for record in records()] == ["runs", "stays"]
    # and its name is free
    Record.begin("goes", ("true",))


def test_others_may_not_look():
    assert begin().path.stat().st_mode & 0o077 == 0
    assert begin("two").path.parent.stat().st_mode & 0o077 == 0


@pytest.fixture
def record(tmp_path):
    made = Record.begin("r", ("true",))
    made.take_ownership(backend="local", door=str(tmp_path / "nowhere"))
    return made


RUNS = {
    "phase": "running",
    "up": 2,
    "conditions": [
        {"kind": "Created", "is_true": True, "reason": "RingCreated", "message": "", "time": 1.0},
        {"kind": "Running", "is_true": True, "reason": "RingRunning", "message": "", "time": 2.0},
    ],
}


def owner_dies(record):
    record.take_ownership()
    owned_by(record.path, DEAD)


def test_without_an_answer_the_written_status_counts_and_before_the_first_it_is_starting(record):
    assert current_status(record, RingTiming()) == {
        "phase": "starting",
        "name": "r",
        "backend": "local",
    }

    record.write(RUNS)

    assert current_status(record, RingTiming())["phase"] == "running"


def test_without_its_owner_a_ring_has_failed_for_good(record):
    record.write(RUNS)
    owner_dies(record)

    found = current_status(record, RingTiming())

    assert (found["phase"], found["up"], found["failure"]["reason"]) == ("failed", 0, "OwnerLost")
    truths = {one["kind"]: (one["is_true"], one["reason"]) for one in found["conditions"]}
    assert truths == {
        "Created": (True, "RingCreated"),
        "Running": (False, "OwnerLost"),
        "Failed": (True, "OwnerLost"),
    }
    assert found["events"][-1]["reason"] == "OwnerLost"
    assert current_status(record, RingTiming()) == found


def test_one_that_ended_well_stays_so_and_takes_no_commands(record):
    record.write({**RUNS, "phase": "succeeded"})
    with pytest.raises(FiberError, match="r has ended; fiber ring status r says how"):
        send_command(record, "suspend", RingTiming())

    owner_dies(record)

    assert current_status(record, RingTiming())["phase"] == "succeeded"


def test_what_is_counted_adds_up_whoever_counts():
    assert totals() == RingCounters()
    with threads(20, lambda _: add_counts(created=1)):
        pass
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
    # labels are escaped as it requires
    found = to_prometheus([{"name": 'a"b\\c', "backend": "x\ny"}])

    assert r'name="a\"b\\c",backend="x\ny"' in found


@pytest.fixture
def path(folder):
    def refuse():
        raise FiberError("not now")

    path = str(folder / "ring.sock")
    control = ControlServer(
        path,
        {
            "status": lambda: {"phase": "running"},
            "suspend": refuse,
            "resize": lambda jobs: int(jobs) + 1,
        },
        10.0,
    )
    yield path
    control.close()
    assert not Path(path).exists()


def test_a_command_is_answered(path):
    assert request(path, "status", 10.0) == {"phase": "running"}
    assert Path(path).stat().st_mode & 0o777 == 0o600
    assert request(path, "resize 4", 10.0) == 5


@pytest.mark.parametrize(
    "command, message",
    [
        ("suspend", "not now"),
        ("dance", "does not know"),
        ("resize x", "invalid literal"),
        ("resize", "missing"),
    ],
)
def test_a_refused_command_is_an_error(path, command, message):
    with pytest.raises(FiberError, match=message):
        request(path, command, 10.0)


def test_a_client_that_sends_nothing_is_harmless(path):
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(path)

    assert request(path, "status", 10.0) == {"phase": "running"}
