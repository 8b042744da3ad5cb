"""The listening side among strangers, liars and the dying: the others are served all the while."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import random
import socket
import threading
import time
from collections import deque

import attrs
import psutil
import pynng
import pytest

import soak
from fiber.dispatch.calls import Call
from fiber.dispatch.master import Dispatcher
from fiber.dispatch.protocol import Done, Mode
from fiber.exceptions import PeerLostError, TransportError
from fiber.model.network import ListenAddress
from fiber.transport import codec, wire
from fiber.transport.identity import Credentials
from fiber.transport.nng import BACKLOG
from fiber.transport.wire import Kind
from transport_world import PATIENCE, Echo, Listening, Mailbox, address, hello, until

DAMAGED = soak.count(10_000)


def frame(kind, body=b"", *, target=1, number=1, size=None, ack=0):
    size = len(body) if size is None else size
    return wire.header(kind, ack=ack, target=target, id=number, size=size) + body


def echoes(link, number=99):
    """True where the endpoint serves a link."""
    link.send(Kind.CALL, 1, number, [b"still there"])
    return bytes(link.receive(timeout=PATIENCE).body) == b"still there"


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


class TestServices:
    def test_messages_go_to_the_object_they_are_for(self, listening):
        boxes = {target: Mailbox() for target in (5, 6)}
        for target, box in boxes.items():
            listening.endpoint.serve(target, box)
        link = listening.link("worker")
        link.send(Kind.CAST, 6, 2, [b"six"])
        link.send(Kind.CAST, 5, 1, [b"five"])

        for target, body in ((5, b"five"), (6, b"six")):
            peer, message = boxes[target].next()
            assert (peer.ident, message.target, bytes(message.body)) == ("worker", target, body)
        assert all(box.messages.empty() for box in boxes.values())

    def test_a_call_to_nobody_is_answered_with_an_empty_error(self, listening):
        link = listening.link()
        link.send(Kind.CALL, 77, 5, [b"?"])
        message = link.receive(timeout=PATIENCE)
        assert (message.kind, message.target, message.id) == (Kind.ERROR, 77, 5)
        assert not message.body

    def test_a_cast_to_nobody_does_nothing(self, listening):
        link = listening.link()
        link.send(Kind.CAST, 77, 5, [b"?"])
        assert echoes(link)

    def test_a_service_can_be_withdrawn(self, listening):
        link = listening.link()
        assert echoes(link)
        listening.endpoint.withdraw(1)
        listening.endpoint.withdraw(1)
        link.send(Kind.CALL, 1, 5)
        assert link.receive(timeout=PATIENCE).kind is Kind.ERROR

    def test_services_keep_what_they_know_of_a_peer_with_it(self, listening):
        link = listening.link()
        peer = listening.peer()
        peer.state[1] = "mine"
        assert echoes(link)
        assert listening.endpoint.peers()[0].state == {1: "mine"}

    def test_one_that_fails_costs_its_peer_the_connection_and_nobody_else(self, listen, caplog):
        class Failing:
            def on_message(self, peer, message):
                raise ZeroDivisionError("as meant")

            def on_peer_lost(self, peer):
                raise ZeroDivisionError("as meant too")

        listening = listen()
        mailbox = Mailbox()
        listening.endpoint.serve(2, Failing())
        listening.endpoint.serve(3, mailbox)
        other = listening.link("other")
        for number in range(3):
            link = listening.link(f"unlucky-{number}")
            link.send(Kind.CALL, 2, 1)
            with pytest.raises(PeerLostError):
                link.receive(timeout=PATIENCE)
            assert mailbox.next_lost().ident == f"unlucky-{number}"
        assert echoes(other)
        assert caplog.text.count("ZeroDivisionError: as meant\n") == 1


class TestPeers:
    def test_many_are_served_and_addressed_each(self, listening):
        links = [listening.link(f"w{number}") for number in range(40)]
        for number, link in enumerate(links):
            link.send(Kind.CALL, 1, number, [str(number).encode()])
        for number, link in enumerate(links):
            message = link.receive(timeout=PATIENCE)
            assert (message.id, message.body) == (number, str(number).encode())
        idents = {peer.ident for peer in listening.endpoint.peers()}
        assert idents == {f"w{number}" for number in range(40)}

    def test_a_slow_one_does_not_hold_up_the_others(self, listening):
        listening.link("slow")
        slow = listening.peer("slow")
        for number in range(1000):
            slow.send(Kind.CAST, 1, number, [b"x" * 10_000])
        assert echoes(listening.link("other"))

    def test_the_death_of_one_is_told_to_every_service(self, listening):
        boxes = [Mailbox(), Mailbox()]
        for target, box in enumerate(boxes, 10):
            listening.endpoint.serve(target, box)
        link = listening.link("dying")
        peer = listening.peer("dying")
        link.close()
        assert [box.next_lost() for box in boxes] == [peer, peer]
        assert not peer.alive
        assert listening.endpoint.peers() == []

    def test_what_one_sent_before_its_death_is_heard_before_its_death(self, listen, monkeypatch):
        """The news of an end may overtake as many frames as nng keeps."""
        listening = listen()
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
        monkeypatch.setattr(
            listening.endpoint._socket, "receive", lambda: unread.popleft() if unread else None
        )
        listening.endpoint._socket.close_pipe(pipe)
        assert over.wait(PATIENCE)
        assert heard == [*range(BACKLOG), "lost"]

    def test_frames_of_a_pipe_that_is_gone_are_passed_over(self, listen, monkeypatch):
        listening = listen()
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        unread = deque([(12345, frame(Kind.HELLO)), (12345, frame(Kind.CAST, target=2))])
        real = listening.endpoint._socket.receive
        monkeypatch.setattr(
            listening.endpoint._socket, "receive", lambda: unread.popleft() if unread else real()
        )
        assert echoes(listening.link())
        assert not unread
        assert mailbox.messages.empty()
        assert list(listening.endpoint._peers.values()) == listening.endpoint.peers()

    def test_sending_to_a_dead_one_does_nothing(self, listening):
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        link = listening.link()
        peer = listening.peer()
        link.close()
        mailbox.next_lost()
        peer.send(Kind.CAST, 1, 1, [b"x"])
        assert not peer._waiting

    def test_one_can_be_cut_off(self, listening):
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        link = listening.link()
        listening.peer().close()
        with pytest.raises(PeerLostError):
            link.receive(timeout=PATIENCE)
        assert mailbox.next_lost().ident == "dialler"

    def test_peers_may_be_sent_to_from_many_threads(self, listening):
        link = listening.link()
        peer = listening.peer()

        def send(name):
            for number in range(100):
                peer.send(Kind.CAST, 1, name * 1000 + number)

        threads = [threading.Thread(target=send, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        got = [link.receive(timeout=PATIENCE).id for _ in range(800)]
        for thread in threads:
            thread.join()
        for name in range(8):
            mine = [number for number in got if number // 1000 == name]
            assert mine == [name * 1000 + number for number in range(100)]


class TestStrangers:
    """Who has not proved to be of this run gets nothing, and keeps nobody from anything."""

    @pytest.mark.parametrize(
        "junk",
        [
            b"",
            b"x",
            b"GET / HTTP/1.1\r\n\r\n",
            bytes(1000),
            os.urandom(5000),
            b"\x00SP\x00\x00\x30\x00\x00" + os.urandom(3000),
            b"\x00SP\x00\x00\x30\x00\x00" + b"\x01" + b"\xff" * 8 + os.urandom(100),
        ],
    )
    def test_junk_on_a_bare_socket_harms_nobody(self, listening, junk):
        link = listening.link()
        for _ in range(5):
            with bare(listening) as probe, contextlib.suppress(OSError):
                probe.sendall(junk)
            with bare(listening) as probe, contextlib.suppress(OSError):
                probe.sendall(junk)
                probe.shutdown(socket.SHUT_WR)
                probe.recv(100)
        assert echoes(link)
        assert echoes(listening.link("another"))

    def test_one_that_says_nothing_holds_nobody_up(self, listening):
        link = listening.link()
        with contextlib.ExitStack() as held:
            for _ in range(30):
                held.enter_context(bare(listening))
            assert echoes(link)
            assert echoes(listening.link("another"))

    def test_one_that_connects_properly_and_says_nothing_is_cut_off(self, listen, scheme, caplog):
        listening = listen(scheme, proof_timeout=0.2)
        silent = listening.stranger()
        assert silent.is_cut_off()
        assert "a peer did not prove who it is in time" in caplog.text
        until(lambda: not listening.endpoint._peers)

    def test_one_that_stops_in_the_midst_of_its_proof_is_cut_off(self, listen, scheme):
        listening = listen(scheme, proof_timeout=0.2)
        stranger = listening.stranger()
        from fiber.transport.handshake import Dialler

        kind, body = Dialler(listening.credentials, hello("x")).hello()
        stranger.say(frame(kind, body))
        assert stranger.hear().kind is Kind.CHALLENGE
        assert stranger.is_cut_off()

    def test_one_that_is_proven_is_not_cut_off(self, listen, scheme):
        listening = listen(scheme, proof_timeout=0.2)
        link = listening.link()
        late = threading.Event()
        listening.reactor.call_later(0.4, late.set)
        assert late.wait(PATIENCE)
        assert echoes(link)

    @pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.HELLO])
    def test_any_frame_but_a_hello_ends_it(self, listen, kind):
        listening = listen()
        mailbox = Mailbox()
        listening.endpoint.serve(0, mailbox)
        stranger = listening.stranger()
        stranger.say(frame(kind, b"{}", target=0))
        assert stranger.is_cut_off()
        assert mailbox.messages.empty()

    @pytest.mark.parametrize("kind", Kind)
    def test_nothing_is_unpickled(self, listen, folder, kind):
        """A pickle that would leave a file behind is sent as everything there is."""
        listening = listen()
        mark = folder / "unpickled"
        bomb = pickle.dumps(Bomb(str(mark)))
        listening.endpoint.serve(1, Pool(listening).dispatcher)
        for body in (bomb, wire.joined(wire.pack(bomb)), Done(1, 0, 1, 0.1, 1).encode() + bomb):
            stranger = listening.stranger()
            stranger.say(frame(kind, body))
            assert stranger.is_cut_off()
        assert not mark.exists()

    def test_large_frames_are_refused_before_they_are_looked_at(self, listening, caplog):
        link = listening.link()
        stranger = listening.stranger()
        stranger.say(frame(Kind.HELLO, b"x" * wire.MAX_UNPROVEN))
        assert stranger.is_cut_off()
        assert "65568 bytes from a peer that has not proved who it is" in caplog.text
        assert echoes(link)

    def test_frames_beyond_the_limit_of_the_run_end_the_connection(self, listen, scheme):
        listening = listen(scheme, max_frame=2**17)
        link = listening.link()
        for proven in (False, True):
            stranger = listening.stranger()
            if proven:
                stranger.prove(hello("too large"))
            stranger.say(frame(Kind.CAST, b"x" * 2**18))
            assert stranger.is_cut_off()
        assert echoes(link)

    def test_an_announced_size_alone_costs_no_memory(self, listen):
        """4 MiB frames, each announced by a few bytes on connections that then say no more."""
        listening = listen()
        process = psutil.Process()
        with contextlib.ExitStack() as held:
            before = process.memory_info().rss
            for _ in range(64):
                probe = held.enter_context(bare(listening))
                with contextlib.suppress(OSError):
                    probe.sendall(b"\x00SP\x00\x00\x30\x00\x00")
                    probe.sendall(b"\x01" + (wire.MAX_FRAME).to_bytes(8, "big"))
            assert echoes(listening.link())
            assert process.memory_info().rss - before < 64 * 2**20

    def test_an_ordinary_requester_of_nng_gets_nothing(self, listen):
        listening = listen()
        with pynng.Req0(dial=listening.url, recv_timeout=50, block_on_dial=True) as request:
            for body in (b"", b"junk", frame(Kind.CALL, b"x"), os.urandom(1000)):
                request.send(body)
                with pytest.raises(pynng.Timeout):
                    request.recv()
        assert echoes(listening.link())

    def test_tls_without_a_certificate_of_the_run_gets_no_connection(self, listen):
        listening = listen("tls+tcp")
        run, other = listening.credentials, Credentials.new().with_certificate()
        for options in (
            {"ca_string": run.certificate},
            {"ca_string": run.certificate, "server_name": "fiber"},
            {
                "ca_string": run.certificate,
                "server_name": "fiber",
                "own_cert_string": other.certificate,
                "own_key_string": other.private_key,
            },
        ):
            config = pynng.TLSConfig(pynng.TLSConfig.MODE_CLIENT, **options)
            with (
                pynng.Req0(tls_config=config, recv_timeout=500) as request,
                contextlib.suppress(pynng.NNGException),
            ):
                request.dial(listening.url, block=True)
                request.send(b"let me in", block=False)
                request.recv()
                pytest.fail("it was let in")
        assert listening.endpoint._peers == {}
        assert echoes(listening.link())

    def test_hundreds_of_them_fill_no_log_and_leave_nothing(self, listen, caplog):
        listening = listen()
        link = listening.link()
        process = psutil.Process()
        before = process.num_fds()
        draw = random.Random(3)
        for _ in range(300):
            stranger = listening.stranger()
            stranger.say(draw.randbytes(draw.randrange(100)))
            assert stranger.is_cut_off()
            stranger.close()
            listening._opened.remove(stranger)
        del stranger
        until(lambda: process.num_fds() <= before)
        assert 1 <= len(warnings(caplog)) <= 5
        assert echoes(link)


@contextlib.contextmanager
def bare(listening):
    """A connection without any protocol."""
    if listening.url.startswith("ipc://"):
        probe = socket.socket(socket.AF_UNIX)
        where = listening.url[len("ipc://") :]
    else:
        probe = socket.socket()
        host, _, port = listening.url.rpartition("//")[2].rpartition(":")
        where = host, int(port)
    with probe:
        probe.settimeout(5)
        probe.connect(where)
        yield probe


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


class Sink:
    """Keeps what comes of a call."""

    def __init__(self):
        self.values = {}
        self.over = threading.Event()

    def accept(self, start, values, errors):
        self.values.update(enumerate(values, start))

    def fail(self, start, stop, error):
        self.values.update(dict.fromkeys(range(start, stop), error))

    def done(self):
        self.over.set()

    def broken(self, error):
        self.over.set()


class Pool:
    """A pool's side without a pool: everybody is one of its workers."""

    def __init__(self, listening):
        self.dispatcher = Dispatcher(1, listening.reactor, max_attempts=3, quota=None, staff=self)

    def knows(self, ident):
        return True

    def is_up(self, ident):
        """Nothing follows."""

    def is_broken(self, ident, error):
        """Nothing follows."""

    def is_retired(self, ident):
        """Nothing follows."""

    def is_cut(self, ident):
        self.dispatcher.lost(ident, None, counts=False)


