"""The dialler's socket: back-pressure that can be waited for, posted past, and ended."""

from __future__ import annotations

import threading

import pytest
from pynng import lib

from fiber._wire import frames
from fiber._wire.frames import Kind
from fiber._wire.identity import Credentials
from fiber._wire.nng import build
from fiber.exceptions import TransportError
from wire_world import TIMEOUT, nng_dialer, raw_listener, readable, received, until


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

    def test_acknowledgements_are_posted_by_the_reader(self, pair):
        ours, theirs, _ = pair
        theirs.post(lambda: frames.header(Kind.GRANT, ack=99))
        assert frames.parse(received(ours)[1]).ack == 99


class TestBackPressure:
    def fill(self, sock):
        """Send until nothing fits any more; returns the thread that waits, and what it sent."""
        sent, errors = [], []

        def send():
            try:
                while True:
                    sock.send(lambda: frames.header(Kind.CAST, ack=len(sent)), [b"x" * 2**16])
                    sent.append(len(sent))
            except TransportError as error:
                errors.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: sock._waiters)
        return thread, sent, errors

    def test_a_waiting_sender_goes_on_when_there_is_room(self, pair):
        ours, theirs, _ = pair
        thread, sent, _ = self.fill(theirs)
        before = len(sent)
        for _ in range(before + 50):
            assert received(ours)
        assert len(sent) > before
        theirs.close()
        thread.join(TIMEOUT)
        assert not thread.is_alive()

    def test_its_header_is_made_when_its_turn_comes(self, pair):
        """It acknowledges the frames received meanwhile, in order."""
        ours, theirs, _ = pair
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
            if readable(ours.fd, 0.01):
                acks.append(frames.parse(ours.receive()[1]).ack)
        assert acks == sorted(acks)
        thread.join()

    def test_acknowledgements_are_posted_without_blocking(self, pair):
        """By the waiting sender, or by a thread where none waits."""
        _, theirs, _ = pair
        thread, sent, _ = self.fill(theirs)
        theirs.post(lambda: frames.header(Kind.GRANT, ack=99))
        # whoever waits is asked for a header in its turn, and no frame more is needed
        assert len(theirs._waiters) == 1
        theirs.close()
        thread.join(TIMEOUT)
        assert sent

    def test_acknowledgements_are_sent_without_a_waiting_sender(self, pair):
        ours, theirs, _ = pair
        count = fill_to_the_brim(theirs)
        theirs.post(lambda: frames.header(Kind.GRANT, ack=99))
        kinds = [frames.parse(received(ours)[1]).kind for _ in range(count + 1)]
        assert kinds == [Kind.CAST] * count + [Kind.GRANT]

    def test_a_waiting_sender_gets_the_end(self, pair):
        ours, theirs, _ = pair
        thread, _, errors = self.fill(theirs)
        ours.close()
        thread.join(TIMEOUT)
        assert [str(error) for error in errors] == ["the connection is gone"]
        assert not theirs._waiters

    def test_acknowledgements_to_a_lost_peer_are_no_error(self, pair):
        ours, theirs, _ = pair
        ours.close()
        assert readable(theirs.end_fd)
        theirs.post(lambda: frames.header(Kind.GRANT))
        theirs.close()
        theirs.post(lambda: frames.header(Kind.GRANT))


def fill_to_the_brim(sock):
    """Hand over frames as long as none has to wait; how many."""
    count = 0
    while True:
        message = build(None, frames.header(Kind.CAST, size=2**16), [bytes(2**16)])
        if sock._offer(message):
            lib.nng_msg_free(message)
            return count
        count += 1
