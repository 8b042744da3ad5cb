"""The listening side: services, peers, addresses, and its end."""

from __future__ import annotations

import threading
from collections import deque

import psutil
import pytest

from fiber._wire import descriptors
from fiber._wire.frames import Kind
from fiber._wire.nng import BACKLOG
from fiber.exceptions import PeerLostError, TransportError
from fiber.model.plugin import ListenAddress
from wire_world import (
    TIMEOUT,
    ListeningEndpoint,
    Mailbox,
    address,
    answers_echo,
    frame,
    threads,
    until,
)


class TestServices:
    def test_without_a_service_a_call_is_answered_with_an_empty_error_and_a_cast_ignored(
        self, listening, link
    ):
        assert answers_echo(link)
        listening.endpoint.withdraw(1)
        listening.endpoint.withdraw(1)
        for target in (1, 77):
            link.send(Kind.CAST, target, 5, [b"?"])
            link.send(Kind.CALL, target, 6, [b"?"])
            message = link.receive(timeout=TIMEOUT)
            assert (message.kind, message.target, message.id) == (Kind.ERROR, target, 6)
            assert not message.body

    def test_a_failure_closes_the_connection_of_its_peer_only(self, listening, mailbox, caplog):
        class Failing:
            def on_message(self, peer, message):
                raise ZeroDivisionError("as meant")

            def on_peer_lost(self, peer):
                raise ZeroDivisionError("as meant too")

        listening.endpoint.serve(3, Failing())
        other = listening.link("other")
        for number in range(3):
            link = listening.link(f"unlucky-{number}")
            link.send(Kind.CALL, 3, 1)
            with pytest.raises(PeerLostError):
                link.receive(timeout=TIMEOUT)
            assert mailbox.next_lost().ident == f"unlucky-{number}"
        assert answers_echo(other)
        assert caplog.text.count("ZeroDivisionError: as meant\n") == 1


