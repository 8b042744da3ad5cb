"""Locks that one process keeps: the owner's state, both sides, and the keeper's end."""

import mmap
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dying import killed_at
from fiber._agent.rundir import collect_notes
from fiber._base import values
from fiber._objects.address import Kind
from fiber._objects.sync import semaphore
from fiber._objects.sync.protocol import ACQUIRED, Notice, Op, Request, Status
from fiber._objects.sync.semaphore import (
    KEPT_AFTER,
    OwnedSemaphore,
    RemoteSemaphore,
    SemaphoreState,
)
from fiber.exceptions import HolderDiedWarning, LeaseLostError
from fiber.model import JobState, JobStatus, ProcessStatus
from interrupts import interrupted_while_reading
from wire_world import in_thread, until

# -- the state, with processes that play the other side


class Process:
    """What a process other than the owner does with a lock, and the messages under way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.to_owner: deque[Callable[[], list]] = deque()
        self.from_owner: deque[Callable[[], None]] = deque()
        self.keeps, self.noted, self.held = 0, False, False
        # requests of its threads that are not answered
        self.asked: set[int] = set()

    @property
    def has_it(self) -> bool:
        return self.held or (self.keeps > 0 and self.noted)


class Play:
    """A lock's state, its processes, and what may happen to them."""

    def __init__(self) -> None:
        self.lock = SemaphoreState(1, 1)
        self.processes = {name: Process(name) for name in "ab"}
        self.numbers = 0
        self.told: list[str] = []
        self.must_tell: list[str] = []
        self.may_tell: list[str] = []
        # requests of the owner's thread
        self.waiting: set[int] = set()
        self.mine = False

    def happen(self, event, name, pick):
        process = self.processes[name]
        getattr(self, f"_{event}")(process, pick)
        holders = [one.name for one in self.processes.values() if one.has_it]
        assert len(holders) + self.mine <= 1, "one has it"
        assert self.lock.value + sum(self.lock.holds.values()) == 1

    def take(self, answers):
        for process, notice in self.lock.take_notices():
            assert notice is Notice.RECALL
            if process in self.processes.values():
                process.from_owner.append(lambda process=process: self.recalled(process))
        for one in answers:
            if one.status is Status.OK_HOLDER_DIED:
                self.told.append(one.text)
            process = one.request.process
            if process is None:
                if one.request.number in self.waiting:
                    self.waiting.discard(one.request.number)
                    self.mine |= one.status in ACQUIRED
            else:
                process.from_owner.append(lambda one=one: self.answered(one))

    def answered(self, one):
        process = one.request.process
        process.asked.discard(one.request.number)
        if one.status in ACQUIRED:
            process.noted = True
            process.keeps, process.held = (one.request.number, False) if one.value else (0, True)

    def recalled(self, process):
        number, process.keeps = process.keeps, 0
        if number and process.noted:
            process.held = True
            process.to_owner.append(lambda: self.lock.confirm_held(process, number))
        elif number:
            process.to_owner.append(lambda: self.lock.release(process))

    def _ask(self, process, pick):
        if process.keeps and not process.noted:
            process.noted = True
            return
        if len(process.asked) == 3:
            return
        self.numbers += 1
        number = self.numbers
        process.asked.add(number)
        process.to_owner.append(
            lambda: self.lock.acquire(Request(process, number, slot=0), wait=pick > 1)
        )

    def _give_up(self, process, pick):
        for number in sorted(process.asked)[:1]:
            process.to_owner.append(
                lambda number=number: self.lock.cancel(process, number, expired=True)
            )

    def _release(self, process, pick):
        if not process.has_it:
            return
        process.noted = False
        if process.held:
            process.held = False
            process.to_owner.append(lambda: self.lock.release(process))

    def _give_back(self, process, pick):
        if process.keeps and not process.noted:
            process.keeps = 0
            process.to_owner.append(lambda: self.lock.release(process))

    def _send(self, process, pick):
        if process.to_owner:
            self.take(process.to_owner.popleft()())

    def _hear(self, process, pick):
        if process.from_owner:
            process.from_owner.popleft()()

    def _own(self, process, pick):
        if self.mine:
            self.mine = False
            self.take(self.lock.release(None))
        elif not self.waiting:
            self.numbers += 1
            self.waiting.add(self.numbers)
            self.take(self.lock.acquire(Request(None, self.numbers), wait=pick > 1))

    def _hurry(self, process, pick):
        for number in list(self.waiting):
            self.take(self.lock.cancel(None, number, expired=pick > 1))
            if pick <= 1:
                assert number not in self.waiting, "an interrupted thread does not wait"

    def _tire(self, process, pick):
        self.take(self.lock.note_lateness(*self.lock.keeping))

    def _die(self, process, pick):
        for _ in range(min(pick, len(process.to_owner))):
            self._send(process, pick)
        self.numbers += 1
        text = f"{process.name}{self.numbers}"
        is_keeper = self.lock.keeper is process
        if process.has_it:
            self.must_tell.append(text)
        elif not is_keeper:
            # its release was lost, or the grant
            self.may_tell.append(text)
        del self.processes[process.name]
        self.processes[process.name] = Process(process.name)
        was_idle = is_keeper and not process.noted
        self.take(self.lock.process_died(process, text, was_idle=was_idle))

    def settle(self):
        for _ in range(200):
            for process in self.processes.values():
                self.happen("send", process.name, 0)
                self.happen("hear", process.name, 0)
        assert not any(one.to_owner or one.from_owner for one in self.processes.values())


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["ask", "release", "send", "hear"] * 3
            + ["give_up", "give_back", "own", "hurry", "tire", "die"]
        ),
        st.sampled_from("aaab"),
        st.integers(0, 4),
    ),
    max_size=120,
)


