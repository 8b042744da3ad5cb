"""Links that fail to connect and links that end: all threads notice, and nothing is left."""

from __future__ import annotations

import gc
import operator
import os
import re
import select
import socket
import threading
import time

import attrs
import psutil
import pytest

from fiber._wire.endpoint import Endpoint
from fiber._wire.frames import Kind
from fiber._wire.handshake import Hello
from fiber._wire.identity import Credentials
from fiber._wire.link import Link
from fiber.exceptions import HandshakeError, PeerLostError, TransportError, WireError
from fiber.model.timing import Timing
from wire_world import (
    TIMEOUT,
    ListeningEndpoint,
    Mailbox,
    address,
    close_listeners,
    hello,
    in_thread,
    until,
)


class TestItsEnd:
    def test_a_blocked_receive_raises(self, listening):
        link = listening.link()
        wait = in_thread(link.receive)
        listening.endpoint.close()
        error = wait()
        assert isinstance(error, PeerLostError)
        assert isinstance(error, EOFError)
        assert str(error) == f"the connection to {listening.url} is gone"
        assert link.lost

    def test_a_blocked_receive_raises_when_another_thread_closes_it(self, listening):
        link = listening.link()
        for _ in range(20):
            link = listening.link()
            wait = in_thread(link.receive)
            link.close()
            assert isinstance(wait(), PeerLostError)

    def test_a_blocked_send_raises(self, listening):
        link = listening.link()
        full = threading.Event()

        def fill():
            while True:
                link.send(Kind.CAST, 9, 1, [b"x" * 2**14])
                full.set()

        with listening.held():
            wait = in_thread(fill)
            assert full.wait(TIMEOUT)
            # without the handler thread, as when the process is killed
            close_listeners(listening)
            assert isinstance(wait(), PeerLostError)

    def test_a_blocked_send_raises_when_another_thread_closes_it(self, listening):
        link = listening.link()

        def fill():
            while True:
                link.send(Kind.CAST, 9, 1, [b"x" * 2**20])

        with listening.held():
            wait = in_thread(fill)
            time.sleep(0.1)
            link.close()
            assert isinstance(wait(), PeerLostError)

    @pytest.mark.parametrize("count", [1, 7, 8, 9, 15, 16])
    def test_what_came_before_it_is_still_handed_out(self, listening, scheme, count):
        link = listening.link()
        peer = listening.peer()
        for number in range(count):
            peer.send(Kind.CAST, 1, number, [b"x" * 100])
        poll = select.poll()
        for fd in link.fds:
            poll.register(fd, select.POLLIN)
        assert poll.poll(1000 * TIMEOUT)
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

    def test_its_descriptor_stays_readable_for_everyone(self, listening):
        link = listening.link()
        listening.endpoint.close()
        with pytest.raises(PeerLostError):
            link.receive(timeout=TIMEOUT)
        for _ in range(3):
            assert select.select([link.end_fd], [], [], TIMEOUT)[0]

    def test_nothing_can_be_sent_or_received_after_it(self, listening):
        link = listening.link()
        link.close()
        link.close()
        with pytest.raises(PeerLostError):
            link.send(Kind.CALL, 1, 1)
        with pytest.raises(PeerLostError):
            link.receive()
        with pytest.raises(PeerLostError):
            link.receive(timeout=0)
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

    def test_a_malformed_frame_of_a_listener_is_a_wire_error(self, listening):
        link = listening.link()
        peer = listening.peer()
        peer._listener.send(peer._pipe, b"nonsense" * 8, [])
        with pytest.raises(WireError):
            link.receive(timeout=TIMEOUT)

    def test_connections_leave_no_descriptor_and_no_thread(self, listening):
        """Counted after the first ones: nng keeps what it opened for its own work."""

        def use():
            link = listening.link(f"one{time.monotonic_ns()}")
            link.send(Kind.CALL, 1, 1, [b"x" * 1000])
            link.receive(timeout=TIMEOUT)
            link.close()
            listening._opened.clear()

        def state():
            until(lambda: not listening.endpoint._peers and not is_watched())
            return process.num_fds(), process.num_threads()

        def is_watched():
            return any(thread.name == "fiber-watch" for thread in threading.enumerate())

        process = psutil.Process()
        for _ in range(10):
            use()
        before = state()
        gc.disable()
        try:
            for _ in range(200):
                use()
            # some of the first may still have been on their way out
            until(lambda: all(map(operator.le, state(), before)))
        finally:
            gc.enable()


