"""Semaphores and events in memory that processes share: deaths and interrupts at any place, other processes."""

import _thread
import contextlib
import functools
import itertools
import mmap
import threading
import warnings
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import soak
from dying import killed_at
from fiber._objects.address import Kind
from fiber._objects.sync import event as shared_event
from fiber._objects.sync import shared_lock, shared_semaphore
from fiber._objects.sync.event import OwnedEvent, SharedEvent
from fiber._objects.sync.monitor import is_possible
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState
from fiber._objects.sync.shared_lock import SharedLock, UntrackedSemaphore
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

pytestmark = [
    pytest.mark.skipif(not is_possible(), reason="this system has no robust mutexes"),
    # some fork hundreds of times, once for each instruction
    pytest.mark.timeout(240),
]

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

    used = SharedSemaphore

    def __init__(self, kind=Kind.LOCK, value=1, maximum=1, **options):
        state = SemaphoreState(value, maximum, **options)
        self.kind = kind
        self.ours = self._make(state)

    def _make(self, state):
        entries = entries_for(state.maximum, track_holders=state.track_holders)
        self.memory = mmap.mmap(-1, size_of(entries))
        return self._of(own_identity(), state=state, entries=entries)

    def of(self, number):
        """The same as another living process uses it."""
        return self._of(LIVING | number)

    def of_the_dead(self):
        return self._of(DEAD)

    def here(self):
        """The same as this process uses it, though forked."""
        return self._of(own_identity())

    def _of(self, identity, **options):
        return self.used(self.memory, 0, self.kind, host="here", identity=identity, **options)


class Seated(Made):
    """A lock that the standard library's code takes."""

    used = SharedLock

    def _make(self, state):
        count = shared_lock.seats()
        self.memory = mmap.mmap(-1, shared_lock.size_of(count))
        return self._of(own_identity(), state=state, count=count)


class Untracked(Made):
    """A semaphore that the standard library's code takes, and whose permits are lost with their holder."""

    used = UntrackedSemaphore

    def __init__(self, value=1, maximum=9):
        super().__init__(Kind.SEMAPHORE, value, maximum, recover=False, report_deaths=False)

    def _make(self, state):
        self.memory = mmap.mmap(-1, UntrackedSemaphore.SIZE)
        return self._of(own_identity(), state=state)


needs_seats = pytest.mark.skipif(
    not shared_lock.is_possible(), reason="this system has other semaphores"
)
WITHOUT_SEATS = {
    "lock": Made,
    "rlock": lambda: Made(Kind.RLOCK),
    "raising lock": lambda: Made(refuse_after_death=True),
    "semaphore": lambda: Made(Kind.SEMAPHORE, 2, 9, report_deaths=False),
}
SEATED = {
    "seated lock": Seated,
    "seated rlock": lambda: Seated(Kind.RLOCK),
    "seated raising lock": lambda: Seated(refuse_after_death=True),
}
KINDS = WITHOUT_SEATS | SEATED
ALL_KINDS = [*WITHOUT_SEATS, *(pytest.param(kind, marks=needs_seats) for kind in SEATED)]
KINDS["untracked semaphore"] = Untracked
LOCKS = ["lock", pytest.param("seated lock", marks=needs_seats)]
ALL_WAYS = [*LOCKS, pytest.param("untracked semaphore", marks=needs_seats)]
QUICK = pytest.mark.parametrize("make", [Seated, Untracked])


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
    conserves_permits(made, events, value, 3, recover=recover)


@needs_seats
@given(EVENTS, st.integers(0, 1))
def test_whatever_happens_a_lock_is_held_once(events, value):
    made = Seated(Kind.LOCK, value, 1, report_deaths=False)
    conserves_permits(made, events, value, 1, recover=True)


