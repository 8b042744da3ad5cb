"""What a worker makes of functions that its pool laid, played by a test."""

import threading

import pytest

from fiber._tasks import protocol
from fiber._tasks.call import Call
from fiber._tasks.outcomes import Received
from fiber._tasks.protocol import Mode, Tasks
from fiber._tasks.worker import Worker
from fiber._wire.frames import Kind
from tasks_world import TARGET, FakeLink, FakeMemory, Sink


def double(x):
    return 2 * x


@pytest.fixture
def memory():
    return FakeMemory()


@pytest.fixture
def link(memory):
    link = FakeLink()
    worker = Worker(link, TARGET, lambda: pytest.fail("it dialled again"), memory)
    thread = threading.Thread(target=worker.run)
    thread.start()
    link.next(Kind.ASK)
    yield link
    link.give(Kind.RETIRE)
    thread.join(20)
    assert not thread.is_alive()
    link.release()


@pytest.fixture
def call():
    return Call(1, double, Mode.MAP, Sink(), items=[4], chunksize=None, retry=True)


def give(link, call, entry=1):
    _, segments = call.encode(0, 1)
    head = Tasks(entry, call.number, 0, 1, 1, Mode.MAP, call.digest)
    link.give(Kind.TASKS, [head.encode(), *segments], entry)


def name(link, call, place):
    link.give(Kind.FUNCTION, protocol.function(call.digest, [place]), protocol.LAID)


def send(link, call):
    link.give(Kind.FUNCTION, protocol.function(call.digest, call.function))


def values(link):
    done, body = protocol.read_done(link.next(Kind.DONE).body)
    return Received(body, done.start, done.stop).of(done.start, done.stop)[0]


def missing(link):
    message = link.next(Kind.MISSING)
    return bytes(message.body), message.id


def test_it_finds_what_is_laid(link, memory, call):
    name(link, call, memory.lay(call.function).place)
    give(link, call)
    assert values(link) == [8]


def test_what_it_does_not_find_is_sent_to_it(link, call):
    name(link, call, b"nowhere")
    give(link, call)
    assert missing(link) == (call.digest, protocol.LAID)
    send(link, call)
    assert values(link) == [8]


def test_nor_does_it_find_what_it_asked_for(link, call):
    give(link, call)
    assert missing(link) == (call.digest, 0)
    name(link, call, b"nowhere")
    assert missing(link) == (call.digest, protocol.LAID)
    send(link, call)
    assert values(link) == [8]


def test_what_it_was_told_to_drop_it_asks_for(link, memory, call):
    name(link, call, memory.lay(call.function).place)
    give(link, call)
    assert values(link) == [8]
    link.give(Kind.FUNCTION, protocol.function(call.digest))
    give(link, call, entry=2)
    assert missing(link) == (call.digest, 0)
    send(link, call)
    assert values(link) == [8]