def double(x):
    return 2 * x


class TestLiars:
    """Who is of the run and talks nonsense is cut off; nobody else notices."""

    @pytest.mark.parametrize(
        "data, words",
        [
            (b"short", "shorter than a header"),
            (b"XX" + bytes(30), "frame begins with"),
            (frame(Kind.HELLO, b"{}"), "HELLO from a peer that is proven already"),
            (frame(Kind.PROOF, b"{}"), "PROOF from a peer that is proven already"),
            (frame(Kind.WELCOME, b"{}"), "WELCOME from a peer that is proven already"),
            (frame(Kind.PART, b"x"), "part of message 1, which never began"),
            (frame(Kind.GRANT, ack=5), "a peer acknowledges 5 frames of 0"),
            (frame(Kind.CAST, ack=2**32 - 1), "a peer acknowledges 4294967295 frames of 0"),
            (frame(Kind.CALL, b"ab", size=1), "frame has 2 bytes of body, its message 1"),
        ],
    )
    def test_what_was_wrong_is_logged_once_with_its_name(self, listening, data, words, caplog):
        other = listening.link("other")
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        for number in range(3):
            liar = listening.stranger()
            liar.prove(hello(f"liar-{number}"))
            liar.say(data)
            assert liar.is_cut_off()
            assert mailbox.next_lost().ident == f"liar-{number}"
        assert [text for text in warnings(caplog) if words in text] == warnings(caplog)
        assert len(warnings(caplog)) == 1
        assert "liar-0" in caplog.text
        assert echoes(other)

    def test_nothing_is_heard_of_one_after_its_nonsense(self, listen):
        listening = listen()
        mailbox = Mailbox()
        listening.endpoint.serve(2, mailbox)
        liar = listening.stranger()
        liar.prove(hello("liar"))
        with listening.held():
            liar.say(b"nonsense" * 10)
            liar.say(frame(Kind.CAST, b"heard", target=2))
        assert liar.is_cut_off()
        mailbox.next_lost()
        assert mailbox.messages.empty()

    @pytest.mark.timeout(1200 if soak.is_full() else 60)
    def test_damaged_frames_of_a_worker_take_down_nothing(self, listen, caplog):
        """A pool goes on with its honest worker while another sends damaged frames."""
        listening = listen(max_frame=2**16)
        pool = Pool(listening)
        listening.endpoint.serve(2, Echo())
        listening.endpoint.serve(1, pool.dispatcher)
        draw = random.Random(42)
        whole = [
            *(frame(kind, b"x" * 40, target=target) for kind in Kind for target in (0, 1, 2)),
            frame(Kind.ASK, b"\x01"),
            frame(Kind.DONE, Done(1, 0, 1, 0.01, 1).encode() + b"".join(codec.dumps(([1], None)))),
            frame(Kind.DONE, Done(1, 0, 5, 0.01, 0).encode() + b"".join(codec.dumps(([], None)))),
            frame(Kind.DONE, Done(9, 2**63, 2**64 - 1, 0.01, 0).encode()),
            frame(Kind.KEPT, bytes(16)),
            frame(Kind.KEPT, b"\xff" * 16),
            frame(Kind.MISSING, bytes(16)),
            frame(Kind.BROKEN, b"".join(codec.dumps(ValueError("x")))),
            frame(Kind.CALL, b"x" * 20, size=2**63),
        ]
        honest = listening.link("honest")
        answer_tasks(honest)
        threads = {thread.name for thread in threading.enumerate()}
        sinks = []
        liar, cut_off = None, 0
        for number in range(DAMAGED):
            if number % 50 == 0:
                sinks.append(Sink())
                pool.dispatcher.add(
                    Call(
                        number + 1,
                        double,
                        Mode.MAP,
                        sinks[-1],
                        items=[number, number + 1],
                        chunksize=None,
                        retry=True,
                    )
                )
            if liar is None:
                liar = listening.stranger()
                liar.prove(hello(f"liar-{number}"))
                # the answer of an honest frame tells that it is still there
            data = damaged(draw.choice(whole), draw)
            liar.say(data)
            liar.say(frame(Kind.CALL, target=2, number=number))
            if not answered(liar, number):
                liar.close()
                liar, cut_off = None, cut_off + 1
                listening._opened = [one for one in listening._opened if one is honest]
        if liar is not None:
            liar.close()

        for sink in sinks:
            assert sink.over.wait(PATIENCE)
        assert echoes_at(listening, 2)
        assert cut_off > DAMAGED // 4
        assert "an event handler failed" not in caplog.text
        assert len(warnings(caplog)) <= 40
        assert threads <= {thread.name for thread in threading.enumerate()}
        honest.close()


