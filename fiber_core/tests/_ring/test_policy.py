"""Policies of start and end, carried out on processes."""

import os
import signal
import time

import pytest

import fiber
from fiber._ring.policy import Clean, Policy
from fiber._runtime import runtime
from fiber.exceptions import FiberError
from fiber.experimental import ConditionKind, Ring, RingError, RingPhase, current_ring

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(120)]


def members_of(ring):
    return [one for one in fiber.active_children() if one.name.startswith(ring.name)]


def fails_in_one(rank, size):
    if rank == 0:
        raise ValueError("no good")
    time.sleep(60)


@pytest.mark.parametrize(
    "clean, running, known", [("all", 0, False), ("running", 0, True), ("none", 1, True)]
)
def test_what_is_cleaned_is_what_was_asked_for(clean, running, known):
    ring = Ring(2, fails_in_one, clean=clean)
    with pytest.raises(RingError, match="no good"):
        ring.run()

    for member in members_of(ring):
        if member.name.endswith(".0"):
            # nobody ends the one that raised: it leaves by itself
            member.join(30)
    assert len(members_of(ring)) == running
    # what is known of a ring is kept by its coordinator
    assert ring._controller.wait_closed(0) is not known
    assert ring.status().has(ConditionKind.FAILED)

    ring.terminate()
    assert ring._controller.wait_closed(30)
    assert members_of(ring) == []


def test_what_is_known_goes_when_its_time_to_live_is_over():
    ring = Ring(1, lambda rank, size: rank, ttl=1.0)

    assert ring.run() == [0]
    assert not ring._controller.wait_closed(0)

    assert ring._controller.wait_closed(30)
    assert members_of(ring) == []


@pytest.mark.parametrize("limit, succeeds", [(2, True), (1, False)])
def test_a_start_is_tried_again_as_often_as_it_may(monkeypatch, limit, succeeds):
    launcher = runtime.current().launcher
    launch, refused = launcher.launch, []

    def busy(process, **options):
        if len(refused) < 2:
            refused.append(process.name)
            msg = "no room for it just now"
            raise FiberError(msg)
        return launch(process, **options)

    monkeypatch.setattr(launcher, "launch", busy)
    ring = Ring(1, lambda rank, size: rank, backoff_limit=limit)

    if succeeds:
        assert ring.run() == [0]
    else:
        with pytest.raises(RingError, match="no room for it just now"):
            ring.run()
    assert len(refused) == 2
    reasons = [event.reason for event in ring.status().events]
    assert reasons.count("GangFailed") == 2


def test_an_exceeded_deadline_has_its_reason():
    ring = Ring(1, lambda rank, size: time.sleep(60), deadline=1.0)
    with pytest.raises(RingError):
        ring.run()

    found = ring.status().condition(ConditionKind.FAILED)
    assert (found.is_true, found.reason) == (True, "DeadlineExceeded")
    assert "within 1 s" in found.message


def lasts(rank, size):
    if current_ring().restarts == 0:
        time.sleep(600)


def test_in_every_state_conditions_have_reason_and_time():
    began = time.time()
    ring = Ring(2, lasts, max_restarts=1)
    seen = {}

    def reached(kind):
        assert ring.wait_for(lambda status: status.has(kind), 60)
        seen[kind] = ring.status()

    ring.start()
    reached(ConditionKind.CREATED)
    reached(ConditionKind.RUNNING)
    ring.suspend()
    assert ring.wait_for(lambda status: status.phase is RingPhase.SUSPENDED, 60)
    reached(ConditionKind.SUSPENDED)
    ring.resume()
    assert ring.wait_for(lambda status: status.phase is RingPhase.RUNNING, 60)
    os.kill(next(one.pid for one in members_of(ring)), signal.SIGKILL)
    assert ring.wait_for(lambda status: status.restarts == 1, 60)
    ring.join()
    reached(ConditionKind.SUCCEEDED)

    true_in = {
        kind.value: [one.kind.value for one in status.conditions if one.is_true]
        for kind, status in seen.items()
    }
    assert true_in["Running"] == ["Created", "Running"]
    assert true_in["Suspended"] == ["Created", "Suspended"]
    assert true_in["Succeeded"] == ["Created", "Succeeded"]
    last = seen[ConditionKind.SUCCEEDED]
    kinds = {one.kind.value for one in last.conditions}
    assert kinds == {"Created", "Running", "Suspended", "Restarting", "Succeeded"}
    assert all(one.reason and one.message for one in last.conditions)
    assert all(began - 1 <= one.time <= time.time() + 1 for one in last.conditions)
    assert last.condition(ConditionKind.RESTARTING).reason == "RingRunning"


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="heartbeat"):
        Policy(heartbeat=0.0)
    with pytest.raises(ValueError, match="max must be at least min"):
        Policy(min=3, max=2)
    assert Policy().clean is Clean.ALL
