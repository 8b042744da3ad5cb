"""Threads that wait read the frames that they wait for themselves."""

import contextlib
import itertools
import select
import sys
import threading
from types import SimpleNamespace

import pytest

from fiber._base import threads
from fiber._base.threads import Looks
from fiber._objects.address import Kind as ObjectKind
from fiber._objects.sync.semaphore import OwnedSemaphore, SemaphoreState
from fiber._wire import codec
from fiber._wire.client import Client
from fiber._wire.frames import Kind
from fiber.exceptions import PeerLostError
from interrupts import interrupted_while_reading
from objects_world import World, put, take
from wire_world import TIMEOUT, close_listeners, hello, in_thread, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the handler thread reads")


class Casts:
    """Service that sends so many messages to target 7, and answers."""

    def on_message(self, peer, message):
        (count,) = codec.loads(message.body)
        for number in range(count):
            peer.send(Kind.CAST, 7, 0, [b"%d" % number])
        peer.send(Kind.REPLY, message.target, message.id, codec.dumps(count))

    def on_peer_lost(self, peer):
        """It keeps nothing."""


@pytest.fixture(params=["unix", "ipc", "tls+tcp"])
def listening(request, listen):
    made = listen(request.param)
    made.endpoint.serve(1, Casts())
    return made


@pytest.fixture
def client(listening, reactor):
    with contextlib.closing(
        Client(listening.url, listening.credentials, hello("client"), reactor)
    ) as client:
        yield client


@pytest.fixture
def held(reactor):
    """Until the test is over, the handler thread of the client is busy."""
    holds, go = threading.Event(), threading.Event()

    def hold():
        def wait():
            holds.set()
            go.wait(TIMEOUT)

        reactor.call_soon(wait)
        assert holds.wait(TIMEOUT)

    yield hold
    go.set()


def ask(client, count):
    return client.call(1, codec.dumps((count,)))


def test_an_answer_needs_no_other_thread(client, held):
    held()
    for _ in range(3):
        assert ask(client, 0).wait(TIMEOUT)


def test_what_is_for_others_is_handled_first(client):
    seen = []
    client.on_cast(7, lambda message: seen.append(bytes(message.body)))
    for _ in range(20):
        assert ask(client, 3).wait(TIMEOUT)
        assert seen == [b"0", b"1", b"2"]
        seen.clear()


def test_a_wait_in_time_leaves_the_reading_to_the_handler_thread(client, listening):
    seen = threading.Event()
    client.on_cast(7, lambda _: seen.set())
    with listening.held():
        assert not ask(client, 0).wait(0.01)
    listening.peer("client").send(Kind.CAST, 7, 0, [b"x"])
    assert seen.wait(TIMEOUT)


@pytest.mark.parametrize(
    "end", [lambda _, client: client.close(), lambda it, _: close_listeners(it)]
)
def test_a_thread_that_reads_learns_of_the_end(client, listening, end):
    with listening.held():
        pending = ask(client, 0)
        waits = in_thread(pending.wait)
        until(client._reading._role.locked)
        end(listening, client)
        waits()
    with pytest.raises(PeerLostError):
        pending.result()


def test_who_waits_looks_before_it_sleeps_unless_that_was_in_vain(client, listening, monkeypatch):
    reading, waits = client._reading, []
    poll = reading._poll.poll

    def noted(milliseconds):
        waits.append(milliseconds)
        return poll(milliseconds)

    def answered():
        answering.set()
        assert select.select([reading._source.fd], [], [], TIMEOUT)[0]

    monkeypatch.setattr(reading, "_poll", SimpleNamespace(poll=noted))
    monkeypatch.setattr(reading, "_looks", Looks(3))
    monkeypatch.setattr(reading._looks, "most", 3)
    monkeypatch.setattr(Looks, "LONG", TIMEOUT)
    with listening.held():
        for _ in range(Looks.IN_VAIN):
            waits.clear()
            assert not ask(client, 0).wait(0.01)
            assert len(waits) == 1 + reading._looks.most
        waits.clear()
        assert not ask(client, 0).wait(0.01)
        assert len(waits) == 1
    # behind the answers to those
    assert ask(client, 0).wait(TIMEOUT)
    reading._looks.found()
    monkeypatch.setattr(threads, "give_way", answered)
    held, answering = threading.Event(), threading.Event()
    listening.reactor.call_soon(lambda: held.set() or answering.wait(TIMEOUT))
    assert held.wait(TIMEOUT)
    waits.clear()
    assert ask(client, 0).wait(TIMEOUT)
    assert set(waits) == {0}
    assert reading._looks.begin() == reading._looks.most


def interrupted_while_read(reading, number, wait, act):
    """Wait, interrupted at the n-th place, while somebody acts once this thread reads."""
    is_over = threading.Event()

    def act_once_it_is_read():
        until(lambda: reading._role.locked() or is_over.is_set())
        act()

    acts = in_thread(act_once_it_is_read)
    found = interrupted_while_reading(number, wait)
    is_over.set()
    acts()
    if reading._role.locked():
        # by an interrupt just behind its acquisition, or before its release: the handler thread
        # reads from then on, and the places that follow would not be met
        reading._role.release()
    return found


@pytest.mark.parametrize("scheme", ["unix", "ipc"])
@pytest.mark.parametrize("side", ["owner", "other"])
def test_an_interrupt_anywhere_takes_nothing_with_it_and_brings_nothing_twice(folder, side, scheme):
    with contextlib.closing(World(folder)) as world:
        owner, other = world.node("owner", scheme=scheme), world.node("other")
        mine = owner.queue()
        theirs = other.remote(mine)
        here, there = (mine, theirs) if side == "owner" else (theirs, mine)
        client = other.client(owner.endpoint.urls[0])
        for _ in range(2):
            # from now on it is the one that writes
            put(theirs, b"0")
            assert take(mine) == b"0"
        peer = mine.only_writer(0)
        assert peer.hello.ident == "other"
        until(lambda: owner.endpoint.reading_of(peer) is not None)
        reading = owner.endpoint.reading_of(peer) if side == "owner" else client._reading

        def exchange(number):
            item = b"%d" % number
            got, was_interrupted = interrupted_while_read(
                reading, number, lambda: take(here), lambda: put(there, item)
            )
            assert (take(here) if was_interrupted else got) == item
            return was_interrupted

        assert next(number for number in itertools.count(1) if not exchange(number)) > 20


@pytest.mark.parametrize("scheme", ["unix", "ipc"])
def test_a_permit_that_comes_with_an_interrupt_anywhere_is_kept_or_given_back(folder, scheme):
    with contextlib.closing(World(folder)) as world:
        owner, other = world.node("owner", scheme=scheme), world.node("other")
        lock = owner.make(OwnedSemaphore, ObjectKind.LOCK, SemaphoreState(1, 1))
        theirs = other.remote(lock)
        reading = other.client(owner.endpoint.urls[0])._reading

        def exchange(number):
            assert lock.acquire(True, TIMEOUT)
            _, was_interrupted = interrupted_while_read(
                reading, number, lambda: theirs.acquire(True, None), lock.release
            )
            if not was_interrupted:
                assert theirs.local_hold.held == 1
                theirs.release()
            assert lock.acquire(True, TIMEOUT)
            assert theirs.local_hold.held == 0
            lock.release()
            return was_interrupted

        assert next(number for number in itertools.count(1) if not exchange(number)) > 20