@needs_seats
@given(EVENTS, st.integers(0, 3))
def test_whatever_happens_what_is_released_of_an_untracked_semaphore_is_free(events, value):
    made = Untracked(value, 3)
    processes, held = [made.of(number) for number in range(3)], [0] * 3
    for event, number in events:
        one = processes[number]
        if event == "take":
            assert one.acquire(False) == (value > 0)
            held[number] += value > 0
            value = max(0, value - 1)
        elif event == "release":
            held[number] = max(0, held[number] - 1)
            with pytest.raises(ValueError, match="too many times") if value == 3 else nullcontext():
                one.release()
            value = min(3, value + 1)
        elif event == "leave":
            one.on_exit(0)
        else:
            one.cut_off(lambda: PeerLostError("gone"))
            for use in (one.acquire, one.release, one.value):
                with pytest.raises(PeerLostError):
                    use()
            assert one.local_hold.held == 0
            processes[number], held[number] = made.of(number), 0
        assert [other.local_hold.held for other in processes] == held
        assert made.ours.value() == value


def conserves_permits(made, events, value, maximum, *, recover):
    processes, held = [made.of(number) for number in range(3)], [0] * 3
    taken, total, late = 0, value, set()
    for event, number in events:
        one = processes[number]
        if event == "take":
            is_free = sum(held) + taken < total
            assert one.acquire(False) == is_free
            held[number] += is_free
            late.discard(number)
        elif event == "release" and number in late and maximum == 1:
            # what another one has released is not its to release, whoever has it by now
            continue
        elif event == "release":
            if held[number]:
                held[number] -= 1
                one.release()
            elif total - sum(held) - taken == maximum:
                with pytest.raises(ValueError, match="too many times"):
                    one.release()
            else:
                one.release()
                # it was some other process's, or nobody's
                before, held = held, [other.local_hold.held for other in processes]
                late |= {n for n in range(3) if before[n] and not held[n]}
                if before == held:
                    total, taken = (total, taken - 1) if taken else (total + 1, 0)
        elif event == "leave":
            one.on_exit(0)
            taken, held[number] = taken + held[number], 0
        else:
            one.on_exit(1)
            taken, held[number] = taken + (0 if recover else held[number]), 0
        assert [other.local_hold.held for other in processes] == held
        assert processes[0].value() == total - sum(held) - taken


@needs_seats
@pytest.mark.parametrize("kind", SEATED)
def test_a_lock_that_is_soon_released_is_acquired_without_the_monitor(monkeypatch, kind):
    look(monkeypatch, 10**9)
    made = KINDS[kind]()
    waiting, other = made.here(), made.of(1)
    assert waiting.acquire()
    waiting.release()
    other.acquire()
    monkeypatch.setattr(waiting, "_take", Mock(side_effect=AssertionError))
    wait = in_thread(waiting.acquire)
    other.release()
    assert wait()


# -- deaths


def look(monkeypatch, times):
    monkeypatch.setattr(shared_semaphore, "MOST_LOOKS", times)
    monkeypatch.setattr(shared_lock, "MOST_LOOKS", times)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.timeout(3600 if soak.is_full() else 240)
@pytest.mark.parametrize("step", ["acquire", "release", "wait"])
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_process_may_be_killed_at_any_line(monkeypatch, kind, step):
    look(monkeypatch, 2)
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
        for line in soak.places(list(KINDS).index(kind)):
            if not killed_at(line, use, shared_semaphore, shared_lock):
                break
            for _ in range(permits):
                assert acquired(made.ours), f"before line {line}"
            assert made.ours.for_others().acquire(False) is False
            for _ in range(permits):
                made.ours.release()
            assert made.ours.value() == permits
        assert line > (5 if kind in SEATED and step == "release" else 10)


@needs_seats
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("kind", SEATED)
def test_a_process_may_be_killed_at_any_instruction_of_the_quick_way(kind):
    made = KINDS[kind]()

    def use(begin):
        lock = made.here()
        lock.acquire()
        lock.release()
        begin()
        lock.acquire()
        lock.release()

    step = 1
    while killed_at(step, use, shared_lock, event="opcode"):
        assert acquired(made.ours), f"before instruction {step}"
        assert made.ours.for_others().acquire(False) is False
        made.ours.release()
        step += 1
    assert step > 20