def answered(liar, number):
    """True where the endpoint still answers; what it has for a worker in between is passed over."""
    try:
        while True:
            heard = liar.hear()
            if heard.kind is Kind.REPLY and heard.id == number:
                return True
    except PeerLostError:
        return False


def echoes_at(listening, target):
    link = listening.link("last")
    link.send(Kind.CALL, target, 1, [b"?"])
    return bytes(link.receive(timeout=PATIENCE).body) == b"?"


def answer_tasks(link):
    """Be an honest worker on a thread of its own, until the link is closed."""
    from fiber.dispatch.worker import Worker

    def redial():
        raise PeerLostError("over")

    def work():
        with contextlib.suppress(TransportError):
            Worker(link, 1, redial).run()

    threading.Thread(target=work, name="honest").start()


def damaged(data, draw):
    """The frame with a change or two behind its magic, or as it is."""
    changed = bytearray(data)
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(changed))
        what = draw.randrange(4)
        if what == 0:
            changed[at] ^= draw.randint(1, 255)
        elif what == 1:
            del changed[at + 1 :]
        elif what == 2:
            changed[at:at] = draw.randbytes(draw.randint(1, 20))
        else:
            changed[at : at + 8] = draw.choice([b"\xff" * 8, bytes(8)])
    return bytes(changed)


