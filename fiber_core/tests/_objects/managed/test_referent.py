"""Managed objects: their methods, called here and from other processes, by messages and through pipes."""

import errno
import functools
import gc
import queue
import threading
from multiprocessing.managers import RemoteError
from types import SimpleNamespace

import pytest

from fiber._objects.managed import calls, channel
from fiber._objects.managed.referent import (
    Call,
    Caller,
    CallerThreads,
    NewReferent,
    Referent,
    current_caller,
)
from fiber._objects.pipe.packets import PacketSocket
from fiber._wire.client import PendingCall
from fiber._wire.frames import Kind as Frame
from fiber._wire.frames import Message
from fiber.exceptions import PeerLostError, WireError
from fiber.model.timing import Timing
from wire_world import in_thread, until


class Thing:
    def __init__(self):
        self.gate, self.waiting, self.threads = threading.Event(), threading.Event(), []

    def echo(self, value, *, twice=False):
        self.threads.append(threading.get_ident())
        return [value, value] if twice else value

    def wait(self):
        self.waiting.set()
        return self.gate.wait(20)

    def fail(self):
        raise LookupError("why")

    def leave(self):
        raise SystemExit(1)

    def lock(self):
        return threading.Lock()

    def keys(self):
        return {"a": 1}.keys()

    def child(self):
        return Thing()


METHODS = ("echo", "wait", "fail", "leave", "lock", "keys", "child", "missing")


def serve(owner, obj, **options):
    threads = CallerThreads(owner.store)
    return owner.make(lambda store: Referent(store, threads, obj, METHODS, **options))


@pytest.fixture
def obj():
    return Thing()


@pytest.fixture
def mine(owner, obj):
    return serve(owner, obj)


@pytest.fixture(params=["here", "elsewhere", "through a channel"])
def side(request, mine, other, near):
    if request.param == "here":
        return mine
    return (other if request.param == "elsewhere" else near).remote(mine)


def test_a_method_is_called_with_copies(side, obj):
    given = [1]
    assert side.call_method("echo", (given,), {"twice": True}) == [[1], [1]]
    assert side.call_method("echo", (given,), {}) is not given
    # some things may be asked of everything
    assert side.call_method("__repr__", (), {}).startswith("<")
    assert side.call_method("#METHODS", (), {}) == tuple(sorted(METHODS))
    assert side.call_method("keys", (), {}) == ["a"]


@pytest.mark.parametrize(
    "name, error, told",
    [
        ("fail", LookupError, "why"),
        ("leave", RemoteError, "SystemExit: 1"),
        ("lock", RemoteError, "Unserializable message"),
        ("missing", RemoteError, "no attribute 'missing'"),
        ("gate", RemoteError, "'gate' of <class .*Thing'> object is not in exposed"),
    ],
)
def test_an_exception_is_raised_and_other_failures_are_remote_errors(side, name, error, told):
    with pytest.raises(error, match=told) as caught:
        side.call_method(name, (), {})
    if name == "fail":
        assert 'raise LookupError("why")' in str(caught.value.__cause__)


def test_a_blocking_call_delays_its_own_caller_alone(side, obj):
    first, second = Caller(), Caller()
    waiting = side.begin("wait", (), {}, first)
    behind = side.begin("echo", (1,), {}, first)
    beside = side.begin("echo", (2,), {}, second)

    assert beside.wait(20)
    assert not behind.done
    done = threading.Event()
    behind.then(done.set)
    obj.gate.set()
    assert done.wait(20)
    assert (waiting.value(), behind.value(), beside.value()) == (True, 1, 2)
    late = threading.Event()
    behind.then(late.set)
    assert late.is_set()


def test_calls_of_one_thread_are_made_on_one_thread(theirs, mine, obj):
    for _ in range(3):
        theirs.call_method("echo", (0,), {})
    in_thread(lambda: theirs.call_method("echo", (0,), {}))()

    assert len(set(obj.threads[:3])) == 1
    assert obj.threads[3] != obj.threads[0]
    assert threading.get_ident() not in obj.threads