class TestDialling:
    def test_an_address_without_a_listener_is_an_error(self, folder):
        url = f"ipc://{folder}/nobody"
        with pytest.raises(TransportError, match=f"cannot reach {url}: connection refused"):
            Link(url, Credentials.new(), hello("x"))

    def test_a_port_without_a_listener_is_an_error(self, free_port):
        run = Credentials.new().with_certificate()
        url = f"tls+tcp://127.0.0.1:{free_port}"
        with pytest.raises(
            TransportError, match=re.escape(f"cannot reach {url}: connection refused")
        ):
            Link(url, run, hello("x"))

    @pytest.mark.parametrize("url", ["", "nonsense", "http://x", "ipc://" + "x" * 200])
    def test_what_is_no_address_is_a_transport_error(self, url):
        with pytest.raises(TransportError, match="cannot reach"):
            Link(url, Credentials.new(), hello("x"))

    def test_a_failed_dial_leaves_no_descriptor(self, folder):
        def fail():
            with pytest.raises(TransportError):
                Link(f"ipc://{folder}/nobody", Credentials.new(), hello("x"))

        fail()
        gc.collect()
        before = psutil.Process().num_fds()
        for _ in range(20):
            fail()
        gc.collect()
        until(lambda: psutil.Process().num_fds() <= before)

    def test_another_key_is_refused(self, listen):
        listening = listen()
        wrong = attrs.evolve(listening.credentials, key=b"x" * 32)
        with pytest.raises(HandshakeError, match="could not prove that it is of this run"):
            Link(listening.url, wrong, hello("x"))
        assert listening.endpoint.peers() == []

    def test_another_run_is_refused(self, listen):
        listening = listen()
        with pytest.raises(HandshakeError, match=r"closed the connection.*it is of another run"):
            Link(listening.url, Credentials.new(), hello("x"))

    def test_another_version_is_refused_in_words(self, listening):
        theirs = attrs.evolve(hello("old"), fiber="99.1")
        with pytest.raises(HandshakeError, match=r"fiber is .* and 99\.1 on .* pip install"):
            Link(listening.url, listening.credentials, theirs)
        assert listening.endpoint.peers() == []

    @pytest.mark.parametrize("certificate", ["of another run", "none"])
    def test_tls_refuses_the_certificate_of_another_run_and_none(self, listen, certificate):
        listening = listen("tls+tcp")
        other = Credentials.new()
        if certificate == "of another run":
            other = other.with_certificate()
        with pytest.raises(TransportError) as caught:
            Link(listening.url, other, hello("x"))
        words = str(caught.value)
        if certificate == "of another run":
            assert isinstance(caught.value, HandshakeError)
            for cause in ("of another run", "clocks of the two hosts", "is no tunnel"):
                assert cause in words
        assert listening.endpoint.peers() == []
        assert listening.link("still served").peer

    @pytest.mark.parametrize("where", ["ipc", "tcp", "tls+tcp"])
    def test_a_silent_listener_times_out(self, folder, where):
        """Without a limit of ours nng waits for ever where TLS is expected."""
        with socket.socket(socket.AF_UNIX if where == "ipc" else socket.AF_INET) as silent:
            silent.bind(str(folder / "silent") if where == "ipc" else ("127.0.0.1", 0))
            silent.listen()
            name = silent.getsockname()
            url = f"{where}://" + (name if where == "ipc" else f"127.0.0.1:{name[1]}")
            run = Credentials.new().with_certificate()
            with pytest.raises(TransportError, match=r"did not answer within 0.1 s"):
                Link(url, run, hello("x"), timing=Timing(handshake=0.1))

    def test_a_listener_that_never_answers_is_given_up(self, listen):
        listening = listen()
        with listening.held():
            url = listening.url
            with pytest.raises(HandshakeError, match=f"{url} did not answer .* within 0.2 s"):
                Link(url, listening.credentials, hello("x"), timing=Timing(handshake=0.2))

    def test_credentials_are_in_no_error(self, listen):
        listening = listen()
        wrong = attrs.evolve(listening.credentials, key=b"secret" * 5 + b"xx")
        with pytest.raises(HandshakeError) as caught:
            Link(listening.url, wrong, hello("x"))
        assert "secret" not in repr(caught.value)


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_hello_of_a_process_has_its_own_pid():
    assert Hello.mine("x").pid == os.getpid()


def test_the_support_closes_what_it_opens(folder):
    one = ListeningEndpoint("ipc", folder)
    one.link().close()
    one.close()
    assert list(folder.iterdir()) == []
