"""One connection on each transport: any size, nothing lost, its end noticed by all."""

from __future__ import annotations

import contextlib
import gc
import operator
import os
import re
import signal
import socket
import threading
import time

import attrs
import psutil
import pytest

from fiber._wire import frames, nng
from fiber._wire.endpoint import Endpoint
from fiber._wire.frames import Kind
from fiber._wire.handshake import Credentials
from fiber._wire.link import Link
from fiber.exceptions import HandshakeError, PeerLostError, TransportError
from fiber.model.timing import Timing
from waiting import until_steady
from wire_world import (
    TIMEOUT,
    Mailbox,
    address,
    answers_echo,
    close_listeners,
    hello,
    in_thread,
    is_watching,
    readable,
    threads,
    until,
)


class TestMessages:
    @pytest.mark.parametrize("size", [-1, 0, 1, 16])
    def test_sizes_around_that_of_a_frame(self, listen, scheme, size):
        link = listen(scheme, max_frame=4096).link()
        body = os.urandom(4096 - frames.HEADER.size + size)
        link.send(Kind.CALL, 1, 1, [body])
        assert bytes(link.receive(timeout=TIMEOUT).body) == body

    def test_a_received_body_can_be_written_to(self, link):
        """Arrays that are made of it must be as good as the sender's."""
        for size in (100, 2 * frames.MAX_FRAME):
            link.send(Kind.CALL, 1, 1, [bytes(size)])
            assert not link.receive(timeout=TIMEOUT).body.readonly

    def test_more_threads_send_large_messages_than_a_side_puts_together_at_once(self, listen):
        link = listen(max_frame=4096).link()
        with threads(100, lambda n: link.send(Kind.CALL, 1, n, [bytes([n]) * 20_000])):
            got = [link.receive(timeout=TIMEOUT) for _ in range(100)]
        assert {m.id: bytes(m.body) for m in got} == {n: bytes([n]) * 20_000 for n in range(100)}

    def test_receive_returns_when_its_time_is_over(self, link):
        assert link.receive(timeout=0) is None
        assert link.receive(timeout=0.01) is None


class TestWindows:
    def test_a_peer_that_does_not_read_loses_nothing_and_holds_up_no_other(
        self, listening, link, peer
    ):
        """Nng drops what exceeds 64 frames on the way to a peer; the window holds ours back."""
        for number in range(5000):
            peer.send(Kind.CAST, 1, number, [number.to_bytes(4, "little") * 10])

        assert answers_echo(listening.link("other"))
        got = [link.receive(timeout=TIMEOUT) for _ in range(5000)]
        assert [message.id for message in got] == list(range(5000))
        assert all(bytes(m.body) == m.id.to_bytes(4, "little") * 10 for m in got)

    def test_a_listener_that_does_not_read_holds_the_sender_back(self, listening, mailbox, link):
        sent = []

        def send():
            for number in range(1000):
                link.send(Kind.CAST, 2, number, [b"x" * 2**16])
                sent.append(number)

        with listening.held():
            wait = in_thread(send)
            until_steady(lambda: len(sent), looks=50)
            assert len(sent) < 1000
        assert wait() is None
        assert [mailbox.next()[1].id for _ in range(1000)] == list(range(1000))

    def test_a_waiting_sender_can_be_interrupted_and_send_again(self, listen):
        listening = listen("ipc", max_frame=4096)
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        link = listening.link()
        main = threading.main_thread().ident

        def interrupt():
            until(lambda: link._socket._waiters)
            signal.pthread_kill(main, signal.SIGINT)

        with listening.held():
            wait = in_thread(interrupt)
            with pytest.raises(KeyboardInterrupt):
                while True:
                    link.send(Kind.CAST, 9, 0, [b"x" * 20_000])
            wait()
        # the unfinished message gives way to the next of its number
        for _ in range(20):
            link.send(Kind.CAST, 9, 0, [b"x" * 20_000])
        link.send(Kind.CAST, 2, 7, [b"y" * 20_000])
        assert bytes(mailbox.next()[1].body) == b"y" * 20_000
        assert not link._socket._waiters


@contextlib.contextmanager
def replaced(number):
    """Another file has the number of a descriptor, as user code may leave it."""
    mine, other = os.dup(number), os.open(os.devnull, os.O_RDONLY)
    os.dup2(other, number)
    try:
        yield
    finally:
        os.dup2(mine, number)
        os.close(mine)
        os.close(other)