class TestAddresses:
    def test_several_may_be_listened_on(self, listen, folder):
        listening = listen("ipc")
        second = listening.endpoint.listen(address("tls+tcp", folder))
        assert listening.endpoint.urls == [listening.url, second]
        assert second.startswith("tls+tcp://127.0.0.1:")
        for url in listening.endpoint.urls:
            listening.url = url
            assert echoes(listening.link(url))

    @pytest.mark.parametrize(
        "host, told", [("example.org", "example.org"), ("::1", "[::1]"), ("[::1]", "[::1]")]
    )
    def test_another_host_can_be_told_to_peers(self, listen, host, told):
        listening = listen("ipc")
        url = listening.endpoint.listen(
            ListenAddress(bind_url="tls+tcp://127.0.0.1:0", advertise_host=host)
        )
        scheme, _, rest = url.partition("://")
        assert scheme == "tls+tcp"
        assert rest.rpartition(":")[0] == told
        assert int(rest.rpartition(":")[2]) > 0

    def test_the_certificate_is_made_when_tls_is_first_used(self, listen, folder):
        listening = listen("ipc")
        assert listening.credentials.certificate is None
        listening.endpoint.listen(address("tls+tcp", folder))
        certificate = listening.credentials.certificate
        listening.endpoint.listen(address("tls+tcp", folder))
        assert listening.credentials.certificate == certificate is not None

    def test_plain_tcp_works_and_is_warned_of(self, listen, caplog):
        listening = listen("tcp")
        assert "is not encrypted; use tls+tcp://" in caplog.text
        assert echoes(listening.link())

    def test_a_taken_address_is_said(self, listen):
        first = listen()
        with pytest.raises(TransportError, match=f"cannot listen on {first.url}: address in use"):
            listen().endpoint.listen(ListenAddress(bind_url=first.url))

    @pytest.mark.parametrize(
        "url", ["ipc://" + "x" * 200, "nonsense", "tls+tcp://nowhere.invalid:0"]
    )
    def test_an_impossible_address_is_a_transport_error(self, listen, url):
        with pytest.raises(TransportError, match="cannot listen on"):
            listen().endpoint.listen(ListenAddress(bind_url=url))