@pytest.mark.parametrize("end", ["thread", "process", "caller here"])
def test_the_thread_of_a_caller_that_is_gone_ends(mine, other, end):
    theirs, threads = other.remote(mine), mine._caller_threads
    if end == "thread":
        in_thread(lambda: theirs.call_method("echo", (0,), {}))()
    elif end == "process":
        theirs.call_method("echo", (0,), {})
        assert threads.threads == 1
        other.die()
    else:
        caller = Caller()
        assert mine.begin("echo", (1,), {}, caller).wait(20)
        assert threads.threads == 1
        del caller

    until(lambda: threads.threads == 0)


def test_a_caller_gets_an_error_when_the_owner_dies(theirs, mine, obj, owner):
    got = in_thread(lambda: theirs.call_method("wait", (), {}))
    assert obj.waiting.wait(20)
    owner.die()
    obj.gate.set()

    with pytest.raises(PeerLostError, match="that this managed object lives in is gone"):
        got()
    with pytest.raises(PeerLostError):
        theirs.call_method("echo", (0,), {})


#: the outcome of a call is let go of unread, or its caller dies
LEFT = {"unread": lambda call, _: call.discard(), "dead": lambda _, caller: caller.die()}


@pytest.mark.parametrize("let_go", LEFT.values(), ids=LEFT)
def test_a_created_object_without_a_proxy_is_dropped(owner, obj, other, let_go):
    def make_referent(typeid, value):
        child = Referent(owner.store, CallerThreads(owner.store), value, METHODS)
        return NewReferent(child, typeid, METHODS, dict)

    mine = serve(owner, obj, typeids={"child": "T"}, make_referent=make_referent)
    theirs = other.remote(mine)
    call = theirs.begin("child", (), {}, current_caller())
    assert call.wait(20)
    assert len(owner.store._own) == 2
    let_go(call, other)

    until(lambda: len(owner.store._own) == 1)


class Reference:
    """Pickles as a string, with a reference id on its envelope, as a handle does."""

    def __init__(self, shared):
        self._shared = shared

    def __reduce__(self):
        from fiber._wire import codec

        address = self._shared.address
        self._shared.issue(77, 0, 1)
        codec.envelope().references[id(self)] = (address.ident, address.urls, address.target, 77)
        return str, ("",)


@pytest.mark.parametrize("let_go", LEFT.values(), ids=LEFT)
def test_references_in_an_unread_answer_are_voided(owner, other, let_go):
    class Giver:
        def child(self):
            return Reference(held)

    held = owner.queue()
    theirs = other.remote(serve(owner, Giver()))
    call = theirs.begin("child", (), {}, current_caller())
    assert call.wait(20)
    held.drop(0)
    assert held.target in owner.store._own
    let_go(call, other)

    until(lambda: held.target not in owner.store._own)


def test_the_object_is_dropped_with_its_last_reference_and_not_on_the_handler_thread(owner, other):
    gone = []

    class Last:
        def echo(self, value):
            return value

        def __del__(self):
            gone.append(threading.current_thread().name)

    mine = serve(owner, Last())
    theirs = other.remote(mine)
    call = theirs.begin("echo", (1,), {}, current_caller())
    theirs.drop(0)
    mine.drop(0)
    assert call.wait(20)
    assert call.value() == 1
    del mine, theirs, call
    gc.collect()

    until(lambda: gone)
    assert gone != [owner.reactor._thread.name]


def test_a_call_of_a_caller_that_died_meanwhile_is_rolled_back(owner, obj, other):
    undone = []
    mine = serve(owner, obj, rollback=lambda *facts: undone.append(facts))
    theirs = other.remote(mine)
    theirs.begin("wait", (), {}, current_caller())
    assert obj.waiting.wait(20)
    other.die()
    until(lambda: not mine._references.peers(0))
    obj.gate.set()

    until(lambda: undone == [(obj, "wait", True)])


