"""The sockets themselves: whole frames, limits, ends, and nothing left of them."""

from __future__ import annotations

import gc
import threading
import weakref

import psutil
import pytest

from fiber._wire import frames
from fiber._wire.descriptors import Connection
from fiber._wire.frames import Kind
from fiber._wire.identity import Credentials
from fiber._wire.nng import UnprovenConnections
from fiber.exceptions import TransportError
from wire_world import TIMEOUT, address, nng_dialer, raw_listener, readable, received, until

FRAME = frames.header(Kind.CAST, size=3) + b"abc"


class TestFrames:
    def test_they_arrive_as_they_were_sent(self, pair):
        ours, theirs, events = pair
        theirs.send(lambda: FRAME[:32], [FRAME[32:]])
        pipe, data = received(ours)
        assert events[0] == ("opened", pipe)
        assert data == FRAME
        ours.send(pipe, FRAME[:32], [b"a", bytearray(b"b"), memoryview(b"c")])
        assert received(theirs)[1] == FRAME

    def test_without_a_frame_receive_returns_none(self, pair):
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
        ours = raw_listener(on_closed=lambda _: closed.set(), max_frame=1000)
        theirs = nng_dialer()
        theirs.dial(ours.listen(address("ipc", folder).bind_url, run), run, timeout=TIMEOUT)
        theirs.send(lambda: b"x" * 1000)
        assert len(received(ours)[1]) == 1000
        theirs.send(lambda: b"x" * 1100)
        assert closed.wait(TIMEOUT)
        assert ours.receive() is None
        theirs.close()
        ours.close()


class TestEnds:
    def test_each_side_notices_the_end_of_the_other(self, pair):
        ours, theirs, events = pair
        assert not theirs.lost
        ours.close()
        assert readable(theirs.end_fd)
        assert theirs.lost
        assert [what for what, _ in events] == ["opened", "closed"]

    def test_the_listener_notices_a_dialer_that_closes(self, pair):
        ours, theirs, events = pair
        # nng loses the end of a TLS connection that ends while its listener has it opened: strangers,
        # who are cut off after a while
        theirs.send(lambda: FRAME)
        assert received(ours)[1] == FRAME
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

    def test_closed_sockets_raise(self, pair):
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
        ours = raw_listener()
        url = ours.listen(address("ipc", folder).bind_url, run)
        gc.collect()
        gc.disable()
        try:
            before = psutil.Process().num_fds()
            theirs = nng_dialer()
            theirs.dial(url, run, timeout=TIMEOUT)
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
        ours = raw_listener(on_closed=lambda _: closed.set())
        theirs = nng_dialer()
        theirs.dial(ours.listen(address("ipc", folder).bind_url, run), run, timeout=TIMEOUT)
        del theirs
        gc.collect()
        assert closed.wait(TIMEOUT)
        ours.close()


class TestListening:
    def test_a_socket_file_goes_with_its_listener(self, folder):
        sock = raw_listener()
        url = sock.listen(f"ipc://{folder}/here", Credentials.new())
        assert url == f"ipc://{folder}/here"
        assert [path.name for path in folder.iterdir()] == ["here"]
        sock.close()
        assert not list(folder.iterdir())

    def test_a_file_that_a_dead_one_left_is_taken_over(self, folder):
        import socket

        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(f"{folder}/here")
        sock = raw_listener()
        sock.listen(f"ipc://{folder}/here", Credentials.new())
        sock.close()

    def test_port_zero_is_replaced_by_the_bound_one(self):
        sock = raw_listener()
        run = Credentials.new().with_certificate()
        urls = [sock.listen("tls+tcp://127.0.0.1:0", run) for _ in range(2)]
        ports = {int(url.rpartition(":")[2]) for url in urls}
        assert len(ports) == 2
        assert 0 not in ports
        sock.close()


class TestUnproven:
    """Which of the connections that are no pipes yet have to go."""

    @pytest.fixture
    def unproven(self):
        return UnprovenConnections(10.0)

    @staticmethod
    def expired(unproven, now, numbers, *, most=100, silent=()):
        found = [Connection(number, (b"here", 1), (b"there", number)) for number in numbers]
        gone = unproven.expired(
            now, found, most=most, is_silent=lambda one: one.descriptor in silent
        )
        return sorted(one.descriptor for one in gone)

    def test_each_has_its_time(self, unproven):
        assert self.expired(unproven, 0.0, [1, 2]) == []
        assert self.expired(unproven, 9.0, [1, 2, 3]) == []
        assert self.expired(unproven, 10.0, [1, 2, 3]) == [1, 2]
        assert self.expired(unproven, 19.0, [3]) == [3]
        assert len(unproven) == 0

    def test_one_that_was_ended_counts_no_more(self, unproven):
        self.expired(unproven, 0.0, [1, 2])
        assert self.expired(unproven, 11.0, [1, 2, 3], most=1) == [1, 2]
        assert self.expired(unproven, 12.0, [1, 2, 3], most=1) == []
        assert len(unproven) == 1

    def test_one_that_became_a_pipe_and_another_with_its_number_begin_anew(self, unproven):
        self.expired(unproven, 0.0, [1])
        assert self.expired(unproven, 5.0, []) == []
        assert self.expired(unproven, 11.0, [1]) == []
        assert self.expired(unproven, 21.0, [1]) == [1]

    def test_of_too_many_the_oldest_go(self, unproven):
        self.expired(unproven, 0.0, [7, 8])
        self.expired(unproven, 1.0, [5, 7, 8])
        assert self.expired(unproven, 2.0, [4, 5, 7, 8], most=3) == [7]
        assert self.expired(unproven, 3.0, [3, 4, 5, 8], most=2) == [5, 8]

    def test_of_too_many_the_silent_ones_end_first(self, unproven):
        self.expired(unproven, 0.0, [1, 2, 3])
        assert self.expired(unproven, 1.0, [1, 2, 3, 4, 5], most=2, silent={2, 4}) == [1, 2, 4]
