"""Barriers in shared memory: the same outcomes as of the state machine, deaths, processes without the memory."""

import mmap
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dying import killed_at
from fiber._objects.sync import barrier as shared_barrier
from fiber._objects.sync.barrier import (
    SIZE,
    Arrival,
    BarrierState,
    OwnedBarrier,
    PeersBarrierState,
    SharedBarrier,
)
from fiber._objects.sync.monitor import is_possible
from fiber._objects.sync.protocol import Request, Status
from wire_world import in_thread, until

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no robust mutexes")


def made(parties):
    memory = mmap.mmap(-1, SIZE)
    return memory, SharedBarrier(memory, 0, parties)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "arrive",
                "act",
                "cancel",
                "expire",
                "succeed",
                "fail",
                "reset",
                "abort",
                "exit",
                "die",
            ]
        ),
        st.sampled_from("abc"),
        st.integers(0, 5),
    ),
    max_size=40,
)


@given(EVENTS, st.integers(1, 3))
def test_whatever_happens_the_outcomes_are_those_of_the_state_machine(events, parties):
    _, shared = made(parties)
    machines = BarrierState(parties), PeersBarrierState(shared, lambda wait: None)
    waiting, running = [], []
    for number, (event, process, pick) in enumerate(events):
        outcomes = []
        for one in machines:
            if event in ("arrive", "act"):
                answers = one.arrive(Request(process, number), has_action=event == "act")
            elif event in ("cancel", "expire") and waiting:
                key = waiting[pick % len(waiting)]
                answers = one.cancel(*key, expired=event == "expire")
            elif event in ("succeed", "fail") and running:
                runner, action = running[pick % len(running)]
                outcome, answers = one.action_ended(runner, action, succeeded=event == "succeed")
                outcomes.append(outcome)
            elif event in ("reset", "abort"):
                answers = getattr(one, event)()
            elif event == "exit":
                answers = one.process_exited(process, 0)
            elif event == "die":
                answers = one.process_died(process, "")
            else:
                answers = []
            outcomes.append({(a.request.process, a.request.number): a.status for a in answers})
        half = len(outcomes) // 2
        assert outcomes[:half] == outcomes[half:]
        if event in ("arrive", "act"):
            waiting.append((process, number))
        found = outcomes[-1]
        running += [(a.request.process, a.value) for a in answers if a.status is Status.RUN_ACTION]
        waiting = [key for key in waiting if key not in found]
        if event in ("exit", "die"):
            waiting = [key for key in waiting if key[0] != process]
        assert shared.state() == (machines[0].is_broken, machines[0].waiting)


def test_parties_in_threads_pass_by_turns_with_their_places():
    memory, ours = made(3)
    others = [SharedBarrier(memory, 0) for _ in range(2)]

    def meet(barrier):
        return [barrier.arrive(20, has_action=False) for _ in range(50)]

    ends = [in_thread(meet, one) for one in others]
    rounds = zip(meet(ours), *(end() for end in ends), strict=True)
    for places in rounds:
        assert sorted(places) == [(Status.OK, place) for place in range(3)]


def test_a_party_whose_time_is_up_breaks_it_but_not_while_the_action_runs():
    _, ours = made(2)
    waiting, last, early = Arrival(False), Arrival(True), Arrival(False)
    for one in (waiting, last, early):
        ours.begin(one)
    assert last.status is Status.RUN_ACTION
    ours.expire(waiting)
    assert waiting.status is None
    ours.expire(early)
    assert early.status is Status.BROKEN
    assert ours.action_succeeded(last.number) is Status.OK
    ours.go_on(waiting)
    assert waiting.status is Status.OK
    # the one that came early has broken the next round
    assert ours.arrive(0, has_action=False)[0] is Status.BROKEN
    ours.reset()
    assert ours.arrive(0.01, has_action=False)[0] is Status.BROKEN
    assert ours.state() == (True, 0)


@pytest.mark.parametrize("when", ["waiting", "to run the action", "exit"])
def test_an_interrupted_party_is_taken_back(monkeypatch, when):
    memory, ours = made(2)
    theirs = SharedBarrier(memory, 0)
    if when == "waiting":
        monkeypatch.setattr(ours, "wait", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ours.arrive(20, has_action=False)
        assert theirs.state() == (False, 0)
        return
    waits = in_thread(lambda: theirs.arrive(20, has_action=False))
    until(lambda: ours.state() == (False, 1))
    if when == "exit":
        ours.on_exit()
        theirs.on_exit()
        assert ours.state() == (False, 0)
        ours.abort()
    else:
        unlock = ours._unlock

        def interrupted(mutex):
            ours._unlock = unlock
            unlock(mutex)
            raise KeyboardInterrupt

        ours._unlock = interrupted
        with pytest.raises(KeyboardInterrupt):
            ours.arrive(20, has_action=True)
    assert waits()[0] is Status.BROKEN


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_may_be_killed_at_any_line(monkeypatch):
    monkeypatch.setattr(shared_barrier, "MOST_LOOKS", 1)
    line, is_killed = 1, True
    while is_killed:
        memory, ours = made(2)

        def arrive(begin, memory=memory):
            theirs = SharedBarrier(memory, 0)
            begin()
            theirs.arrive(0.01, has_action=True)

        is_killed = killed_at(line, arrive, shared_barrier)
        # as the owner does, when it hears of it
        ours.abort()
        assert ours.arrive(20, has_action=False)[0] is Status.BROKEN
        ours.reset()
        other = SharedBarrier(memory, 0)
        waits = in_thread(lambda other=other: other.arrive(20, has_action=False))
        assert ours.arrive(20, has_action=False)[0] is Status.OK
        assert waits()[0] is Status.OK
        line += 1
    assert line > 30


@pytest.fixture
def barrier(owner):
    return owner.make(lambda store: OwnedBarrier(store, 2, is_shared=True))


def test_processes_without_the_memory_take_part(barrier, other):
    ours, theirs = barrier.shared, other.remote(barrier)
    for first, second in ((ours, theirs), (theirs, ours)):
        waits = in_thread(lambda first=first: first.arrive(20, has_action=False))
        until(lambda: ours.state() == (False, 1))
        assert theirs.state() == (False, 1)
        status, number = second.arrive(20, has_action=True)
        assert status is Status.RUN_ACTION
        assert second.action_succeeded(number) is Status.OK
        assert waits() == (Status.OK, 0)
    waits = in_thread(lambda: theirs.arrive(20, has_action=False))
    until(lambda: ours.state() == (False, 1))
    ours.reset()
    assert waits()[0] is Status.BROKEN
    waits = in_thread(lambda: ours.arrive(20, has_action=False))
    until(lambda: ours.state() == (False, 1))
    other.die()
    assert waits()[0] is Status.BROKEN
    until(lambda: barrier._deputy is None)
