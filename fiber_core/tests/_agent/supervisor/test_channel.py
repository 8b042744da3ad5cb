"""A supervisor's end of a channel: never waits, loses nothing, ends once."""

import os
import socket

import pytest

from fiber._agent.supervisor import messages
from fiber._agent.supervisor.channel import Channel
from fiber._agent.supervisor.messages import Decoder, encode

PING = messages.Ping()


class World:
    def __init__(self, loop, owned):
        self.loop = loop
        self.received, self.ends = [], []
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.descriptor = ours.detach()
        self.channel = Channel(
            owned.own(self.descriptor),
            owner=None,
            loop=loop,
            descriptors=owned,
            on_message=lambda _, message: self.received.append(message),
            on_end=lambda _, reason: self.ends.append(reason),
        )


@pytest.fixture
def world(ticking, owned):
    world = World(ticking, owned)
    yield world
    world.peer.close()
    world.channel.close()


def test_messages_come_as_they_were_sent(world):
    world.peer.sendall(encode(PING) * 3)

    world.loop.run_once()

    assert world.received == [PING] * 3


def test_a_peer_that_does_not_read_gets_everything_later(world):
    notice = messages.Notice(words="x" * 1000)
    for _ in range(2000):
        world.channel.send(notice)
    assert not world.channel.is_idle

    decoder, found = Decoder(), 0
    while found < 2000:
        decoder.feed(world.peer.recv(65536))
        found += sum(1 for _ in decoder.messages())
        world.loop.run_once()

    assert found == 2000
    assert world.channel.is_idle


def test_the_end_of_the_peer_is_reported_once(world):
    world.peer.close()
    world.loop.run_once()
    world.channel.send(PING)
    world.channel.close()

    assert world.ends == [""]


def test_nonsense_ends_the_channel_with_a_reason(world):
    world.peer.sendall(b"\xff" * 10)

    world.loop.run_once()

    assert len(world.ends) == 1
    assert "announces" in world.ends[0]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(world.descriptor)


def test_what_came_before_nonsense_counts(world):
    world.peer.sendall(encode(PING) + b"\xff" * 10)

    world.loop.run_once()

    assert world.received == [PING]


def test_idle_reads_what_has_just_come(world):
    world.peer.sendall(encode(PING))
    assert world.channel.is_idle
    assert world.received == [PING]

    world.peer.sendall(encode(PING)[:5])
    assert not world.channel.is_idle


def test_flushing_gives_up_on_a_peer_that_takes_nothing(world):
    for _ in range(2000):
        world.channel.send(messages.Notice(words="x" * 1000))

    world.channel.flush(0.01)

    assert not world.channel.is_idle


def test_a_callback_may_close_the_channel(world):
    world.channel._on_message = lambda channel, message: (
        world.received.append(message),
        channel.close(),
    )
    world.peer.sendall(encode(PING) * 3)

    world.loop.run_once()

    assert world.received == [PING]
