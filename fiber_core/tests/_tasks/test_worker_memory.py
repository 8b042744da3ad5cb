"""Functions in shared memory on the worker side; the pool is played by the tests."""

import pytest

from fiber._tasks import protocol
from fiber._tasks.call import Call
from fiber._tasks.outcomes import ReceivedOutcomes
from fiber._tasks.protocol import Mode, Tasks
from fiber._wire.frames import Kind
from tasks_world import FakePayloadStore, Sink


def double(x):
    return 2 * x


@pytest.fixture
def store():
    return FakePayloadStore()


@pytest.fixture
def call():
    return Call(1, double, Mode.MAP, Sink(), items=[4], chunksize=None, retry=True)


def give(link, call, entry=1):
    _, segments = call.encode(0, 1)
    head = Tasks(entry, call.number, 0, 1, 1, Mode.MAP, call.digest)
    link.deliver(Kind.TASKS, [head.encode(), *segments], entry)


def name(link, call, place):
    link.deliver(Kind.FUNCTION, protocol.function(call.digest, [place]), protocol.SHARED)


def send(link, call):
    link.deliver(Kind.FUNCTION, protocol.function(call.digest, call.function))


def values(link):
    done, body = protocol.read_done(link.next(Kind.DONE).body)
    return ReceivedOutcomes(body, done.start, done.stop).of(done.start, done.stop)[0]


def missing(link):
    message = link.next(Kind.MISSING)
    return bytes(message.body), message.id


def test_it_maps_a_shared_function(link, store, call):
    name(link, call, store.write(call.function).locator)
    give(link, call)
    assert values(link) == [8]


def test_what_it_does_not_find_is_sent_to_it(link, call):
    name(link, call, b"nowhere")
    give(link, call)
    assert missing(link) == (call.digest, protocol.SHARED)
    send(link, call)
    assert values(link) == [8]


def test_nor_does_it_find_what_it_asked_for(link, call):
    give(link, call)
    assert missing(link) == (call.digest, 0)
    name(link, call, b"nowhere")
    assert missing(link) == (call.digest, protocol.SHARED)
    send(link, call)
    assert values(link) == [8]


def test_a_function_it_had_to_forget_is_requested_again(link, store, call):
    name(link, call, store.write(call.function).locator)
    give(link, call)
    assert values(link) == [8]
    link.deliver(Kind.FUNCTION, protocol.function(call.digest))
    give(link, call, entry=2)
    assert missing(link) == (call.digest, 0)
    send(link, call)
    assert values(link) == [8]
