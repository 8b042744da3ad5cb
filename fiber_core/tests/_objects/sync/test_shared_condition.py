"""Conditions in shared memory: notifications of those that die, are interrupted, or have no memory."""

import mmap
from unittest.mock import Mock

import pytest

from dying import killed_at
from fiber._objects.sync import condition as shared_condition
from fiber._objects.sync.condition import SIZE, OwnedCondition, SharedCondition
from fiber._objects.sync.monitor import is_possible
from fiber._wire import fork
from fiber.exceptions import ForkedError, PeerLostError
from wire_world import in_thread, until

pytestmark = pytest.mark.skipif(not is_possible(), reason="this system has no robust mutexes")


def sleep(condition, timeout=20, release=lambda: None):
    return condition.wait(release, timeout, certain=True)


@pytest.fixture
def memory():
    return mmap.mmap(-1, SIZE)


@pytest.fixture
def ours(memory):
    return SharedCondition(memory, 0, is_new=True)


@pytest.fixture
def theirs(memory, ours):
    return SharedCondition(memory, 0)


def test_those_that_have_waited_for_longest_are_woken(ours, theirs):
    waits = []
    for one in (ours, theirs, ours):
        waits.append(in_thread(sleep, one))
        until(lambda: ours.waiting() == len(waits))
    theirs.notify(2, certain=True)
    assert (waits[0](), waits[1]()) == (True, True)
    assert ours.waiting() == 1
    assert not sleep(theirs, 0.01)
    assert not sleep(theirs, 0)
    ours.notify(9, certain=True)
    assert waits[2]()