@pytest.mark.timeout(600)
@given(EVENTS)
def test_whatever_happens_one_has_it_nobody_waits_for_a_free_one_and_deaths_are_told_apart(events):
    play = Play()
    for event in events:
        play.happen(*event)
    play.settle()

    if not play.mine and not any(one.has_it for one in play.processes.values()):
        assert not play.waiting, "the owner waits for nobody"
        assert not any(one.asked for one in play.processes.values())
        assert not play.lock.waiting
    # whoever acquires it next is told
    for one in play.processes.values():
        play.happen("release", one.name, 0)
    play.settle()
    if play.mine:
        play.happen("own", "a", 0)
        play.settle()
    while play.lock.value == 0 and play.lock.keeper is semaphore.NO_PROCESS:
        for one in play.processes.values():
            play.happen("release", one.name, 0)
        if play.mine:
            play.happen("own", "a", 0)
        play.settle()
    play.happen("own", "a", 4)
    play.settle()
    told = ", ".join(play.told).split(", ") if play.told else []
    assert set(play.must_tell) <= set(told) <= {*play.must_tell, *play.may_tell}
    assert len(told) == len(set(told)), "once"


def test_a_process_keeps_it_that_acquires_it_again_and_again_and_alone():
    lock = SemaphoreState(1, 1)

    def turn(process, number, slot=0):
        (answer,) = lock.acquire(Request(process, number, slot=slot), wait=True)
        if not answer.value:
            lock.release(process)
        return answer.value

    assert [turn(process, 1) for process in "aabaa"] == [0] * 5
    assert [turn("b", 2, slot=-1) for _ in range(5)] == [0] * 5, "it cannot"
    assert [turn("a", number) for number in range(KEPT_AFTER + 1)] == [0] * KEPT_AFTER + [1]
    assert lock.keeper == "a"


# -- both sides


@pytest.fixture
def child(owner, other):
    # no test takes that long
    other.timing = values.evolve(other.timing, heartbeat=3600)
    return owner.adopt(other)


@pytest.fixture(params=[Kind.LOCK, Kind.RLOCK])
def kind(request):
    return request.param


@pytest.fixture
def lock(owner, child, kind):
    return owner.make(OwnedSemaphore, kind, SemaphoreState(1, 1))


@pytest.fixture
def theirs(lock, other):
    """The lock at a process that keeps it."""
    theirs = other.remote(lock)
    keep(theirs)
    return theirs


def keep(theirs):
    for _ in range(KEPT_AFTER + 1):
        assert theirs.acquire(True, None)
        theirs.release()
    assert theirs._kept is not None


@pytest.fixture
def sent(theirs, monkeypatch):
    """Operations that the keeper sends from now on."""
    sent, send = [], theirs.send

    def note(op, *arguments):
        sent.append(op)
        send(op, *arguments)

    monkeypatch.setattr(theirs, "send", note)
    return sent


def test_a_keeper_acquires_and_releases_it_without_a_message(theirs, sent):
    for _ in range(100):
        assert theirs.acquire(True, None)
        assert theirs.local_hold.is_held_by_thread
        assert theirs.value() == 0
        theirs.release()
        assert theirs.local_hold.held == 0
        assert theirs.value() == 1

    assert sent == []