class TestDescriptorsThatUserCodeTakes:
    def test_a_link_knows_whether_it_has_them(self, link):
        for number in link.fds:
            assert link.is_intact
            with replaced(number):
                assert not link.is_intact
                with pytest.raises(PeerLostError, match="descriptors"):
                    link.send(Kind.CAST, checks=True)
                with pytest.raises(PeerLostError, match="descriptors"):
                    link.receive(checks=True)
        assert link.is_intact

    def test_one_within_a_host_leaves_alone_what_came_in_their_place(self, listen):
        link = listen("unix").link()
        number = link.fds[0]
        near, far = socket.socketpair()
        os.dup2(near.fileno(), number)
        link.close()
        del link
        gc.collect()
        theirs = socket.socket(fileno=number)
        theirs.send(b"still open")
        assert far.recv(100) == b"still open"
        for one in (near, far, theirs):
            one.close()

    def test_one_between_hosts_notices_without_use(self, listen):
        link = listen("tls+tcp").link(timing=Timing(nng_check=0.05))
        taken = threading.Event()
        link.on_descriptors_lost(taken.set)
        with replaced(link.fds[-1]):
            assert taken.wait(TIMEOUT)


class TestItsEnd:
    def test_a_blocked_receive_raises(self, listening, link):
        wait = in_thread(link.receive)
        listening.endpoint.close()
        with pytest.raises(PeerLostError) as caught:
            wait()
        assert isinstance(caught.value, EOFError)
        assert str(caught.value) == f"the connection to {listening.url} is gone"
        assert link.lost
        # everyone who waits is told
        for _ in range(3):
            assert readable(link.end_fd)

    def test_a_blocked_receive_raises_when_another_thread_closes_it(self, listening):
        for _ in range(20):
            link = listening.link()
            wait = in_thread(link.receive)
            link.close()
            with pytest.raises(PeerLostError):
                wait()

    @pytest.mark.parametrize("who", ["the listener", "another thread"])
    @pytest.mark.parametrize("size", [2**14, 2**20])
    def test_a_blocked_send_raises_when_one_closes_it(self, listening, link, who, size):
        def fill():
            while True:
                link.send(Kind.CAST, 9, 1, [b"x" * size])

        with listening.held():
            wait = in_thread(fill)
            time.sleep(0.1)
            if who == "another thread":
                link.close()
            else:
                # without the handler thread, as when the process is killed
                close_listeners(listening)
            with pytest.raises(PeerLostError):
                wait()

    @pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16])
    def test_what_came_before_it_is_still_handed_out(self, scheme, count, link, peer):
        for number in range(count):
            peer.send(Kind.CAST, 1, number, [b"x" * 100])
        assert readable(*link.fds)
        peer._listener.close_pipe(peer._pipe)
        # nng tells of it by itself
        assert scheme == "unix" or until(lambda: link.lost) is None

        got = []
        with pytest.raises(PeerLostError):
            while True:
                got.append(link.receive(timeout=TIMEOUT).id)
        # what lay in nng's and the system's hands may be lost, what was here is not
        assert got == list(range(len(got)))
        assert got

    def test_nothing_can_be_sent_or_received_after_it(self, link):
        link.close()
        link.close()
        for attempt in (
            lambda: link.send(Kind.CALL, 1, 1),
            link.receive,
            lambda: link.receive(timeout=0),
        ):
            with pytest.raises(PeerLostError):
                attempt()
        link.wait()

    def test_a_listener_that_comes_back_is_dialled_by_a_new_link_only(self, folder, listen):
        """Nng redials by itself; frames of a former session mean nothing to a new listener."""
        first = listen("ipc")
        path = first.url[len("ipc://") :]
        link = first.link()
        first.endpoint.close()
        until(lambda: link.lost)
        second = Endpoint(first.credentials, hello("second"), first.reactor)
        mailbox = Mailbox()
        second.serve(1, mailbox)
        try:
            assert second.listen(attrs.evolve(address("ipc", folder), bind_url=f"ipc://{path}"))
            with pytest.raises(PeerLostError):
                link.send(Kind.CALL, 1, 1)
            fresh = Link(f"ipc://{path}", first.credentials, hello("again"))
            fresh.send(Kind.CALL, 1, 5)
            peer, message = mailbox.next()
            assert (peer.ident, message.id) == ("again", 5)
            assert [peer.ident for peer in second.peers()] == ["again"]
            fresh.close()
        finally:
            second.close()

    def test_connections_leave_no_descriptor_and_no_thread(self, listening):
        """Counted after the first ones: nng keeps what it opened for its own work."""

        def use():
            link = listening.link(f"one{time.monotonic_ns()}")
            link.send(Kind.CALL, 1, 1, [b"x" * 1000])
            link.receive(timeout=TIMEOUT)
            link.close()
            listening._opened.clear()

        def state():
            until(lambda: not listening.endpoint._peers and not is_watching())
            return process.num_fds(), process.num_threads()

        process = psutil.Process()
        for _ in range(10):
            use()
        before = state()
        gc.disable()
        try:
            for _ in range(50):
                use()
            # some of the first may still have been on their way out
            until(lambda: all(map(operator.le, state(), before)))
        finally:
            gc.enable()


