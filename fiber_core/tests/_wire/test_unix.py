"""Streams between processes of one host: both ends, alone and under pressure."""

from __future__ import annotations

import errno
import queue
import socket
from types import SimpleNamespace

import pytest

from fiber._base.threads import Reactor
from fiber._wire import frames
from fiber._wire.handshake import Credentials
from fiber._wire.unix import UnixDialer, UnixListener
from fiber.exceptions import TransportError, WireError
from wire_world import TIMEOUT, readable

RUN = Credentials(run_id="0badcafe", key=bytes(32))


class Ours:
    """The listening side, with its events."""

    def __init__(self, folder):
        self.told = queue.Queue()
        self.reactor = Reactor("test-unix")
        self.listener = UnixListener(
            self.reactor,
            on_opened=lambda number: self.told.put(("opened", number)),
            on_frame=lambda number, frame: self.told.put((number, bytes(frame))),
            on_broken=lambda number, error: self.told.put((number, error)),
            on_closed=lambda number: self.told.put(("closed", number)),
            pause=0.01,
        )
        self.url = self.listener.listen(f"unix://{folder}/s", RUN)

    def next(self):
        return self.told.get(timeout=TIMEOUT)

    def close(self):
        self.listener.close()
        self.reactor.stop()


@pytest.fixture
def ours(folder):
    ours = Ours(folder)
    yield ours
    ours.close()


@pytest.fixture
def theirs(ours):
    theirs = UnixDialer()
    theirs.dial(ours.url, RUN, timeout=TIMEOUT)
    yield theirs
    theirs.close()


@pytest.fixture
def number(ours, theirs):
    """Of the connection; its peer is trusted."""
    what, number = ours.next()
    assert what == "opened"
    ours.listener.trust(number)
    return number


def send_bytes(theirs, body):
    theirs.send(lambda: b"h", [body])


def interrupt_after(monkeypatch, theirs, count):
    """The next send is interrupted once the kernel has taken so many bytes."""
    sock = theirs._socket

    def send(data, flags):
        if not taken:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return sock.send(memoryview(data)[: taken.pop()], flags)

    taken = [count] if count else []
    monkeypatch.setattr(theirs, "_socket", SimpleNamespace(send=send))


@pytest.mark.parametrize("count", [0, 1, 7, 9])
def test_the_next_finishes_what_an_interrupted_sender_began_and_nothing_else_of_it(
    ours, theirs, number, monkeypatch, count
):
    interrupt_after(monkeypatch, theirs, count)
    with pytest.raises(KeyboardInterrupt):
        send_bytes(theirs, b"first")
    send_bytes(theirs, b"second")
    for sent in [b"hfirst", b"hsecond"][count == 0 :]:
        assert ours.next() == (number, sent)


def test_a_reader_interrupted_during_a_read_gets_the_end(ours, theirs, number, monkeypatch):
    ours.listener.send(number, b"lost", [])
    assert readable(theirs.fd)

    def feed(data):
        raise KeyboardInterrupt

    monkeypatch.setattr(theirs.deframer, "feed", feed)
    with pytest.raises(KeyboardInterrupt):
        theirs.receive()
    monkeypatch.undo()
    assert theirs.receive() is None
    assert theirs.lost


def test_a_frame_that_another_one_follows_at_once_is_sent_with_it(ours, theirs, number):
    ours.listener.send(number, b"first", [], more=True)
    assert theirs.receive() is None
    ours.listener.send(number, b"second", [])
    assert readable(theirs.fd)
    assert theirs.receive() == (0, b"first")
    assert list(theirs.arrived) == [b"second"]


def test_a_stranger_may_announce_little_only(ours, theirs):
    _, number = ours.next()
    theirs._socket.send((2**17).to_bytes(4, "little"))
    told, error = ours.next()
    assert told == number
    assert isinstance(error, WireError)


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "too many open files")])
def test_a_peer_whose_frame_there_is_no_room_for_is_told_of_and_read_no_more(
    ours, theirs, number, monkeypatch, error
):
    def feed(_deframer, data):
        raise error

    monkeypatch.setattr(frames.Deframer, "feed", feed)
    send_bytes(theirs, b"too large")
    assert ours.next() == (number, error)
    monkeypatch.undo()
    # what follows is the rest of that frame, for all that is known
    send_bytes(theirs, b"another")
    with pytest.raises(queue.Empty):
        ours.told.get(timeout=0.2)


def test_a_listener_whose_queue_is_full_is_given_up_in_time(folder):
    stopped = socket.socket(socket.AF_UNIX)
    stopped.bind(f"{folder}/s")
    stopped.listen(0)
    waiting = [UnixDialer() for _ in range(2)]
    try:
        with pytest.raises(TransportError, match="did not answer within"):
            for one in waiting:
                one.dial(f"unix://{folder}/s", RUN, timeout=0.05)
    finally:
        stopped.close()
