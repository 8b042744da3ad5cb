"""The sockets themselves: back-pressure, ends, and what nng must never see."""

from __future__ import annotations

import gc
import select
import threading
import weakref

import psutil
import pytest
from pynng import lib

from fiber.exceptions import TransportError
from fiber.transport import wire
from fiber.transport.identity import Credentials
from fiber.transport.nng import DiallingSocket, ListeningSocket, _build
from fiber.transport.wire import Kind
from transport_world import PATIENCE, address, until

FRAME = wire.header(Kind.CAST, size=3) + b"abc"


@pytest.fixture
def pair(scheme, folder):
    """Both ends of a connection, and the events of the listening one."""
    run = Credentials.new().with_certificate()
    events = []
    opened = threading.Event()

    def on_opened(pipe):
        events.append(("opened", pipe))
        opened.set()

    ours = ListeningSocket(
        on_opened=on_opened, on_closed=lambda pipe: events.append(("closed", pipe))
    )
    theirs = DiallingSocket()
    try:
        theirs.dial(ours.listen(address(scheme, folder).bind_url, run), run)
        assert opened.wait(PATIENCE)
        yield ours, theirs, events
    finally:
        theirs.close()
        ours.close()


def readable(fd, seconds=PATIENCE):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def received(sock):
    assert readable(sock.fd)
    return sock.receive()


class TestFrames:
    def test_they_arrive_as_they_were_sent(self, pair):
        ours, theirs, events = pair
        theirs.send(lambda: FRAME[:32], [FRAME[32:]])
        pipe, data = received(ours)
        assert events[0] == ("opened", pipe)
        assert data == FRAME
        ours.send(pipe, FRAME[:32], [b"a", bytearray(b"b"), memoryview(b"c")])
        assert received(theirs)[1] == FRAME

    def test_where_there_is_none_there_is_none(self, pair):
        ours, theirs, _ = pair
        assert ours.receive() is None
        assert theirs.receive() is None
        assert not readable(ours.fd, 0)

    def test_they_are_as_long_as_their_pieces(self, pair):
        ours, theirs, _ = pair
        for size in (0, 1, 63, 64, 2**20):
            theirs.send(lambda: b"h" * 32, [b"", b"x" * size, b""])
            assert len(received(ours)[1]) == 32 + size

    def test_empty_ones_arrive_too(self, pair):
        ours, theirs, _ = pair
        theirs.send(lambda: b"")
        assert received(ours)[1] == b""

    def test_what_is_sent_to_a_pipe_that_never_was_is_gone(self, pair):
        ours, theirs, _ = pair
        ours.send(12345, FRAME, [])
        theirs.send(lambda: FRAME)
        assert received(ours)[1] == FRAME

    def test_the_size_of_a_frame_is_limited(self, folder):
        run = Credentials.new()
        closed = threading.Event()
        ours = ListeningSocket(
            on_opened=lambda _: None, on_closed=lambda _: closed.set(), max_frame=1000
        )
        theirs = DiallingSocket()
        theirs.dial(ours.listen(address("ipc", folder).bind_url, run), run)
        theirs.send(lambda: b"x" * 1000)
        assert len(received(ours)[1]) == 1000
        theirs.send(lambda: b"x" * 1100)
        assert closed.wait(PATIENCE)
        assert ours.receive() is None
        theirs.close()
        ours.close()


class TestBackPressure:
    def fill(self, sock):
        """Send until nothing fits any more; returns the thread that waits, and what it sent."""
        sent, errors = [], []

        def send():
            try:
                while True:
                    sock.send(lambda: wire.header(Kind.CAST, ack=len(sent)), [b"x" * 2**16])
                    sent.append(len(sent))
            except TransportError as error:
                errors.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: sock._waiting)
        return thread, sent, errors

    def test_a_waiting_sender_goes_on_when_there_is_room(self, pair):
        ours, theirs, _ = pair
        thread, sent, _ = self.fill(theirs)
        before = len(sent)
        for _ in range(before + 50):
            assert received(ours)
        assert len(sent) > before
        theirs.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_its_header_is_made_when_its_turn_comes(self, pair):
        """What was taken in meanwhile is told, and in the order of the frames."""
        ours, theirs, _ = pair
        news = [0]
        stop = threading.Event()

        def send():
            while not stop.is_set():
                theirs.send(lambda: wire.header(Kind.CAST, ack=news[0], size=2**16), [bytes(2**16)])

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: theirs._waiting)
        news[0] = 7
        acks = []
        while 7 not in acks:
            acks.append(wire.parse(received(ours)[1]).ack)
        stop.set()
        while thread.is_alive():
            if readable(ours.fd, 0.01):
                acks.append(wire.parse(ours.receive()[1]).ack)
        assert acks == sorted(acks)
        thread.join()

    def test_news_are_posted_without_waiting(self, pair):
        """By the sender who waits, or by a thread where none does."""
        _, theirs, _ = pair
        thread, sent, _ = self.fill(theirs)
        theirs.post(lambda: wire.header(Kind.GRANT, ack=99))
        # whoever waits is asked for a header in its turn, and no frame more is needed
        assert theirs._waiting == 1
        theirs.close()
        thread.join(PATIENCE)
        assert sent

    def test_news_go_out_by_themselves_where_nobody_waits(self, pair):
        ours, theirs, _ = pair
        count = fill_to_the_brim(theirs)
        theirs.post(lambda: wire.header(Kind.GRANT, ack=99))
        kinds = [wire.parse(received(ours)[1]).kind for _ in range(count + 1)]
        assert kinds == [Kind.CAST] * count + [Kind.GRANT]

    def test_a_waiting_sender_is_told_of_the_end(self, pair):
        ours, theirs, _ = pair
        thread, _, errors = self.fill(theirs)
        ours.close()
        thread.join(PATIENCE)
        assert [str(error) for error in errors] == ["the connection is gone"]
        assert theirs._waiting == 0

    def test_news_to_who_is_gone_are_no_error(self, pair):
        ours, theirs, _ = pair
        ours.close()
        assert readable(theirs.end_fd)
        theirs.post(lambda: wire.header(Kind.GRANT))
        theirs.close()
        theirs.post(lambda: wire.header(Kind.GRANT))