@needs_seats
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("event, least", [("opcode", 20), ("line", 10)])
@pytest.mark.parametrize("part", ["releases", "takes"])
def test_a_process_may_be_killed_while_a_lock_is_handed_to_another(part, event, least):
    step, is_killed = 1, True

    def use(begin):
        here, other = made.here(), made.of(1)
        if part == "takes":
            here.acquire()
            other.release()
        begin()
        if part == "takes":
            here.acquire()
        here.release()

    while is_killed:
        made = Seated()
        if part == "releases":
            made.ours.acquire()
        is_killed = killed_at(step, use, shared_lock, event=event)
        if not made.ours.value() and part == "releases":
            made.ours.release()
        assert acquired(made.ours), f"before step {step}"
        assert made.of(2).acquire(False) is False
        made.ours.release()
        assert made.ours.value() == 1
        step += 1
    assert step > least


@needs_seats
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("event, least", [("opcode", 30), ("line", 60)])
def test_who_is_killed_with_an_untracked_semaphore_takes_no_more_than_its_permit(
    monkeypatch, event, least
):
    look(monkeypatch, 2)
    monkeypatch.setattr(shared_semaphore, "GRACE", 0)
    made, step = Untracked(2), 1

    def use(begin):
        semaphore = made.here()
        begin()
        semaphore.acquire()
        if event == "line":
            # through the monitor
            semaphore.wait(True, None)
            semaphore.acquire(timeout=0.003)
            semaphore.release()
        semaphore.release()

    while killed_at(step, use, shared_semaphore, shared_lock, event=event):
        lost = 2 - made.ours.value()
        assert lost in ((0, 1) if event == "opcode" else (0, 1, 2)), f"before step {step}"
        for _ in range(lost):
            made.ours.release()
        for _ in range(2):
            assert made.ours.acquire(timeout=20), f"before step {step}"
        assert not made.of(1).acquire(False)
        for _ in range(2):
            made.ours.release()
        step += 1
    assert step > least


@needs_seats
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.timeout(3600 if soak.is_full() else 240)
def test_a_process_may_be_killed_while_it_recovers_what_another_had():
    for line in soak.places():
        made = Seated()

        def recover(begin, made=made):
            made.of_the_dead().acquire()
            begin()
            acquired(made.here())

        is_killed = killed_at(line, recover, shared_semaphore, shared_lock)
        assert acquired(made.ours), f"before line {line}"
        assert made.ours.for_others().acquire(False) is False
        made.ours.release()
        assert made.ours.value() == 1
        if not is_killed:
            break
    assert line > 50


@pytest.mark.parametrize("kind", [*LOCKS, "semaphore"])
def test_a_thread_that_waits_gets_what_a_dead_process_has(kind):
    made = KINDS[kind]()
    dead = made.of_the_dead()
    for _ in range(made.ours.value()):
        assert dead.acquire()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert made.ours.acquire(timeout=20)

    words = ["process 7 on here died while it held this lock"] if "lock" in kind else []
    assert [str(one.message).partition(";")[0] for one in told] == words


def test_one_that_does_not_wait_looks_too_and_what_is_not_recovered_stays_taken():
    made = Made(Kind.SEMAPHORE, 1, 1, report_deaths=False)
    made.of_the_dead().acquire()
    assert made.ours.acquire(False)
    lost = Made(Kind.SEMAPHORE, 1, 1, recover=False, report_deaths=False)
    lost.of_the_dead().acquire()
    assert not lost.ours.acquire(False)
    assert not lost.ours.acquire(timeout=0.01)


@pytest.mark.parametrize("kind", LOCKS)
def test_where_warnings_are_errors_it_is_not_kept_and_a_report_is_for_one(kind):
    made = KINDS[kind]()
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
@pytest.mark.parametrize("kind", WITHOUT_SEATS)
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