def dial(url, credentials=None, mine=None, **options):
    """Dial, which fails; closed where it does not."""
    link = Link(url, credentials or Credentials.new(), mine or hello("x"), **options)
    link.close()


#: of a run, and of an authkey, for which the listener's certificate is looked up first
BOTH = [Credentials.new().with_certificate(), Credentials.of_authkey(b"known to both")]


class TestDialling:
    @pytest.mark.parametrize("credentials", BOTH, ids=["run", "authkey"])
    def test_an_address_without_a_listener_is_an_error(self, folder, scheme, credentials):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        url = f"{scheme}://127.0.0.1:{port}" if "tcp" in scheme else f"{scheme}://{folder}/nobody"
        why = "no such file or directory" if scheme == "unix" else "connection refused"
        words = re.escape(f"cannot reach {url}: {why}")
        with pytest.raises(TransportError, match=words):
            dial(url, credentials)

    @pytest.mark.parametrize("url", ["", "nonsense", "http://x", "ipc://" + "x" * 200])
    def test_what_is_no_address_is_a_transport_error(self, url):
        with pytest.raises(TransportError, match="cannot reach"):
            dial(url)

    def test_only_the_certificate_that_was_looked_up_is_accepted(self, listen, monkeypatch):
        """Another one listens there since, or somebody is in between who lets one call through."""
        listening = listen("tls+tcp", credentials=BOTH[1])
        assert listening.link("here").peer
        monkeypatch.setattr(nng, "shown_certificate", lambda *_, **__: BOTH[0].certificate)
        with pytest.raises(HandshakeError, match="TLS to .* failed"):
            dial(listening.url, BOTH[1])

    def test_a_failed_dial_leaves_no_descriptor(self, folder):
        def fail():
            with pytest.raises(TransportError):
                dial(f"ipc://{folder}/nobody")

        fail()
        gc.collect()
        before = psutil.Process().num_fds()
        for _ in range(20):
            fail()
        gc.collect()
        until(lambda: psutil.Process().num_fds() <= before)

    @pytest.mark.parametrize(
        "run, mine, words",
        [
            ({"key": b"secret" * 5 + b"xx"}, {}, "could not prove that it is of this run"),
            ({"run_id": "ffffffff"}, {}, r"closed the connection.*it is of another run"),
            ({}, {"fiber": "99.1"}, r"fiber is .* and 99\.1 on .* pip install"),
        ],
        ids=["another key", "another run", "another version"],
    )
    def test_others_are_refused_without_a_word_of_their_key(self, listening, run, mine, words):
        credentials = attrs.evolve(listening.credentials, **run)
        with pytest.raises(HandshakeError, match=words) as caught:
            dial(listening.url, credentials, attrs.evolve(hello("x"), **mine))
        assert listening.endpoint.peers() == []
        assert "secret" not in repr(caught.value)

    @pytest.mark.parametrize("has_certificate", [True, False], ids=["of another run", "none"])
    def test_tls_refuses_the_certificate_of_another_run_and_none(self, listen, has_certificate):
        listening = listen("tls+tcp")
        other = Credentials.new()
        with pytest.raises(TransportError) as caught:
            dial(listening.url, other.with_certificate() if has_certificate else other)
        if has_certificate:
            assert isinstance(caught.value, HandshakeError)
            for cause in ("of another run", "is no tunnel"):
                assert cause in str(caught.value)
        assert listening.endpoint.peers() == []
        assert listening.link("still served").peer

    @pytest.mark.parametrize("credentials", BOTH, ids=["run", "authkey"])
    @pytest.mark.parametrize("where", ["ipc", "tcp", "tls+tcp"])
    def test_a_silent_listener_times_out(self, folder, where, credentials):
        """Without a limit of ours nng waits for ever where TLS is expected."""
        with socket.socket(socket.AF_UNIX if where == "ipc" else socket.AF_INET) as silent:
            silent.bind(str(folder / "silent") if where == "ipc" else ("127.0.0.1", 0))
            silent.listen()
            name = silent.getsockname()
            url = f"{where}://" + (name if where == "ipc" else f"127.0.0.1:{name[1]}")
            with pytest.raises(TransportError, match=r"did not answer within 0.1 s"):
                dial(url, credentials, timing=Timing(handshake=0.1))

    def test_a_listener_that_never_answers_is_given_up(self, listen):
        listening = listen()
        words = f"{listening.url} did not answer .* within 0.2 s"
        with listening.held(), pytest.raises(HandshakeError, match=words):
            dial(listening.url, listening.credentials, timing=Timing(handshake=0.2))
