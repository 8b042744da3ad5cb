"""Calls of managed objects through a pipe of their caller's: its ends, and what does not go through it."""

import errno
import threading

import pytest

from fiber._objects.managed import channel
from fiber._objects.managed.caller_threads import CallerThreads
from fiber._objects.managed.referent import Referent
from fiber._objects.managed.remote_referent import current_caller
from fiber._objects.pipe.packets import PacketSocket
from fiber.exceptions import PeerLostError
from wire_world import in_thread, until


class Thing:
    def __init__(self):
        self.gate, self.began, self.undone = threading.Event(), threading.Event(), []

    def echo(self, value):
        return value

    def wait(self, value):
        self.began.set()
        assert self.gate.wait(20)
        return value

    def thread(self):
        return threading.get_ident()


@pytest.fixture
def thing():
    return Thing()


@pytest.fixture
def mine(owner, thing):
    made = Referent(
        owner.store,
        CallerThreads(owner.store),
        thing,
        ("echo", "thread", "wait"),
        rollback=lambda obj, name, value: obj.undone.append((name, value)),
    )
    made.hold(0)
    return made


@pytest.fixture
def theirs(near, mine):
    return near.remote(mine)


def call(remote, name, *args):
    return remote.call_method(name, args, {})


def ways():
    """Channels of this thread."""
    return [one for one in current_caller()._channels.values() if one is not None]


def test_a_thread_has_one_for_all_objects_of_a_process_until_it_ends(owner, near, mine, theirs):
    other = near.remote(_another(owner, mine))
    threads = {call(theirs, "thread"), call(other, "thread")}
    assert len(threads) == 1
    assert len(ways()) == 1
    threads.add(in_thread(call, theirs, "thread")())
    assert len(threads) == 2
    # the thread that has ended has none any more
    until(lambda: mine._caller_threads.threads == 1)


def _another(owner, mine):
    made = Referent(owner.store, mine._caller_threads, Thing(), ("thread",))
    made.hold(0)
    return made


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_values_of_any_size_go_both_ways(theirs, size):
    assert call(theirs, "echo", bytes(size)) == bytes(size)


def test_an_interrupted_call_is_rolled_back_and_delays_none(theirs, thing, monkeypatch):
    take = PacketSocket.take

    def interrupted(self, **options):
        if threading.current_thread() is threading.main_thread():
            assert thing.began.wait(20)
            raise KeyboardInterrupt
        return take(self, **options)

    assert call(theirs, "echo", 1) == 1
    with monkeypatch.context() as patch:
        patch.setattr(PacketSocket, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(theirs, "wait", "lost")
    assert call(theirs, "echo", 2) == 2
    thing.gate.set()
    until(lambda: thing.undone == [("wait", "lost")])


def test_a_process_that_is_gone_is_an_error(theirs, mine):
    call(theirs, "echo", 1)
    (way,) = ways()
    # as where the other end is closed with its process
    way._way._socket.shutdown(2)
    with pytest.raises(PeerLostError, match="lives in is gone"):
        call(theirs, "echo", 2)


def test_an_object_that_is_gone_is_an_error(owner, near, mine, theirs):
    other = near.remote(_another(owner, mine))
    call(theirs, "echo", 1)
    owner.store.forget(owner.store.own(other.target))
    with pytest.raises(PeerLostError, match="no longer exists"):
        call(other, "thread")


def test_a_value_without_room_is_an_error_and_the_next_call_is_made(theirs, monkeypatch):
    call(theirs, "echo", 1)
    send = channel._send

    def fail(way, head, item):
        if threading.current_thread() is not threading.main_thread():
            monkeypatch.setattr(channel, "_send", send)
            raise OSError(errno.ENOSPC, "no room for it")
        send(way, head, item)

    monkeypatch.setattr(channel, "_send", fail)
    with pytest.raises(Exception, match="no room for it"):
        call(theirs, "echo", 2)
    assert call(theirs, "echo", 3) == 3


@pytest.mark.parametrize("lacking", ["descriptors", "a host in common"])
def test_without_one_calls_go_by_messages(world, near, mine, monkeypatch, lacking):
    if lacking == "descriptors":
        monkeypatch.setattr(channel, "far_end", lambda item: None)
    else:
        near = world.node("far", host="elsewhere", kernel_objects=True)
    theirs = near.remote(mine)
    assert call(theirs, "echo", 1) == 1
    assert call(theirs, "echo", 2) == 2
    assert ways() == []