@needs_seats
@pytest.mark.parametrize("where", ["_try_lock", "_unlock", "seat", "permit"])
@pytest.mark.parametrize("kind", SEATED)
def test_an_interrupt_of_the_way_through_the_monitor_leaves_it_free(kind, where):
    lock = KINDS[kind]().ours
    if where in ("_try_lock", "_unlock"):
        interrupted_behind(lock, where)
    elif where == "seat":
        interrupted_behind(lock._known_at(shared_lock._SEATS + shared_lock._SEAT), "_post")
    else:
        lock._permit = SimpleNamespace(
            acquire=followed_by_an_interrupt(lock._permit.acquire),
            release=lock._permit.release,
            _count=lock._permit._count,
            _is_mine=lock._permit._is_mine,
        )
    with pytest.raises(KeyboardInterrupt):
        lock.acquire()
    assert (lock.value(), lock.local_hold.held) == (1, 0)
    assert lock.acquire(False)
    lock.release()
    assert lock.value() == 1


def followed_by_an_interrupt(call):
    interrupts = [KeyboardInterrupt]

    def interrupted(*arguments):
        result = call(*arguments)
        if interrupts:
            raise interrupts.pop()
        return result

    return interrupted


def ticking(call):
    """The same call, during which a signal comes: its handler runs behind the step of a loop that it is in."""

    def ticked(*arguments):
        ticks = map({None: arguments}.get, iter(_thread.interrupt_main, 1))
        for result in itertools.starmap(call, ticks):
            return result

    return ticked


@needs_seats
@pytest.mark.parametrize(
    "kind, where",
    [
        *itertools.product(SEATED, ["claim", "take", "give", "leave"]),
        ("seated lock", "take again"),
    ],
)
def test_an_interrupt_of_the_quick_way_leaves_it_free_or_counted(kind, where):
    made = KINDS[kind]()
    lock = made.ours
    lock.acquire()
    (made.of(1) if where == "take again" else lock).release()
    seat, permit = lock._user, lock._permit
    claim, leave = seat.release, seat.acquire
    take, give = permit.acquire, permit.release
    lock._bind(
        SimpleNamespace(
            release=ticking(claim) if where == "claim" else claim,
            acquire=ticking(leave) if where == "leave" else leave,
        ),
        SimpleNamespace(
            acquire=ticking(take) if "take" in where else take,
            release=ticking(give) if where == "give" else give,
            _is_mine=permit._is_mine,
        ),
    )
    with pytest.raises(KeyboardInterrupt):
        interrupted(lock)
    lock._bind(seat, permit)
    held = lock.local_hold.held
    assert lock.value() == 1 - held
    assert held == (where in ("claim", "take", "take again"))
    if held:
        lock.release()
    assert lock.acquire(False)
    assert made_by_another(lock).acquire(False) is False
    lock.release()
    assert made_by_another(lock).acquire(False)


def interrupted(used):
    used.acquire()
    used.release()
    for _ in range(2):
        # where handlers run at the latest
        pass


@needs_seats
@pytest.mark.parametrize(
    "use, where",
    [
        ("acquire", "take"),
        ("acquire", "give"),
        *(("wait", one) for one in ("take", "_try_lock", "_unlock")),
    ],
)
def test_an_interrupt_leaves_each_permit_of_an_untracked_semaphore_free_or_counted(use, where):
    semaphore = Untracked(2).ours
    permit, gate = semaphore._permit, semaphore._gate_at.opened()
    calls = {"acquire": permit.acquire, "release": permit.release, "_is_mine": permit._is_mine}
    if where == "take":
        calls["acquire"] = ticking(permit.acquire)
    elif where == "give":
        calls["release"] = ticking(permit.release)
    else:
        interrupted_behind(semaphore, where)
    semaphore._bind(gate, SimpleNamespace(**calls), permit)
    wait = functools.partial(semaphore.wait, True, None)
    acquire = semaphore.acquire if use == "acquire" else wait
    with pytest.raises(KeyboardInterrupt):
        interrupted(SimpleNamespace(acquire=acquire, release=semaphore.release))
    held = semaphore.local_hold.held
    assert semaphore.value() == 2 - held
    assert semaphore.local_hold.is_held_by_thread == (held > 0)
    assert held == 0 or where == "take"