def test_an_interrupted_call_delays_none_and_is_rolled_back(owner, obj, other, monkeypatch):
    undone = []
    mine = serve(owner, obj, rollback=lambda *facts: undone.append(facts))
    theirs = other.remote(mine)
    wait = Call.wait

    def interrupted(call, timeout=None):
        assert obj.waiting.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(Call, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        theirs.call_method("wait", (), {})
    monkeypatch.setattr(Call, "wait", wait)
    assert theirs.call_method("echo", (1,), {}) == 1
    until(lambda: mine._caller_threads._abandoned)
    obj.gate.set()

    until(lambda: undone == [(obj, "wait", True)])
    until(lambda: not mine._caller_threads._abandoned and not mine._caller_threads._unanswered)
    # that which waited has ended, once nothing holds its caller, as the traceback does
    gc.collect()
    until(lambda: mine._caller_threads.threads == 1)


@pytest.fixture
def threads(owner):
    return CallerThreads(owner.store)


@pytest.fixture
def impatient(world):
    """Threads that end as soon as they are idle."""
    return CallerThreads(world.node("impatient", timing=Timing(idle_thread=0.01)).store)


def submit(threads, number, task, **options):
    threads.submit(None, number, task, **{"thread_neutral": True, **options})


def test_an_idle_thread_ends_and_another_takes_its_place(impatient):
    done = threading.Event()
    submit(impatient, 1, threading.Event)
    until(lambda: impatient.threads == 0)
    submit(impatient, 1, done.set)

    assert done.wait(20)
    until(lambda: impatient.threads == 0)


def test_one_that_a_lock_may_belong_to_does_not(impatient):
    seen = queue.SimpleQueue()
    submit(impatient, 1, lambda: seen.put(threading.current_thread()), thread_neutral=False)
    first = seen.get(timeout=20)
    submit(impatient, 2, threading.Event)
    # the other one is idle for as long
    until(lambda: impatient.threads == 1)
    submit(impatient, 1, lambda: seen.put(threading.current_thread()))

    assert seen.get(timeout=20) is first, "numbers of threads are used again"
    impatient.end_soon(1)


def test_a_failing_task_is_logged_and_ends_no_thread(threads, caplog):
    done = threading.Event()
    submit(threads, 1, lambda: 1 / 0)
    submit(threads, 1, done.set)

    assert done.wait(20)
    threads.end_soon(1)
    assert "a call of a managed object was not answered" in caplog.text


def test_what_is_closed_is_served_no_more(threads, owner):
    threads.close()

    assert threads.target not in owner.endpoint._services


@pytest.mark.parametrize("body", [b"", b"\x09" * 10, b"\x00"])
def test_answers_and_calls_that_make_no_sense_are_refused(body):
    with pytest.raises(WireError):
        calls.read_answer(memoryview(body))
    with pytest.raises(WireError):
        calls.read_call(memoryview(b""))


@pytest.mark.parametrize("service", ["mine", "threads"])
def test_other_operations_are_refused(request, service):
    served = request.getfixturevalue(service)
    message = Message(Frame.CAST, 1, 1, memoryview(calls.NUMBERED.pack(127, 1)))
    with pytest.raises(WireError, match="operation 127"):
        served.on_message(SimpleNamespace(), message)


# -- through a pipe of the calling thread's, between processes of one host


@pytest.fixture
def neighbour(near, mine):
    """The object in another process of its owner's host."""
    return near.remote(mine)


def echo(remote, value):
    return remote.call_method("echo", (value,), {})


def ways():
    """Channels of this thread."""
    return [one for one in current_caller()._channels.values() if one is not None]


def beside(mine, owner, obj):
    """Another object that its owner serves by the same threads."""
    return owner.make(lambda store: Referent(store, mine._caller_threads, obj, METHODS))


def test_a_thread_has_one_for_all_objects_of_a_process_until_it_ends(
    owner, near, mine, obj, neighbour
):
    other = near.remote(beside(mine, owner, obj))
    for remote in (neighbour, other):
        echo(remote, 1)
    assert len(ways()) == 1
    in_thread(echo, neighbour, 1)()
    assert obj.threads[0] == obj.threads[1] != obj.threads[2]
    # the thread that has ended has none any more
    until(lambda: mine._caller_threads.threads == 1)


def test_large_values_go_both_ways(neighbour):
    assert echo(neighbour, bytes(3_000_000)) == bytes(3_000_000)


def test_a_call_that_is_interrupted_there_delays_none_and_is_rolled_back(
    owner, near, obj, monkeypatch
):
    undone = []
    mine = serve(owner, obj, rollback=lambda *facts: undone.append(facts))
    theirs, take = near.remote(mine), PacketSocket.take

    def interrupted(self, **options):
        if threading.current_thread() is threading.main_thread():
            assert obj.waiting.wait(20)
            raise KeyboardInterrupt
        return take(self, **options)

    assert echo(theirs, 1) == 1
    with monkeypatch.context() as patch:
        patch.setattr(PacketSocket, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            theirs.call_method("wait", (), {})
    assert echo(theirs, 2) == 2
    obj.gate.set()
    until(lambda: undone == [(obj, "wait", True)])


@pytest.mark.parametrize("when", ["during a call", "as it is opened"])
def test_a_call_by_a_handler_of_a_signal_in_the_midst_of_another_is_made(
    neighbour, monkeypatch, when
):
    answers = []

    def handled(self, *args, original, **options):
        if threading.current_thread() is threading.main_thread() and not answers:
            answers.append("begun")
            answers.append(echo(neighbour, "of the handler"))
        return original(self, *args, **options)

    if when == "during a call":
        assert echo(neighbour, 1) == 1
        place, name = PacketSocket, "take"
    else:
        place, name = PendingCall, "wait"
    patched = functools.partialmethod(handled, original=getattr(place, name))
    with monkeypatch.context() as patch:
        patch.setattr(place, name, patched)
        assert echo(neighbour, 2) == 2
    assert answers == ["begun", "of the handler"]


def test_a_process_that_is_gone_is_an_error(neighbour):
    echo(neighbour, 1)
    (way,) = ways()
    # as where the other end is closed with its process
    way._way._socket.shutdown(2)
    with pytest.raises(PeerLostError, match="lives in is gone"):
        echo(neighbour, 2)


def test_an_object_that_is_gone_is_an_error(owner, near, mine, obj, neighbour):
    other = near.remote(beside(mine, owner, obj))
    echo(neighbour, 1)
    owner.store.forget(owner.store.own(other.target))
    with pytest.raises(PeerLostError, match="no longer exists"):
        echo(other, 2)


def test_a_value_without_room_is_an_error_and_the_next_call_is_made(neighbour, monkeypatch):
    echo(neighbour, 1)
    send = channel._send

    def fail(way, head, item):
        if threading.current_thread() is not threading.main_thread():
            monkeypatch.setattr(channel, "_send", send)
            raise OSError(errno.ENOSPC, "no room for it")
        send(way, head, item)

    monkeypatch.setattr(channel, "_send", fail)
    with pytest.raises(Exception, match="no room for it"):
        echo(neighbour, 2)
    assert echo(neighbour, 3) == 3


@pytest.mark.parametrize("lacking", ["descriptors", "a host in common"])
def test_without_one_calls_go_by_messages(world, near, mine, monkeypatch, lacking):
    if lacking == "descriptors":
        monkeypatch.setattr(channel, "far_end", lambda item: None)
    else:
        near = world.node("far", host="elsewhere", kernel_objects=True)
    theirs = near.remote(mine)
    assert echo(theirs, 1) == 1
    assert echo(theirs, 2) == 2
    assert ways() == []