def test_a_process_keeps_the_lock_of_its_child_and_a_stranger_keeps_none(owner, other, third):
    lock = owner.make(OwnedSemaphore, Kind.LOCK, SemaphoreState(1, 1))
    other.adopt(owner)
    keep(other.remote(lock))
    with pytest.raises(AssertionError):
        keep(third.remote(lock))


def test_an_idle_keeper_gives_it_to_whoever_asks(lock, theirs, third, sent):
    assert lock.value() == 1
    assert sent == [Op.RELEASE]
    for last in (lock, third.remote(lock)):
        keep(theirs)
        assert last.acquire(False, None), "the answer is the truth"
        assert not theirs.acquire(False, None)
        last.release()
        keep(theirs)
        assert last.acquire(True, 0.0001), "though the time was up before the keeper had answered"
        last.release()


def test_a_keeper_that_holds_it_gives_it_back_with_its_release(lock, theirs, third, sent):
    theirs.acquire(True, None)
    last = third.remote(lock)
    for one in (lock, last):
        assert not one.acquire(False, None)
        assert not one.acquire(True, 0.01)
        assert one.value() == 0

    def turn(one):
        assert one.acquire(True, 20)
        one.release()

    waits = [in_thread(lambda one=one: turn(one)) for one in (lock, last)]
    until(lambda: lock._semaphore.waiting == 2)
    assert theirs.local_hold.is_held_by_thread
    theirs.release()

    for wait in waits:
        wait()
    assert sent == [Op.HELD, Op.RELEASE]
    keep(theirs)


def test_threads_of_a_keeper_take_turns(lock, theirs):
    turns, count = 30, 0

    def take_turns():
        nonlocal count
        for _ in range(turns):
            assert theirs.acquire(True, 20)
            seen = count
            time.sleep(0)
            count = seen + 1
            theirs.release()

    for wait in [in_thread(take_turns) for _ in range(3)]:
        wait()

    assert count == 3 * turns
    assert lock.acquire(True, 20)


def test_after_some_time_it_is_not_acquired_without_asking_the_owner(
    theirs, sent, other, monkeypatch
):
    later = semaphore.clock() + other.timing.heartbeat + 1
    monkeypatch.setattr(semaphore, "clock", lambda: later)
    assert theirs.acquire(True, None)
    assert Op.ACQUIRE in sent
    theirs.release()
    sent.clear()

    assert theirs.acquire(True, None)
    assert sent == []


def test_what_cannot_wait_is_refused_where_the_keeper_does_not_answer(
    lock, theirs, owner, third, monkeypatch
):
    owner.timing = values.evolve(owner.timing, heartbeat=0.05)
    heard = threading.Event()
    monkeypatch.setattr(theirs, "_on_recall", heard.set)
    waits = in_thread(lambda: lock.acquire(True, 20))
    assert heard.wait(20)

    assert not lock.acquire(False, None)
    assert not third.remote(lock).acquire(True, 0.01)
    assert lock.value() == 0
    monkeypatch.undo()
    theirs._on_recall()
    assert waits()


def test_one_that_another_process_may_not_release_is_free(lock, theirs, third, kind):
    if kind is Kind.RLOCK:
        pytest.skip("no other thread may")
    for one in (lock, third.remote(lock), theirs):
        with pytest.raises(ValueError, match="released too many times"):
            one.release()
        keep(theirs)

    theirs.acquire(True, None)
    lock.release()
    until(lambda: theirs.local_hold.held == 0)
    assert lock.acquire(False, None)


def test_who_lets_go_of_the_last_handle_keeps_nothing(lock, theirs):
    theirs.drop(0)

    until(lambda: not lock._references.peers(0))
    assert lock._semaphore.value == 1


# -- interrupts and deaths at every place


def test_an_interrupted_acquire_takes_nothing_with_it(lock, theirs):
    number, was_interrupted = 0, True
    while was_interrupted:
        number += 1
        _, was_interrupted = interrupted_while_reading(
            number, lambda: theirs.acquire(True, None), RemoteSemaphore.acquire
        )
        assert theirs.local_hold.held == (not was_interrupted)
        assert theirs._kept is not None
        assert theirs.value() == was_interrupted

    assert number > 2
    theirs.release()
    assert lock.acquire(False, None)


def test_an_interrupted_release_can_be_repeated(lock, theirs):
    number, was_interrupted = 0, True
    while was_interrupted:
        number += 1
        theirs.acquire(True, None)
        _, was_interrupted = interrupted_while_reading(
            number, theirs.release, RemoteSemaphore.release
        )
        assert theirs.local_hold.is_held_by_thread is was_interrupted
        if was_interrupted:
            theirs.release()
        assert theirs.value() == 1

    assert number > 1
    assert lock.acquire(False, None)