def made_by_another(lock):
    return SharedLock(*lock._where, Kind.LOCK, host="here", identity=LIVING)


@pytest.mark.parametrize("where", ["_try_lock", "_unlock"])
@pytest.mark.parametrize("kind", LOCKS)
def test_an_interrupt_takes_no_report_with_it(kind, where):
    made = KINDS[kind]()
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


@pytest.mark.parametrize("kind", LOCKS)
def test_a_wait_that_is_always_short_looks_too(kind):
    made = KINDS[kind]()
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


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_an_interrupted_wait_leaves_the_permit_to_others(monkeypatch, kind):
    made = KINDS[kind]()
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


@pytest.mark.parametrize("kind", LOCKS)
def test_a_handler_of_a_signal_that_uses_it_while_it_is_used_is_told(kind):
    semaphore = KINDS[kind]().ours
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


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_a_thread_that_waits_is_served_though_others_never_stop(kind):
    made = KINDS[kind]()
    ours, theirs = made.ours, made.of(1)
    ours.acquire()
    waits = in_thread(lambda: theirs.acquire(timeout=20) and theirs.release())
    until(lambda: ours._words[shared_semaphore.WAITERS])
    end = threading.Event()
    watch = in_thread(lambda: (waits(), end.set()))
    while not end.is_set():
        ours.release()
        ours.acquire()
    watch()


def test_those_that_wait_and_die_are_forgotten(monkeypatch):
    made = Made()
    made.ours.acquire()
    monkeypatch.setattr(shared_semaphore, "GRACE", 0)
    assert made.of(1)._take(wait=1)[2] == 0
    words = made.ours._words
    assert words[shared_semaphore.WAITERS] == 1
    made.ours.release()
    assert words[shared_semaphore.WAITERS] == 0


@needs_seats
@QUICK
def test_threads_that_waited_with_a_reservation_and_died_are_forgotten(monkeypatch, make):
    made = make()
    made.ours.acquire()
    monkeypatch.setattr(shared_lock, "GRACE", 0)
    made.of(1)._take(wait=1, reserve=True)
    made.ours.release()
    monkeypatch.setattr(shared_lock, "RESERVATION", 0)
    assert made.ours.acquire(timeout=20)
    assert not made.ours._words[shared_semaphore.WAITERS]


@needs_seats
@QUICK
def test_a_permit_is_kept_for_a_thread_that_has_waited_for_long(monkeypatch, make):
    monkeypatch.setattr(shared_lock, "RESERVATION", 3600 * 10**9)
    made = make()
    made.ours.acquire()
    theirs, others = made.of(1), made.of(2)
    theirs._take(wait=3600 * 10**9, reserve=True)
    made.ours.release()
    assert not others.acquire(False)
    assert not made.ours.acquire(False)
    theirs._take(has_waited=True)
    assert theirs.local_hold.held == 1
    theirs.release()
    assert others.acquire(False)


@needs_seats
@pytest.mark.parametrize("report", ["", "a process"])
def test_what_another_released_is_taken_without_the_monitor_but_for_a_report(monkeypatch, report):
    made = Seated()
    ours, theirs = made.ours, made.of(1)
    ours.acquire()
    theirs.release()
    assert (ours.local_hold.held, ours.value()) == (0, 1)
    if report:
        ours.report_again(report)
    enters = Mock(side_effect=ours._try_lock)
    monkeypatch.setattr(ours, "_try_lock", enters)
    with pytest.warns(HolderDiedWarning) if report else nullcontext():
        assert ours.acquire(False)
    assert enters.called == bool(report)
    assert ours.local_hold.is_held_by_thread
    assert not theirs.acquire(False)
    ours.release()
    assert ours.value() == 1