def test_where_nobody_waits_a_notification_enters_nothing_and_is_for_nobody(
    ours, theirs, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(ours, "_inside", Mock(side_effect=AssertionError))
        ours.notify(1, certain=True)
    wait = in_thread(sleep, theirs)
    until(lambda: ours.waiting() == 1)
    ours.notify(1, certain=True)
    assert wait()
    ours.cut_off(lambda: PeerLostError("gone"))
    with pytest.raises(PeerLostError):
        ours.notify(1, certain=True)


def test_only_who_sleeps_is_woken(ours, theirs, monkeypatch):
    woken = Mock()
    monkeypatch.setattr(shared_condition.Word, "wake", woken)
    awake = ours.register()
    theirs.notify(1, certain=True)
    assert ours.leave(awake)
    woken.assert_not_called()
    asleep = ours.register()
    ours._inside(lambda: ours._fall_asleep(asleep[0] + shared_condition._STATE))
    assert ours.waiting() == 1
    theirs.notify(1, certain=True)
    assert ours.leave(asleep)
    woken.assert_called_once()
    # one who waits for a change, for other processes, is woken by each
    ours.wait_for_change(ours.changes + 1, 0)
    awake = ours.register()
    theirs.notify(1, certain=True)
    assert woken.call_count == 2


def test_the_notification_of_one_that_is_interrupted_wakes_another(ours, theirs, monkeypatch):
    def interrupted(at, timeout):
        until(lambda: ours.waiting() == 2)
        theirs.notify(1, certain=True)
        raise KeyboardInterrupt

    waits = []

    def other_waits():
        waits.append(in_thread(sleep, theirs))

    monkeypatch.setattr(ours, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sleep(ours, release=other_waits)
    assert waits[0]()


def test_the_notification_of_one_that_is_interrupted_as_it_wakes_does_too(
    ours, theirs, monkeypatch
):
    waits, leave = [], ours.leave

    def interrupted(entry):
        monkeypatch.undo()
        assert leave(entry)
        raise KeyboardInterrupt

    def notified(at, timeout):
        theirs.notify(1, certain=True)
        waits.append(in_thread(sleep, theirs))
        until(lambda: theirs.waiting() == 1)

    monkeypatch.setattr(ours, "_wait", notified)
    monkeypatch.setattr(ours, "leave", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sleep(ours)
    assert waits[0]()


def test_where_releasing_fails_no_thread_waits(ours):
    with pytest.raises(LookupError):
        sleep(ours, release=Mock(side_effect=LookupError))
    assert ours.waiting() == 0


def test_there_is_an_end_to_those_that_wait(ours, monkeypatch):
    monkeypatch.setattr(shared_condition, "_MOST", 2)
    entries = [ours.register(), ours.register()]
    with pytest.raises(RuntimeError, match="more than 2 threads wait"):
        sleep(ours)
    assert not ours.leave(entries[0])
    assert not sleep(ours, 0)


def test_a_process_that_exits_passes_its_notification_on(ours, theirs, monkeypatch):
    # another one's, though it is of this process
    monkeypatch.setattr(shared_condition, "own_identity", lambda: 5)
    leaving, _ = ours.register()
    ours._waits.add(leaving)
    monkeypatch.undo()
    waits = in_thread(sleep, theirs)
    until(lambda: theirs.waiting() == 2)
    theirs.notify(1, certain=True)
    monkeypatch.setattr(shared_condition, "own_identity", lambda: 5)
    ours.on_exit()
    assert waits()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("step", ["wait", "notify"])
def test_a_process_may_be_killed_at_any_line(monkeypatch, memory, ours, step):
    monkeypatch.setattr(shared_condition, "MOST_LOOKS", 1)
    line, is_killed = 1, True

    def use(begin):
        theirs = SharedCondition(memory, 0)
        if step == "wait":
            begin()
            sleep(theirs, 0.003, lambda: theirs.notify(1, certain=True))
        else:
            begin()
            theirs.notify(1, certain=True)

    while is_killed:
        waits = in_thread(sleep, ours)
        until(lambda: ours.waiting() == 1)
        is_killed = killed_at(line, use, shared_condition)
        # a second one is for whoever still waits
        ours.notify(1, certain=True)
        assert waits()
        ours.pass_on()
        assert ours.waiting() == 0
        assert not ours.leave(ours.register())
        assert ours._words[shared_condition._HIGH] == 0
        line += 1
    assert line > 15


def test_one_that_is_cut_off_is_told(ours):
    waits = in_thread(sleep, ours)
    until(lambda: ours.waiting() == 1)
    ours.cut_off(PeerLostError)
    for use in (waits, lambda: sleep(ours), lambda: ours.notify(1, certain=True), ours.waiting):
        with pytest.raises(PeerLostError):
            use()


def test_in_a_forked_process_it_is_refused_though_nobody_waits(ours, monkeypatch):
    monkeypatch.setattr(fork, "in_child", True)
    ours.abandon()
    for use in (lambda: ours.notify(1, certain=True), lambda: sleep(ours), ours.waiting):
        with pytest.raises(ForkedError, match="was forked"):
            use()


def test_processes_without_the_memory_take_part(owner, other, third):
    condition = owner.make(lambda store: OwnedCondition(store, is_shared=True))
    ours, theirs, last = condition.shared, other.remote(condition), third.remote(condition)
    for sleeper, notifier in ((ours, theirs), (theirs, ours), (theirs, last)):
        waits = in_thread(sleep, sleeper)
        until(lambda: ours.waiting() == 1)
        assert theirs.waiting() == 1
        notifier.notify(1, certain=True)
        assert waits()
    assert not sleep(theirs, 0.01)
    until(lambda: condition._deputy is None)
    waits = [in_thread(sleep, theirs)]
    until(lambda: ours.waiting() == 1)
    waits.append(in_thread(sleep, ours))
    until(lambda: ours.waiting() == 2)
    # what it has not acknowledged when it dies wakes another
    theirs.owner.on_notice(theirs.target, lambda message: None)
    ours.notify(1, certain=True)
    until(lambda: condition._condition._unacknowledged)
    other.die()
    assert waits[1]()
    with pytest.raises(PeerLostError):
        waits[0]()
