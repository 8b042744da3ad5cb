"""A socket that never blocks: bytes, ends, pauses, lines."""

import socket
import threading

import pytest

from fiber._tunnel.buffered import Buffered, Lines
from fiber._tunnel.greeting import LONGEST
from fiber._wire.reactor import Reactor


@pytest.fixture
def reactor():
    reactor = Reactor("test")
    yield reactor
    reactor.stop()


@pytest.fixture
def pair():
    one, other = socket.socketpair()
    other.settimeout(20)
    with one, other:
        yield one, other


class Heard:
    def __init__(self, reactor, sock):
        self.data = bytearray()
        self.error = None
        self.ended = threading.Event()
        self.room = threading.Event()
        self._reactor = reactor
        reactor.call_and_wait(lambda: self._begin(sock))

    def _begin(self, sock):
        self.end = Buffered(
            self._reactor, sock, on_data=self.data.extend, on_end=self._end, on_room=self.room.set
        )

    def _end(self, error):
        self.error = error
        self.ended.set()

    def do(self, action):
        self._reactor.call_and_wait(lambda: action(self.end))


def test_bytes_come_and_then_the_end(reactor, pair):
    heard = Heard(reactor, pair[0])
    pair[1].sendall(b"abc")
    pair[1].shutdown(socket.SHUT_WR)
    assert heard.ended.wait(20)
    assert (bytes(heard.data), heard.error) == (b"abc", None)
    heard.do(Buffered.close)


def test_what_is_not_taken_waits(reactor, pair):
    heard = Heard(reactor, pair[0])
    heard.do(lambda end: end.write([bytes(2**20), bytes(2**20)]))
    heard.do(lambda end: end.finish())
    assert heard.end.waiting > 0
    received = 0
    while data := pair[1].recv(2**20):
        received += len(data)
    assert received == 2**21
    assert heard.room.wait(20)
    assert heard.end.waiting == 0
    heard.do(Buffered.close)


def test_nothing_is_read_meanwhile(reactor, pair):
    heard = Heard(reactor, pair[0])
    heard.do(lambda end: end.read(False))
    pair[1].sendall(b"abc")
    pair[1].shutdown(socket.SHUT_WR)
    heard.do(lambda _: None)
    assert heard.data == b""
    heard.do(lambda end: end.read(True))
    assert heard.ended.wait(20)
    assert heard.data == b"abc"
    heard.do(Buffered.close)


def test_one_that_is_gone_is_told_of_when_it_is_written_to(reactor, pair):
    heard = Heard(reactor, pair[0])
    pair[1].close()
    assert heard.ended.wait(20)
    heard.ended.clear()
    heard.do(lambda end: end.write([b"x"]))
    assert heard.ended.wait(20)
    assert isinstance(heard.error, OSError)
    heard.do(Buffered.close)


class Spoken:
    def __init__(self, reactor, sock):
        self.lines = []
        self.said = threading.Event()
        self.ended = threading.Event()
        self._reactor = reactor
        reactor.call_and_wait(lambda: self._begin(sock))

    def _begin(self, sock):
        self.stream = Lines(
            self._reactor, sock, on_line=self._line, on_end=lambda _: self.ended.set()
        )

    def _line(self, line):
        self.lines.append(line)
        if line == "over":
            stream, rest = self.stream.take()
            self.rest = bytearray(rest)
            stream.hand_over(
                on_data=self.rest.extend, on_end=lambda _: self.ended.set(), on_room=lambda: None
            )
            self.said.set()


def test_lines_come_in_any_pieces_and_what_follows_is_kept(reactor, pair):
    spoken = Spoken(reactor, pair[0])
    for piece in (b"on", b"e\ntwo", b"\nover\nwhat\nfollows"):
        pair[1].sendall(piece)
    assert spoken.said.wait(20)
    assert spoken.lines == ["one", "two", "over"]
    pair[1].shutdown(socket.SHUT_WR)
    assert spoken.ended.wait(20)
    assert spoken.rest == b"what\nfollows"


def test_some_bytes_may_be_skipped(reactor, pair):
    spoken = Spoken(reactor, pair[0])
    reactor.call_and_wait(lambda: spoken.stream.skip(5, lambda: spoken.stream.say("done")))
    pair[1].sendall(b"12345one\nover\n")
    assert spoken.said.wait(20)
    assert spoken.lines == ["one", "over"]
    assert pair[1].recv(5) == b"done\n"


def test_what_is_no_line_ends_it(reactor, pair):
    spoken = Spoken(reactor, pair[0])
    pair[1].sendall(b"x" * (2 * LONGEST))
    assert spoken.ended.wait(20)
    assert spoken.lines == []