@needs_seats
def test_two_hand_locks_to_each_other():
    first, second = Seated(), Seated()
    second.of(3).acquire()
    turns = []

    def take_turns(number, mine, others):
        for _ in range(200):
            assert mine.acquire(timeout=None)
            turns.append(number)
            others.release()

    waits = in_thread(lambda: take_turns(1, second.of(1), first.of(1)))
    take_turns(0, first.of(2), second.of(2))
    waits()
    assert turns == [0, 1] * 200


@needs_seats
@QUICK
def test_whoever_waits_is_woken_by_the_one_that_releases_it(monkeypatch, make):
    made = make()
    made.ours.acquire()
    # it would not look by itself
    monkeypatch.setattr("fiber._objects.sync.monitor.Turns.FIRST", 3600 * 10**9)
    waits = in_thread(lambda: made.of(1).acquire(timeout=60))
    until(lambda: made.ours._words[shared_semaphore.WAITERS])
    made.ours.release()
    assert waits()


@needs_seats
def test_processes_that_find_no_seat_hold_a_lock_in_turns(monkeypatch):
    monkeypatch.setattr(shared_lock, "_LEAST", 3)
    monkeypatch.setattr(shared_lock, "_MOST", 3)
    made = Seated()
    processes = [made.of(number) for number in range(5)]
    for one in processes + processes:
        assert one.acquire(False)
        assert [other.local_hold.held for other in processes].count(1) == 1
        assert not any(other.acquire(False) for other in processes)
        one.release()
    # one that is released by another one
    processes[3].acquire()
    processes[4].release()
    assert processes[3].local_hold.held == 0
    assert processes[4].acquire(False)


@needs_seats
def test_a_seat_of_a_dead_process_is_another_ones():
    made = Seated()
    for number in range(2 * shared_lock.seats()):
        dead = made._of(7 << 40 | number)
        assert dead.acquire(False)
        dead.release()
    assert made.ours.acquire(False)
    until(lambda: made.of(1)._find_seat())


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


@pytest.mark.parametrize("kind", ALL_WAYS)
def test_in_a_forked_process_it_is_refused(kind):
    semaphore = KINDS[kind]().ours
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


def test_one_whose_owner_is_lost_while_it_is_mapped_is_cut_off(lock, other, monkeypatch):
    theirs = other.remote(lock)
    share = theirs._share

    def lose(memory, begin):
        shared = share(memory, begin)
        theirs.fail(PeerLostError())
        return shared

    monkeypatch.setattr(theirs, "_share", lose)
    mapped = theirs.map(lock.where)
    with pytest.raises(PeerLostError):
        mapped.acquire()


# -- processes that do not map the memory


def make_lock(store):
    return OwnedSemaphore(store, Kind.LOCK, SemaphoreState(1, 1), is_shared=True)


def make_untracked(store):
    state = SemaphoreState(1, 1, recover=False, report_deaths=False)
    return OwnedSemaphore(store, Kind.SEMAPHORE, state, is_shared=True)


@pytest.fixture
def lock(request, owner):
    """One that lives in shared memory of the owner."""
    return owner.make(getattr(request, "param", make_lock))


@pytest.mark.parametrize("lock", [make_lock, make_untracked], indirect=True)
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


@pytest.mark.parametrize("lock", [make_untracked], indirect=True)
def test_what_is_released_for_one_it_may_release_again_where_that_is_not_too_many(
    lock, other, third
):
    theirs, mapped = other.remote(lock), third.remote(lock).map(lock.where)
    assert theirs.acquire(True, None)
    mapped.release()
    # which tells nobody
    theirs.release()
    assert theirs.value() == 1
    assert mapped.acquire(False)
    assert lock.shared.value() == 0


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