# hundreds of forks, one after another
@pytest.mark.timeout(240)
@pytest.mark.parametrize("event", ["line", "opcode"])
def test_whoever_is_killed_at_any_place_while_it_held_it_has_noted_that(theirs, event, monkeypatch):
    # it is, in a process that was forked
    monkeypatch.setattr(RemoteSemaphore, "is_lost", False)
    inside, page, slot = mmap.mmap(-1, 1), theirs._page, theirs._slot

    def turn():
        theirs.acquire(True, None)
        inside[0] = 1
        inside[0] = 0
        theirs.release()

    def use(begin):
        begin()
        for _ in range(2):
            turn()

    seen, place = set(), 0
    was_killed = True
    while was_killed:
        place += 1
        inside[0] = page[slot] = 0
        was_killed = killed_at(place, use, semaphore, sys.modules[__name__], event=event)
        assert page[slot] or not inside[0]
        seen.add((inside[0], page[slot]))
    assert seen == {(0, 0), (0, 1), (1, 1)}
    assert not page[slot]


# -- the end of a keeper


def report(child, folder, noted=None):
    """Report the end of a keeper as its supervisor does."""
    found = collect_notes(str(folder), os.getpid()) if noted is None else noted
    process = ProcessStatus(index=0, state=JobState.FAILED, noted=found)
    child.note_report(JobStatus(state=JobState.FAILED, processes=(process,)))


@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("held", [True, False])
def test_the_death_of_one_that_only_kept_it_is_not_the_death_of_a_holder(
    lock, theirs, other, child, world, held, is_early
):
    if held:
        theirs.acquire(True, None)
    if is_early:
        report(child, world.folder)
    other.die()
    waits = in_thread(lambda: inherits(lock))
    if not is_early:
        until(lambda: lock._semaphore.waiting)
        report(child, world.folder)

    assert waits() is held


def inherits(lock):
    """Whether the lock, which is acquired, was that of a dead holder."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert lock.acquire(True, 20)
    assert all(one.category is HolderDiedWarning for one in told)
    return bool(told)


@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("held", [True, False])
def test_the_parent_of_one_that_is_no_child_tells_how_it_died(
    lock, other, third, monkeypatch, held, is_early
):
    heads, theirs = [], third.remote(lock)

    def leave_will(urls, target, head, then):
        assert (urls, target) == (lock.address.urls, lock.target)
        heads.append(head)
        then()

    def is_kept():
        assert theirs.acquire(True, 20)
        theirs.release()
        return theirs._kept

    monkeypatch.setattr(third.store, "leave_will", leave_will)
    until(is_kept)
    if held:
        theirs.acquire(True, None)
    (head,), parent = heads, other.remote(lock)
    noted = bytes(theirs._page).rstrip(b"\0")
    if is_early:
        parent.cast([head, noted])
        parent.sync()
    third.die()
    waits = in_thread(lambda: inherits(lock))
    if not is_early:
        until(lambda: lock._semaphore.waiting and lock._lost_keepers)
        parent.cast([head, noted])

    assert waits() is held
    parent.cast([head, noted])
    parent.sync()
    assert lock._noted == {}


def test_where_nobody_knows_it_counts_as_held(lock, owner, theirs, other, child):
    owner.timing = values.evolve(owner.timing, report=0.05)
    other.die()

    assert inherits(lock)
    report(child, "", noted=b"")
    assert not lock.acquire(False, None) or lock.kind is Kind.RLOCK


@pytest.mark.parametrize(
    "held, code, told", [(False, 0, False), (False, 3, False), (True, 3, True)]
)
def test_a_keeper_that_exits_gives_it_back(lock, theirs, other, child, world, held, code, told):
    if held:
        theirs.acquire(True, None)
    other.end(code)
    report(child, world.folder)

    assert inherits(lock) is told


def test_a_keeper_that_exits_well_while_it_holds_it_leaves_it_taken(lock, theirs, other):
    theirs.acquire(True, None)
    other.close()
    until(lambda: not lock._references.peers(0))

    assert not lock.acquire(False, None)


def test_a_keeper_that_was_cut_off_is_fenced(theirs, owner):
    theirs.acquire(True, None)
    for peer in owner.endpoint.peers():
        peer.close()

    until(lambda: theirs.is_lost)
    with pytest.raises(LeaseLostError):
        theirs.release()