class TestItsEnd:
    def test_it_leaves_no_file_no_descriptor_and_no_thread(self, folder):
        Listening("ipc", folder).close()
        process = psutil.Process()
        before = process.num_fds(), threading.active_count()
        for _ in range(5):
            one = Listening("ipc", folder)
            assert echoes(one.link())
            one.close()
            one.endpoint.close()
            del one
        # fewer, where what tests before left to nng went meanwhile
        until(lambda: process.num_fds() <= before[0] and threading.active_count() <= before[1])
        assert list(folder.iterdir()) == []

    def test_peers_see_it_at_once(self, listening):
        links = [listening.link(f"w{number}") for number in range(5)]
        began = time.monotonic()
        listening.endpoint.close()
        for link in links:
            with pytest.raises(PeerLostError):
                link.receive(timeout=PATIENCE)
        assert time.monotonic() - began < PATIENCE

    def test_a_service_may_close_it(self, listen):
        listening = listen()

        class Closing:
            def on_message(self, peer, message):
                listening.endpoint.close()

            def on_peer_lost(self, peer):
                """Not told any more."""

        listening.endpoint.serve(2, Closing())
        link = listening.link()
        link.send(Kind.CAST, 2, 1)
        with pytest.raises(PeerLostError):
            link.receive(timeout=PATIENCE)

    def test_sending_after_it_does_nothing(self, listening):
        listening.link()
        peer = listening.peer()
        listening.endpoint.close()
        peer.send(Kind.CAST, 1, 1, [b"x"])
        peer.close()

    def test_it_may_close_after_its_handler_thread(self, folder):
        one = Listening("ipc", folder)
        one.link().close()
        one.reactor.stop()
        one.close()

    def test_a_peer_without_proof_has_no_name(self, listen):
        from fiber.transport.endpoint import Peer

        assert repr(Peer(listen().endpoint, 7)) == "<Peer unproven on pipe 7>"

    def test_hellos_of_peers_are_what_they_said(self, listen):
        listening = listen()
        theirs = attrs.evolve(hello("w"), host="far", pid=77)
        from fiber.transport.link import Link

        link = Link(listening.url, listening.credentials, theirs)
        assert listening.peer("w").hello == theirs
        link.close()
