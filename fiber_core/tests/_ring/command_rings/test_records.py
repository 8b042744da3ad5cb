"""Records of rings: found by name until deleted, and no name twice."""

import json
import time

import pytest

import owners
from fiber._ring.command_rings.records import (
    Record,
    current_status,
    find,
    records,
    send_command,
    to_json,
)
from fiber._ring.model import Condition, ConditionKind, Failure, RingPhase, RingStatus
from fiber._ring.timing import RingTiming
from fiber.backend_parts.liveness import Liveness
from fiber.exceptions import FiberError


@pytest.fixture(autouse=True)
def state(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def begin(name="one"):
    return Record.begin(name, ("echo", "x"))


def test_a_ring_is_found_by_its_name():
    begin("two")
    made = begin("one")

    assert [record.name for record in records()] == ["one", "two"]
    found = find("one")
    assert found == made
    made.take_ownership(door="/run/ring.sock", backend="local")
    assert (found.control_path, found.metadata()["argv"]) == ("/run/ring.sock", ["echo", "x"])
    assert found.liveness is Liveness.ALIVE


def test_an_unknown_name_is_an_error_with_the_known_ones():
    begin("one")

    with pytest.raises(FiberError, match="no ring is called 'two'; there are: one"):
        find("two")


def test_a_name_is_given_once():
    begin("one")

    with pytest.raises(FiberError, match="fiber ring delete one"):
        begin("one")


@pytest.mark.parametrize("name", ["", "../x", "A", "-a", "a b", "x" * 64])
def test_an_invalid_name_is_refused(name):
    with pytest.raises(FiberError, match="is no name for a ring"):
        begin(name)


def test_its_status_is_kept_and_goes_with_it():
    record = begin()
    assert record.status() == {}

    record.write({"phase": "running"})

    assert find("one").status() == {"phase": "running"}
    record.remove()
    assert list(records()) == []


OWN = """
import sys
from fiber._ring.command_rings.records import Record
Record.begin("theirs", ("true",)).write({"phase": "running"})
print(flush=True)
"""


def test_a_ring_whose_program_has_died_has_failed(state):
    with owners.running(OWN, inside=False):
        assert current_status(find("theirs"), RingTiming())["phase"] == "running"

    assert find("theirs").liveness is Liveness.DEAD
    assert current_status(find("theirs"), RingTiming())["failure"]["reason"] == "OwnerLost"


def test_a_ring_of_another_host_has_its_last_written_status(state):
    record = begin()
    record.write({"phase": "running"})
    owners.owned_by(record.path, owners.REMOTE)

    assert current_status(record, RingTiming())["phase"] == "running"
    assert record.status() == {"phase": "running"}
    with pytest.raises(FiberError, match="one belongs to process 17 of far, and nothing seen from"):
        send_command(record, "terminate", RingTiming())


def test_a_status_written_after_the_removal_is_ignored():
    record = begin()
    record.remove()

    record.write({"phase": "failed"})

    assert list(records()) == []


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


def test_a_status_is_json():
    failure = Failure(reason="EXIT(3)", rank=1, host="vm", exit_code=3, error=ValueError("x"))
    condition = Condition(
        kind=ConditionKind.FAILED, is_true=True, reason="EXIT(3)", message="m", time=1.0
    )
    status = RingStatus(phase=RingPhase.FAILED, conditions=(condition,), failure=failure)

    found = json.loads(json.dumps(to_json(status)))

    assert (found["phase"], found["conditions"][0]["kind"]) == ("failed", "Failed")
    assert (found["failure"]["rank"], found["failure"]["exit_code"]) == (1, 3)
    assert found["failure"]["error"] is None
