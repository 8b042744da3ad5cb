"""Semaphores and events in memory that processes share: deaths and interrupts at any place, other processes."""

import contextlib
import mmap
import threading
import warnings
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import soak
from dying import killed_at
from fiber._objects.address import Kind
from fiber._objects.sync import shared_event, shared_semaphore
from fiber._objects.sync.event import OwnedEvent
from fiber._objects.sync.monitor import is_possible
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState
from fiber._objects.sync.shared_event import SharedEvent
from fiber._objects.sync.shared_semaphore import (
    SharedSemaphore,
    entries_for,
    own_identity,
    size_of,
)
from fiber.exceptions import (
    ForkedError,
    HolderDiedError,
    HolderDiedWarning,
    LeaseLostError,
    PeerLostError,
)
from wire_world import in_thread, until

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no robust mutexes")

#: identity of a process that does not live, and the bit of those that do though there are none
DEAD, LIVING = 7 << 40 | 7, 1 << 61


@pytest.fixture(scope="module", autouse=True)
def _living():
    is_dead = shared_semaphore.is_dead
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_semaphore, "is_dead", lambda one: not one & LIVING and is_dead(one))
        yield


class Made:
    """A semaphore in shared memory, as processes of any identity use it."""

    def __init__(self, kind=Kind.LOCK, value=1, maximum=1, **options):
        state = SemaphoreState(value, maximum, **options)
        entries = entries_for(maximum, track_holders=state.track_holders)
        self.memory, self.kind = mmap.mmap(-1, size_of(entries)), kind
        self.ours = self._of(own_identity(), state=state, entries=entries)

    def of(self, number):
        """The same as another living process uses it."""
        return self._of(LIVING | number)

    def of_the_dead(self):
        return self._of(DEAD)

    def here(self):
        """The same as this process uses it, though forked."""
        return self._of(own_identity())

    def _of(self, identity, **options):
        return SharedSemaphore(self.memory, 0, self.kind, host="here", identity=identity, **options)


KINDS = {
    "lock": Made,
    "rlock": lambda: Made(Kind.RLOCK),
    "raising lock": lambda: Made(refuse_after_death=True),
    "semaphore": lambda: Made(Kind.SEMAPHORE, 2, 9, report_deaths=False),
}


