"""A ring as one of its members sees it; its errors, and how rings are counted."""

import pickle

import pytest

from fiber._ring import model
from fiber._ring.model import (
    Condition,
    ConditionKind,
    Failure,
    Member,
    RingCounters,
    RingError,
    RingPhase,
    RingStatus,
    StatusCounter,
)
from fiber._ring.view import RingView, current_ring
from fiber.exceptions import FiberError


def ring(rank=0, size=2):
    members = tuple(
        Member(rank=number, ip="10.0.0.1", port=1, host="a", local_rank=number, local_size=size)
        for number in range(size)
    )
    return RingView(rank=rank, members=members)


def test_what_was_committed_does_not_change_any_more_and_steps_count_on_from_those_of_others():
    found, other, state = ring(), ring(1), [1]
    assert (found.state, found.step) == (None, 0)

    found.commit(state)
    state.append(2)

    assert (found.state, found.step) == ([1], 1)
    other.commit("x", step=7)
    found.take(*other.kept())
    found.commit("y")
    assert (found.state, found.step) == ("y", 8)


def test_a_snapshot_is_made_when_it_is_asked_for():
    found, steps, other = ring(), [3], ring(1)
    found.commit("committed", step=2)
    found.offer(lambda: (f"offered at {steps[-1]}", steps[-1]))
    steps.append(4)

    other.take(*found.kept())

    assert (other.state, other.step) == ("offered at 4", 4)


def test_where_a_snapshot_raises_what_was_committed_counts(caplog):
    found = ring()
    found.commit("committed", step=2)
    found.offer(lambda: 1 / 0)

    assert found.kept()[0] == 2
    assert "rank 0 of ring could not provide its state" in caplog.text


def test_a_change_of_members_wakes_waiting_threads():
    found, more = ring(0, 2), ring(2, 3)
    assert (found.changes, found.wait_for_change(0, 0)) == (0, False)

    assert found.changed(1, more.members, 1)
    assert (found.rank, found.size, found.changes) == (1, 3, 0)
    found.announce()

    assert found.wait_for_change(0, 0)
    assert found.changes == 1
    # what comes late changes nothing
    assert not found.changed(0, more.members[:1], 1)
    assert found.size == 3


def test_at_the_end_its_folder_goes_and_what_is_to_be_done_is_done_in_the_other_order():
    done, found = [], ring()
    folder = found.folder
    (folder / "file").write_text("x")
    assert found.folder == folder
    found.on_leave(lambda: done.append(1))
    found.on_leave(lambda: done.append(2))

    found.close()
    found.close()

    assert done == [2, 1]
    assert not folder.exists()


def test_a_process_in_no_ring_gets_an_error():
    with pytest.raises(FiberError, match="no member of a ring"):
        current_ring()


FAILURE = Failure(
    reason="EXIT(3)",
    message="exited with code 3",
    rank=2,
    host="beta",
    log_tail=("one", "two"),
    traceback="Traceback …",
)


def test_an_error_can_be_sent_and_its_text_has_rank_host_reason_and_last_output():
    error = pickle.loads(pickle.dumps(RingError(f"r failed: {FAILURE}", failure=FAILURE)))

    assert error.failure == FAILURE
    assert str(error) == (
        "r failed: rank 2 on beta: EXIT(3): exited with code 3\n    one\n    two\n\nTraceback …"
    )


def test_a_failure_without_a_rank_says_what_it_knows():
    assert str(Failure(reason="StartTimeout", message="late")) == "StartTimeout: late"
    assert str(Failure(reason="OOM", host="a")) == "a: OOM"


def test_each_ring_is_counted_once_however_many_statuses_it_has(monkeypatch):
    monkeypatch.setattr(model, "_counts", RingCounters())
    created = Condition(
        kind=ConditionKind.CREATED, is_true=True, reason="RingCreated", message="", time=0
    )
    good = [("starting", 0), ("running", 1), ("succeeded", 1), ("succeeded", 1)]
    bad = [("starting", 0), ("failed", 2)]
    for history in (good, bad):
        count = StatusCounter()
        for phase, restarts in history:
            count(RingStatus(phase=RingPhase(phase), conditions=(created,), restarts=restarts))

    assert model.ring_counters() == RingCounters(created=2, succeeded=1, failed=1, restarts=3)
