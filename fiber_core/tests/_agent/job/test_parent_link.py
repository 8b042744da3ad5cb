"""A supervisor's connection to its parent is made, kept and made again, with slow peers too."""

import os
import threading
import time
from collections import deque

import pytest

from fiber._agent.job.parent_link import (
    Acknowledged,
    Connected,
    Lost,
    ParentLink,
    Refused,
)
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._wire.frames import Kind, Message
from fiber.exceptions import HandshakeError, PeerLostError, TransportError
from fiber.model import Timing


class FakeLink:
    """A link that a test reads and writes; a pipe is readable when a message is there."""

    buffered = False

    def __init__(self, pipe):
        self._reader, self._writer = pipe
        self.fds = (self._reader,)
        self.sent = []
        self.coming = deque()
        self.broken = False

    def send(self, kind, target, number, segments):
        if self.broken:
            raise PeerLostError("gone")
        decoder = Decoder()
        decoder.feed(segments[0])
        self.sent += [(kind, one) for one in decoder.messages()]

    def receive(self, timeout):
        if self.broken:
            raise PeerLostError("gone")
        return self.coming.popleft() if self.coming else None

    def come(self, kind, message=None):
        body = b"" if message is None else encode(message)
        self.coming.append(Message(kind, 0, 1, memoryview(body)))

    def close(self):
        self.broken = True


class World:
    def __init__(self, pipe):
        self.pipe = pipe
        self.links = []
        self.failures = deque()
        self.dialled = []
        self.news = []
        self._changed = threading.Condition()
        self.line = ParentLink(
            ("first", "second"), self.connect, self.on_event, timing=Timing.at(0.1)
        )

    def connect(self, url):
        self.dialled.append(url)
        if self.failures:
            failure = self.failures.popleft()
            if failure is not None:
                raise failure
        self.links.append(FakeLink(self.pipe))
        return self.links[-1]

    def on_event(self):
        with self._changed:
            self._changed.notify_all()

    def until(self, kind, count=1):
        def there():
            self.news += self.line.take_events()
            return sum(isinstance(one, kind) for one in self.news) >= count

        with self._changed:
            assert self._changed.wait_for(there, 20), self.news
        return [one for one in self.news if isinstance(one, kind)]

    def sent(self, kind, message):
        deadline = time.monotonic() + 20
        while (kind, message) not in self.links[-1].sent:
            assert time.monotonic() < deadline, self.links[-1].sent
            time.sleep(0.005)


@pytest.fixture
def failing():
    """One whose thread the test starts, once it has said what fails."""
    pipe = os.pipe()
    world = World(pipe)
    yield world
    world.line.close()
    for end in pipe:
        os.close(end)


@pytest.fixture
def world(failing):
    failing.line.start()
    failing.until(Connected)
    return failing


def test_a_report_has_a_receipt(world):
    world.line.send_acknowledged(messages.Exiting())
    world.sent(Kind.CALL, messages.Exiting())
    world.links[-1].come(Kind.REPLY)
    world.line.send(messages.Ping())
    world.until(Acknowledged)


def test_all_ways_are_tried_and_then_again(failing):
    world = failing
    world.failures.extend([TransportError("a"), TransportError("b"), TransportError("c")])
    world.line.start()
    world.until(Connected)
    assert world.dialled == ["first", "second", "first", "second"]
    assert world.until(Lost)[0].why == "b"


def test_a_parent_that_refuses_the_job_is_not_dialled_again(failing):
    refusal = HandshakeError("Python is 3.10 there")
    refusal.proven = True
    failing.failures.append(refusal)
    failing.line.start()
    assert failing.until(Refused) == [Refused("Python is 3.10 there")]
    assert failing.dialled == ["first"]


def test_nor_is_one_that_does_not_know_the_job(world):
    world.links[-1].come(Kind.ERROR)
    world.line.send(messages.Ping())
    world.until(Refused)


def test_a_stranger_is_no_parent_and_others_are_tried(failing):
    failing.failures.extend([HandshakeError("of another run"), None])
    failing.line.start()
    failing.until(Connected)
    assert failing.dialled == ["first", "second"]
