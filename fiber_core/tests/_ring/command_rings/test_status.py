"""Status of a ring whose owner runs, has ended, or was killed."""

import pytest

from fiber._ring.command_rings.records import Record, current_status, send_command
from fiber._ring.timing import RingTiming
from fiber.exceptions import FiberError
from owners import DEAD, owned_by


@pytest.fixture
def record(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
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


def test_before_its_first_status_a_ring_is_starting(record):
    assert current_status(record, RingTiming()) == {
        "phase": "starting",
        "name": "r",
        "backend": "local",
    }


def test_without_an_answer_the_written_status_counts(record):
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


def test_one_that_ended_well_stays_so(record):
    record.write({**RUNS, "phase": "succeeded"})
    owner_dies(record)

    assert current_status(record, RingTiming())["phase"] == "succeeded"


def test_a_ring_that_is_over_takes_no_commands(record):
    record.write({"phase": "succeeded"})

    with pytest.raises(FiberError, match="r has ended; fiber ring status r says how"):
        send_command(record, "suspend", RingTiming())
