"""The sockets themselves: whole frames, limits, ends, and nothing left of them."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import socket
import threading

import pytest
from pynng import lib

from fiber._wire import frames, nng
from fiber._wire.descriptors import Connection
from fiber._wire.frames import Kind
from fiber._wire.handshake import Credentials
from fiber._wire.nng import NngDialer, UnprovenConnections, build
from fiber.exceptions import PeerLostError, TransportError
from fiber.model.timing import Timing
from waiting import until_steady
from wire_world import (
    TIMEOUT,
    Mailbox,
    in_thread,
    is_watching,
    nng_dialer,
    raw_listener,
    readable,
    received,
    until,
)

FRAME = frames.header(Kind.CAST, size=3) + b"abc"
OFTEN = Timing(nng_check=0.05)


def test_what_is_sent_to_a_pipe_that_never_was_is_gone(ours, theirs):
    ours.send(12345, FRAME, [])
    theirs.send(lambda: FRAME)
    assert received(ours)[1] == FRAME


def test_a_message_has_nothing_that_nng_would_encrypt_and_send_apart_from_its_body():
    for pieces in ([b"abc"], [bytes(frames.JOIN_BELOW)]):
        to_listener, to_one = build(FRAME, pieces), build(FRAME, pieces, 7)
        # nng takes the number of the pipe off
        assert (lib.nng_msg_header_len(to_listener), lib.nng_msg_header_len(to_one)) == (0, 4)
        for message in (to_listener, to_one):
            lib.nng_msg_free(message)


class TestEnds:
    def test_one_pipe_can_be_closed_and_closed_again(self, ours, theirs, pipe):
        ours.close_pipe(pipe)
        ours.close_pipe(pipe)
        ours.close_pipe(12345)
        assert readable(theirs.end_fd)

    def test_a_forgotten_one_is_closed_when_it_is_collected(self, folder):
        closed, run = threading.Event(), Credentials.new()
        ours = raw_listener(on_closed=lambda _: closed.set())
        theirs = nng_dialer()
        theirs.dial(ours.listen(f"ipc://{folder}/here", run), run, timeout=TIMEOUT)
        del theirs
        gc.collect()
        assert closed.wait(TIMEOUT)
        ours.close()


def test_a_file_that_a_dead_one_left_is_taken_over(folder):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(f"{folder}/here")
    sock = raw_listener()
    sock.listen(f"ipc://{folder}/here", Credentials.new())
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


class TestWhileTheInterpreterEnds:
    """No thread can be started then, but frames at exit are still sent and received."""

    @pytest.fixture(autouse=True)
    def _no_threads(self, pair, monkeypatch):
        def refuse(thread):
            raise RuntimeError("can't create new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", refuse)

    def test_one_can_dial(self, pair, folder):
        run = Credentials.new()
        sock = nng_dialer()
        with pytest.raises(TransportError, match="connection refused"):
            sock.dial(f"ipc://{folder}/nobody", run, timeout=TIMEOUT)
        ours = raw_listener()
        sock.dial(ours.listen(f"ipc://{folder}/somebody", run), run, timeout=TIMEOUT)
        sock.close()
        ours.close()

    def test_acknowledgements_are_posted_by_the_reader(self, ours, theirs):
        theirs.post(lambda: frames.header(Kind.GRANT, ack=99))
        assert frames.parse(received(ours)[1]).ack == 99


class TestBackPressure:
    def test_its_header_is_made_when_its_turn_comes(self, ours, theirs):
        """It acknowledges the frames received meanwhile, in order."""
        news = [0]
        stop = threading.Event()

        def send():
            while not stop.is_set():
                theirs.send(
                    lambda: frames.header(Kind.CAST, ack=news[0], size=2**16), [bytes(2**16)]
                )

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: theirs._waiters)
        news[0] = 7
        acks = []
        while 7 not in acks:
            acks.append(frames.parse(received(ours)[1]).ack)
        stop.set()
        while thread.is_alive():
            if readable(ours.fd, seconds=0.01):
                acks.append(frames.parse(ours.receive()[1]).ack)
        assert acks == sorted(acks)
        thread.join()

    def test_acknowledgements_are_posted_without_blocking(self, theirs):
        """By the waiting sender, or by a thread where none waits."""

        def fill():
            while True:
                theirs.send(lambda: frames.header(Kind.CAST), [b"x" * 2**16])

        wait = in_thread(fill)
        # with TLS buffers below nng take more after a while, which nothing announces
        until_steady(lambda: next(iter(tuple(theirs._waiters)), None), looks=20)
        theirs.post(lambda: frames.header(Kind.GRANT, ack=99))
        # whoever waits is asked for a header in its turn, and no frame more is needed
        assert len(theirs._waiters) == 1
        theirs.close()
        with pytest.raises(TransportError):
            wait()

    def test_acknowledgements_are_sent_without_a_waiting_sender(self, ours, theirs):
        count = fill_to_the_brim(theirs)
        theirs.post(lambda: frames.header(Kind.GRANT, ack=99))
        kinds = [frames.parse(received(ours)[1]).kind for _ in range(count + 1)]
        assert kinds == [Kind.CAST] * count + [Kind.GRANT]

    def test_acknowledgements_to_a_lost_peer_are_no_error(self, ours, theirs):
        ours.close()
        assert readable(theirs.end_fd)
        theirs.post(lambda: frames.header(Kind.GRANT))
        theirs.close()
        theirs.post(lambda: frames.header(Kind.GRANT))


def fill_to_the_brim(sock):
    """Hand over frames as long as none has to wait; how many."""
    count = 0
    while True:
        message = build(frames.header(Kind.CAST, size=2**16), [bytes(2**16)])
        if sock._offer(message):
            lib.nng_msg_free(message)
            return count
        count += 1


@pytest.mark.parametrize("scheme", ["tcp", "tls+tcp"])
def test_a_connection_that_ends_in_its_greeting_is_made_again_some_times(scheme):
    made = []

    def end_all():
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()
                made.append(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = in_thread(end_all)
        dialer = NngDialer(check_interval=TIMEOUT, redial=0)
        url = f"{scheme}://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(TransportError, match=re.escape(f"cannot reach {url}: connection")):
            dialer.dial(url, Credentials.new(), timeout=TIMEOUT)
        until(lambda: len(made) == 4)
        dialer.close()
        server.shutdown(socket.SHUT_RDWR)
        ends()
    assert len(made) == 4


def test_connections_come_and_go_whoever_holds_the_locks(listen):
    """Else the holder, which may wait for a thread of nng's, and that thread would wait for each other."""
    listening, dialer = listen("tls+tcp", timing=OFTEN), NngDialer(check_interval=0.05)
    pipes = listening.endpoint._listeners["nng"]._socket._socket._pipes
    # whether something is logged has to be found out again
    logging.getLogger("pynng.nng").manager._clear_cache()
    locks = logging._lock, listening.endpoint._reactor._lock

    def holding(*locks, action):
        with contextlib.ExitStack() as held:
            for lock in locks:
                held.enter_context(lock)
            return action()

    def dial():
        dials = in_thread(
            lambda: dialer.dial(listening.url, listening.credentials, timeout=TIMEOUT)
        )
        until(lambda: listening.endpoint._peers and dialer._pipe._admitted)
        return dials

    def close():
        dialer.close()
        until(lambda: not pipes)

    holding(*locks, nng._lock, action=dial)()
    # without the last one, which the thread needs that finds ends missed by nng
    in_thread(lambda: holding(*locks, action=close))()
    until(lambda: not listening.endpoint._peers)


class TestWatch:
    """Ends that nng misses are found, and no thread stays for it."""

    def test_ends_during_traffic_are_noticed_on_both_sides(self, listen):
        """Without the watch about one in twenty is lost; each is cut while frames are on their way."""
        listening = listen("tls+tcp", timing=OFTEN)
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        for number in range(60):
            link = listening.link(f"w{number}", timing=OFTEN)
            peer = listening.peer(f"w{number}")
            for _ in range(7):
                peer.send(Kind.CAST, 1, 1, [b"x" * 100])
                link.send(Kind.CAST, 3, 1, [b"x" * 100])
            if number % 2:
                peer._listener.close_pipe(peer._pipe)
                with pytest.raises(PeerLostError):
                    while True:
                        link.receive(timeout=TIMEOUT)
            else:
                link.close()
            assert mailbox.next_lost() is peer

    def test_the_thread_runs_while_there_are_pipes_to_watch(self, listen):
        listening = listen("tls+tcp")
        assert not is_watching()
        links = [listening.link(f"w{number}") for number in range(3)]
        assert is_watching()
        for link in links:
            link.close()
        until(lambda: not is_watching())
        assert listening.link("again").peer
        assert is_watching()
