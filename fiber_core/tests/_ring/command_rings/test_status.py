"""How a ring stands when its owner is there, is gone, or was killed."""

import pytest

from fiber._ring.command_rings.records import Record, standing, tell
from fiber.exceptions import FiberError
from owners import DEAD, owned_by


@pytest.fixture
def record(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Record.begin("r", ("true",))
    made.owned(backend="local", door=str(tmp_path / "nowhere"))
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
    record.owned()
    owned_by(record.path, DEAD)


def test_before_it_has_said_anything_it_starts(record):
    assert standing(record) == {"phase": "starting", "name": "r", "backend": "local"}


def test_an_owner_that_does_not_answer_yet_has_written_it_down(record):
    record.write(RUNS)

    assert standing(record)["phase"] == "running"


def test_without_its_owner_it_has_failed_and_says_so_ever_after(record):
    record.write(RUNS)
    owner_dies(record)

    found = standing(record)

    assert (found["phase"], found["up"], found["failure"]["reason"]) == ("failed", 0, "OwnerLost")
    truths = {one["kind"]: (one["is_true"], one["reason"]) for one in found["conditions"]}
    assert truths == {
        "Created": (True, "RingCreated"),
        "Running": (False, "OwnerLost"),
        "Failed": (True, "OwnerLost"),
    }
    assert found["events"][-1]["reason"] == "OwnerLost"
    assert standing(record) == found


def test_one_that_ended_well_stays_so(record):
    record.write({**RUNS, "phase": "succeeded"})
    owner_dies(record)

    assert standing(record)["phase"] == "succeeded"


def test_nobody_can_tell_one_that_is_over_anything(record):
    record.write({"phase": "succeeded"})

    with pytest.raises(FiberError, match="r has ended; fiber ring status r says how"):
        tell(record, "suspend")