class TestPeers:
    def test_every_service_is_notified_of_the_loss_of_a_peer(self, listening):
        boxes = [Mailbox(), Mailbox()]
        for target, box in enumerate(boxes, 10):
            listening.endpoint.serve(target, box)
        link = listening.link("dying")
        peer = listening.peer("dying")
        link.close()
        assert [box.next_lost() for box in boxes] == [peer, peer]
        assert not peer.alive
        assert listening.endpoint.peers() == []
        # what is sent to it is nowhere
        peer.send(Kind.CAST, 1, 1, [b"x"])
        assert not peer._unsent

    def test_messages_sent_before_the_end_arrive_before_the_notice_of_it(self, listen, monkeypatch):
        """The news of an end may overtake as many frames as nng keeps."""
        listening = listen("ipc")
        heard, over = [], threading.Event()

        class Order:
            def on_message(self, peer, message):
                heard.append(message.id)

            def on_peer_lost(self, peer):
                heard.append("lost")
                over.set()

        listening.endpoint.serve(2, Order())
        listening.link()
        pipe = listening.peer()._pipe
        unread = deque((pipe, frame(Kind.CAST, target=2, number=n)) for n in range(BACKLOG))
        ours = listening.endpoint._listeners["nng"]._socket
        monkeypatch.setattr(ours, "receive", lambda: unread.popleft() if unread else None)
        listening.peer()._listener.close_pipe(pipe)
        assert over.wait(TIMEOUT)
        assert heard == [*range(BACKLOG), "lost"]

    def test_frames_of_a_pipe_that_is_gone_are_passed_over(self, listen, monkeypatch):
        listening = listen("ipc")
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        unread = deque([(12345, frame(Kind.HELLO)), (12345, frame(Kind.CAST, target=2))])
        ours = listening.endpoint._listeners["nng"]._socket
        real = ours.receive
        monkeypatch.setattr(ours, "receive", lambda: unread.popleft() if unread else real())
        assert answers_echo(listening.link())
        assert not unread
        assert mailbox.messages.empty()
        assert list(listening.endpoint._peers.values()) == listening.endpoint.peers()

    def test_one_whose_connection_has_just_ended_has_its_address(self, listen):
        listening = listen("tls+tcp")
        link, peer = listening.link(), listening.peer()
        names = listening.endpoint._listeners["nng"]._socket.names
        before, connections = peer.address, descriptors.AcceptedConnections()
        for one in connections.accepted(names):
            connections.end(one)
        connections.close()
        # "" once nng has noticed
        assert link and peer.address in (before, "")

    def test_peers_may_be_sent_to_from_many_threads(self, link, peer):

        def send(name):
            for number in range(100):
                peer.send(Kind.CAST, 1, name * 1000 + number)

        with threads(8, send):
            got = [link.receive(timeout=TIMEOUT).id for _ in range(800)]
        for name in range(8):
            mine = [number for number in got if number // 1000 == name]
            assert mine == [name * 1000 + number for number in range(100)]


class TestAddresses:
    def test_several_may_be_listened_on(self, listen, folder):
        listening = listen("ipc")
        second = listening.endpoint.listen(address("tls+tcp", folder))
        assert listening.endpoint.urls == [listening.url, second]
        assert second.startswith("tls+tcp://127.0.0.1:")
        for url in listening.endpoint.urls:
            listening.url = url
            assert answers_echo(listening.link(url))

    @pytest.mark.parametrize(
        "host, told", [("example.org", "example.org"), ("::1", "[::1]"), ("[::1]", "[::1]")]
    )
    def test_another_host_can_be_advertised(self, listen, host, told):
        listening = listen("ipc")
        url = listening.endpoint.listen(
            ListenAddress(bind_url="tls+tcp://127.0.0.1:0", advertise_host=host)
        )
        scheme, _, rest = url.partition("://")
        assert scheme == "tls+tcp"
        assert rest.rpartition(":")[0] == told
        assert int(rest.rpartition(":")[2]) > 0

    def test_plain_tcp_works_and_is_warned_of(self, listen, caplog):
        listening = listen("tcp")
        assert "is not encrypted; use tls+tcp://" in caplog.text
        assert answers_echo(listening.link())

    def test_an_address_in_use_is_an_error(self, listen):
        first = listen()
        with pytest.raises(
            TransportError, match=f"cannot listen on {first.url}: address (already )?in use"
        ):
            listen().endpoint.listen(ListenAddress(bind_url=first.url))

    @pytest.mark.parametrize(
        "url", ["ipc://" + "x" * 200, "nonsense", "tls+tcp://nowhere.invalid:0"]
    )
    def test_an_impossible_address_is_a_transport_error(self, listen, url):
        with pytest.raises(TransportError, match="cannot listen on"):
            listen().endpoint.listen(ListenAddress(bind_url=url))


class TestItsEnd:
    @pytest.mark.parametrize("scheme", ["unix", "ipc"])
    def test_it_leaves_no_file_no_descriptor_and_no_thread(self, folder, scheme):
        ListeningEndpoint(scheme, folder).close()
        process = psutil.Process()
        before = process.num_fds(), threading.active_count()
        for _ in range(5):
            one = ListeningEndpoint(scheme, folder)
            assert answers_echo(one.link())
            one.close()
            one.endpoint.close()
            del one
        # fewer, where what tests before left to nng went meanwhile
        until(lambda: process.num_fds() <= before[0] and threading.active_count() <= before[1])
        assert list(folder.iterdir()) == []

    def test_a_service_may_close_it(self, listen):
        listening = listen()

        class Closing:
            def on_message(self, peer, message):
                listening.endpoint.close()

            def on_peer_lost(self, peer):
                """Not called any more."""

        listening.endpoint.serve(2, Closing())
        link = listening.link()
        link.send(Kind.CAST, 2, 1)
        with pytest.raises(PeerLostError):
            link.receive(timeout=TIMEOUT)

    def test_sending_after_it_does_nothing(self, listening, peer):
        listening.link()
        listening.endpoint.close()
        peer.send(Kind.CAST, 1, 1, [b"x"])
        peer.close()

    def test_it_may_close_after_its_handler_thread(self, folder):
        one = ListeningEndpoint("ipc", folder)
        one.link().close()
        one.reactor.stop()
        one.close()