def fill_to_the_brim(sock):
    """Hand over frames as long as none has to wait; how many."""
    count = 0
    while True:
        message = _build(None, wire.header(Kind.CAST, size=2**16), [bytes(2**16)])
        if sock._offer(message):
            lib.nng_msg_free(message)
            return count
        count += 1


class TestEnds:
    def test_each_side_hears_that_the_other_is_gone(self, pair):
        ours, theirs, events = pair
        assert not theirs.lost
        ours.close()
        assert readable(theirs.end_fd)
        assert theirs.lost
        assert [what for what, _ in events] == ["opened", "closed"]

    def test_the_listener_hears_of_a_dialler_that_goes(self, pair):
        _, theirs, events = pair
        theirs.close()
        until(lambda: len(events) == 2)
        assert [what for what, _ in events] == ["opened", "closed"]

    def test_one_pipe_can_be_closed_and_closed_again(self, pair):
        ours, theirs, events = pair
        pipe = events[0][1]
        ours.close_pipe(pipe)
        ours.close_pipe(pipe)
        ours.close_pipe(12345)
        assert readable(theirs.end_fd)

    def test_closed_sockets_say_so(self, pair):
        ours, theirs, _ = pair
        for sock in (ours, theirs):
            sock.close()
            sock.close()
            with pytest.raises(TransportError, match="object closed"):
                sock.receive()
        with pytest.raises(TransportError, match="object closed"):
            theirs.send(lambda: FRAME)
        with pytest.raises(TransportError, match="object closed"):
            ours.send(1, FRAME, [])

    def test_a_closed_one_is_gone_without_a_collection(self, folder):
        run = Credentials.new()
        ours = ListeningSocket(on_opened=lambda _: None, on_closed=lambda _: None)
        url = ours.listen(address("ipc", folder).bind_url, run)
        gc.collect()
        gc.disable()
        try:
            before = psutil.Process().num_fds()
            theirs = DiallingSocket()
            theirs.dial(url, run)
            gone = weakref.ref(theirs._socket)
            theirs.close()
            del theirs
            assert gone() is None
            until(lambda: psutil.Process().num_fds() <= before)
        finally:
            gc.enable()
            ours.close()

    def test_a_forgotten_one_is_closed_when_it_is_collected(self, folder):
        run = Credentials.new()
        closed = threading.Event()
        ours = ListeningSocket(on_opened=lambda _: None, on_closed=lambda _: closed.set())
        theirs = DiallingSocket()
        theirs.dial(ours.listen(address("ipc", folder).bind_url, run), run)
        del theirs
        gc.collect()
        assert closed.wait(PATIENCE)
        ours.close()


class TestListening:
    def test_a_socket_file_goes_with_its_listener(self, folder):
        sock = ListeningSocket(on_opened=lambda _: None, on_closed=lambda _: None)
        url = sock.listen(f"ipc://{folder}/here", Credentials.new())
        assert url == f"ipc://{folder}/here"
        assert [path.name for path in folder.iterdir()] == ["here"]
        sock.close()
        assert not list(folder.iterdir())

    def test_a_file_that_a_dead_one_left_is_taken_over(self, folder):
        import socket

        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{folder}/here")
        sock = ListeningSocket(on_opened=lambda _: None, on_closed=lambda _: None)
        sock.listen(f"ipc://{folder}/here", Credentials.new())
        sock.close()

    def test_port_zero_is_told_as_what_it_became(self):
        sock = ListeningSocket(on_opened=lambda _: None, on_closed=lambda _: None)
        run = Credentials.new().with_certificate()
        urls = [sock.listen("tls+tcp://127.0.0.1:0", run) for _ in range(2)]
        ports = {int(url.rpartition(":")[2]) for url in urls}
        assert len(ports) == 2
        assert 0 not in ports
        sock.close()