def acquired(semaphore):
    """Acquire, whatever is told of deaths."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HolderDiedWarning)
        try:
            return semaphore.acquire(timeout=20)
        except HolderDiedError:
            return semaphore.acquire(timeout=20)


EVENTS = st.lists(
    st.tuples(st.sampled_from(["take", "release", "leave", "lose"]), st.integers(0, 2)),
    max_size=60,
)


@given(EVENTS, st.integers(0, 3), st.booleans())
def test_whatever_happens_permits_are_conserved(events, value, recover):
    made = Made(Kind.SEMAPHORE, value, 3, recover=recover, report_deaths=False)
    processes, held = [made.of(number) for number in range(3)], [0] * 3
    taken, total = 0, value
    for event, number in events:
        one = processes[number]
        if event == "take":
            is_free = sum(held) + taken < total
            assert one.acquire(False) == is_free
            held[number] += is_free
        elif event == "release":
            if held[number]:
                held[number] -= 1
                one.release()
            elif total - sum(held) - taken == 3:
                with pytest.raises(ValueError, match="too many times"):
                    one.release()
            else:
                one.release()
                # it was some other process's, or nobody's
                before, held = held, [other.local_hold.held for other in processes]
                if before == held:
                    total, taken = (total, taken - 1) if taken else (total + 1, 0)
        elif event == "leave":
            one.on_exit(0)
            taken, held[number] = taken + held[number], 0
        else:
            one._inside(lambda one=one: one._recover(one._identity))
            taken, held[number] = taken + (0 if recover else held[number]), 0
        assert [other.local_hold.held for other in processes] == held
        assert processes[0].value() == total - sum(held) - taken


# -- deaths


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("step", ["acquire", "release", "wait"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_may_be_killed_at_any_line(monkeypatch, kind, step):
    monkeypatch.setattr(shared_semaphore, "LOOKS", 2)
    made = KINDS[kind]()
    permits = made.ours.value()

    def use(begin):
        semaphore = made.here()
        if step == "acquire":
            begin()
        semaphore.acquire()
        if step == "wait":
            semaphore.for_others().acquire(timeout=0)
            begin()
            semaphore.for_others().acquire(timeout=0.003)
        begin()
        semaphore.release()

    for _ in range(soak.count(20)):
        line = 1
        while killed_at(line, use, shared_semaphore):
            for _ in range(permits):
                assert acquired(made.ours), f"before line {line}"
            assert made.ours.for_others().acquire(False) is False
            for _ in range(permits):
                made.ours.release()
            assert made.ours.value() == permits
            line += 1
        assert line > 10


@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_a_thread_that_waits_gets_what_a_dead_process_has(kind):
    made = KINDS[kind]()
    dead = made.of_the_dead()
    for _ in range(made.ours.value()):
        assert dead.acquire()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert made.ours.acquire(timeout=20)

    words = ["process 7 on here died while it held this lock"] if kind == "lock" else []
    assert [str(one.message).partition(";")[0] for one in told] == words


def test_one_that_does_not_wait_looks_too_and_what_is_not_recovered_stays_taken():
    made = Made(Kind.SEMAPHORE, 1, 1, report_deaths=False)
    made.of_the_dead().acquire()
    assert made.ours.acquire(False)
    lost = Made(Kind.SEMAPHORE, 1, 1, recover=False, report_deaths=False)
    lost.of_the_dead().acquire()
    assert not lost.ours.acquire(False)
    assert not lost.ours.acquire(timeout=0.01)


def test_where_warnings_are_errors_it_is_not_kept_and_a_report_is_for_one():
    made = Made()
    made.of_the_dead().acquire()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(HolderDiedWarning, match="process 7 on here died"):
            made.ours.acquire(timeout=20)
        assert made.ours.acquire(False)


# -- interrupts


def interrupted_behind(semaphore, name):
    """Have the next call of a function of the C library followed by an interrupt, as by a signal."""
    call = getattr(semaphore, name)

    def interrupted(mutex):
        setattr(semaphore, name, call)
        code = call(mutex)
        raise KeyboardInterrupt(code)

    setattr(semaphore, name, interrupted)


@pytest.mark.parametrize("where", ["_try_lock", "_unlock"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_leaves_it_free(kind, where):
    semaphore = KINDS[kind]().ours
    permits = semaphore.value()
    interrupted_behind(semaphore, where)
    with pytest.raises(KeyboardInterrupt):
        semaphore.acquire()
    assert (semaphore.value(), semaphore.local_hold.held) == (permits, 0)
    assert semaphore.acquire(False)
    interrupted_behind(semaphore, where)
    with pytest.raises(KeyboardInterrupt):
        semaphore.release()
    assert semaphore.value() == permits


@pytest.mark.parametrize("where", ["_try_lock", "_unlock"])
def test_an_interrupt_takes_no_report_with_it(where):
    made = Made()
    made.of_the_dead().acquire()
    assert made.ours._recover_dead()
    interrupted_behind(made.ours, where)
    with pytest.raises(KeyboardInterrupt):
        made.ours.acquire()
    with pytest.warns(HolderDiedWarning):
        assert made.ours.acquire(False)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("use", ["acquire", "release", "report_again"])
def test_an_interrupt_behind_a_death_inside_leaves_it_in_order(use):
    made = Made()
    if use == "release":
        made.ours.acquire()

    def die(begin):
        theirs = made.here()
        theirs._try_lock(theirs._mutex)
        begin()
        theirs.value()

    assert killed_at(1, die, shared_semaphore)
    # what it would have left behind
    made.ours._words[shared_semaphore._FREE] = 7
    interrupted_behind(made.ours, "_try_lock")
    with pytest.raises(KeyboardInterrupt):
        getattr(made.ours, use)(*(["a process"] if use == "report_again" else []))
    assert made.ours.value() == 1
    assert acquired(made.ours)
    assert made.ours.value() == 0


def test_a_wait_that_is_always_short_looks_too():
    made = Made()
    made.of_the_dead().acquire()
    with pytest.warns(HolderDiedWarning):
        until(lambda: made.ours.acquire(timeout=0.0001))


def test_an_interrupt_before_the_state_is_entered_repairs_nothing(monkeypatch):
    semaphore = Made().ours
    monkeypatch.setattr(semaphore, "_try_lock", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(semaphore, "_repair", Mock())
    with pytest.raises(KeyboardInterrupt):
        semaphore.report_again("it would be another's to repair")
    assert not semaphore._repair.called


def test_an_interrupted_wait_leaves_the_permit_to_others(monkeypatch):
    made = Made()
    holder, other = made.of(1), made.of(2)
    holder.acquire()

    def interrupt(value, seconds):
        holder.release()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(made.ours._changes, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.ours.acquire()
    assert other.acquire(False)


def test_a_handler_of_a_signal_that_uses_it_while_it_is_used_is_told(monkeypatch):
    semaphore = Made().ours
    call = semaphore._try_lock

    def handled(mutex):
        code = call(mutex)
        semaphore._try_lock = call
        with pytest.raises(RuntimeError, match="a handler of a signal"):
            semaphore.acquire(False)
        return code

    semaphore._try_lock = handled
    assert semaphore.acquire()


# -- waits


def test_a_thread_that_waits_is_served_though_others_never_stop():
    made = Made()
    ours, theirs = made.ours, made.of(1)
    ours.acquire()
    waits = in_thread(lambda: theirs.acquire(timeout=20) and theirs.release())
    until(lambda: ours._words[shared_semaphore._WAITERS])
    end = threading.Event()
    watch = in_thread(lambda: (waits(), end.set()))
    while not end.is_set():
        ours.release()
        ours.acquire()
    watch()


def test_those_that_wait_and_die_are_forgotten(monkeypatch):
    made = Made()
    made.ours.acquire()
    monkeypatch.setattr(shared_semaphore, "_GRACE", 0)
    assert made.of(1)._take(wait=1)[2] == 0
    words = made.ours._words
    assert words[shared_semaphore._WAITERS] == 1
    made.ours.release()
    assert words[shared_semaphore._WAITERS] == 0


def test_more_processes_than_entries_hold_permits(monkeypatch):
    monkeypatch.setattr(shared_semaphore, "_MAX_ENTRIES", 2)
    made = Made(Kind.SEMAPHORE, 3, 9, report_deaths=False)
    processes = [made.of(number) for number in range(4)]
    for one in processes[:3]:
        assert one.acquire(False)
    assert not processes[3].acquire(False)
    assert [one.local_hold.held for one in processes] == [1, 1, 1, 0]
    for one in processes[2::-1]:
        one.release()
    assert made.ours.value() == 3


def test_in_a_forked_process_it_is_refused():
    semaphore = Made().ours
    semaphore.abandon()
    with pytest.raises((ForkedError, AssertionError)):
        semaphore.acquire()


def test_a_holder_that_is_cut_off_is_told_however_often_that_is_noticed(lock, other):
    theirs = other.remote(lock)
    mapped = theirs.map(lock.where)
    assert mapped.acquire()
    for _ in range(2):
        theirs.fail(PeerLostError())
        with pytest.raises(LeaseLostError, match="others may hold it by now"):
            mapped.release()
    with pytest.warns(HolderDiedWarning):
        assert lock.shared.acquire(timeout=20)


# -- processes that do not map the memory


def make_lock(store):
    return OwnedSemaphore(store, Kind.LOCK, SemaphoreState(1, 1), is_shared=True)


@pytest.fixture
def lock(owner):
    """One that lives in shared memory of the owner."""
    return owner.make(make_lock)


def test_they_take_turns_with_those_that_do(lock, other, third):
    ours, theirs, last = lock.shared, other.remote(lock), third.remote(lock)
    for first, second in ((ours, theirs), (theirs, ours), (theirs, last)):
        assert first.acquire(True, None)
        assert not second.acquire(False, None)
        assert not second.acquire(True, 0.01)
        assert theirs.value() == 0
        waits = in_thread(lambda second=second: second.acquire(True, 20))
        first.release()
        assert waits()
        second.release()
        until(lambda: lock.value() == 1)
    with pytest.raises(ValueError, match="too many times"):
        theirs.release()
    until(lambda: lock._deputy is None)


def test_each_releases_what_another_holds(lock, other, third):
    theirs, last = other.remote(lock), third.remote(lock)
    lock.shared.acquire()
    theirs.release()
    assert last.acquire(False, None)
    lock.shared.release()
    assert theirs.acquire(True, None)
    # too late: another one has it by now
    last.release()
    assert theirs.value() == 0


@pytest.mark.parametrize("heir", ["owner", "third"])
def test_the_death_of_one_is_told(lock, other, third, heir):
    assert other.remote(lock).acquire(True, None)
    mine = lock.shared if heir == "owner" else third.remote(lock)

    def inherit():
        with pytest.warns(HolderDiedWarning, match="died while it held this lock"):
            return mine.acquire(True, 20)

    waits = in_thread(inherit)
    other.die()
    assert waits()
    mine.release()
    assert mine.acquire(True, 20)


def test_what_one_leaves_taken_stays_taken_and_what_nobody_waits_for_is_free(lock, other, third):
    theirs = other.remote(lock)
    theirs.acquire(True, None)
    waits = in_thread(lambda: third.remote(lock).acquire(True, 20))
    until(lambda: lock._semaphore.waiting)
    third.die()
    until(lambda: not lock._semaphore.waiting)
    theirs.release()
    with contextlib.suppress(Exception):
        waits()
    until(lambda: lock.value() == 1)
    assert theirs.acquire(True, 20)
    other.close()
    until(lambda: not lock._references.peers(0))
    assert not lock.shared.acquire(True, 0.01)
    lock.shared.release()


def test_memory_is_freed_with_the_last_handle(owner):
    made = [owner.make(make_lock) for _ in range(3)]
    places = {one.where for one in made}
    for one in made:
        one.drop(0)
    assert {owner.make(make_lock).where for _ in range(3)} == places


# -- events


@pytest.fixture
def event(owner):
    return owner.make(lambda store: OwnedEvent(store, is_shared=True))


def test_an_event_is_set_for_all(event, other):
    ours, theirs = event.shared, other.remote(event)
    assert not ours.wait(0)
    assert not ours.wait(0.01)
    assert not theirs.wait(0)
    for waits, sets in ((ours, theirs), (theirs, ours), (ours, ours)):
        thread = in_thread(lambda waits=waits: waits.wait(20))
        until(lambda: event._event.waiting or ours._words[shared_event._IS_AWAITED])
        sets.set()
        assert thread()
        assert ours.is_set()
        assert theirs.is_set()
        assert ours.wait(0)
        assert theirs.wait(20)
        (ours if sets is theirs else theirs).clear()
        assert not ours.is_set()
    until(lambda: event._deputy is None)


def test_a_thread_wakes_though_the_event_is_cleared_at_once():
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    ours, theirs = SharedEvent(memory, 64), SharedEvent(memory, 64)
    for _ in range(100):
        waits = in_thread(lambda: ours.wait(20))
        until(lambda: ours._words[shared_event._IS_AWAITED])
        theirs.set()
        theirs.clear()
        assert waits()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_may_be_killed_at_any_line_of_setting_an_event(monkeypatch):
    monkeypatch.setattr(shared_event, "turn", lambda left: 0.05)
    memory, line, is_killed = mmap.mmap(-1, mmap.PAGESIZE), 1, True

    def use(begin):
        event = SharedEvent(memory, 0)
        begin()
        event.set()

    while is_killed:
        ours = SharedEvent(memory, 0)
        waits = in_thread(lambda ours=ours: ours.wait(20))
        until(lambda ours=ours: ours._words[shared_event._IS_AWAITED])
        is_killed = killed_at(line, use, shared_event)
        assert not ours.is_set() or waits()
        ours.set()
        waits()
        ours.clear()
        line += 1
    assert line > 5
