"""The listening side among strangers and liars: the others are served all the while."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import socket
import ssl
import threading
import time
from types import SimpleNamespace

import psutil
import pynng
import pytest

import soak
from fiber._tasks.dispatcher import Dispatcher
from fiber._tasks.protocol import Mode, pack_done
from fiber._tasks.worker import Worker
from fiber._wire import codec, frames, nng
from fiber._wire.frames import Kind
from fiber._wire.handshake import Credentials, DialerHandshake, ListenerHandshake
from fiber._wire.link import Link
from fiber.exceptions import HandshakeError, PeerLostError, TransportError, WireError
from fiber.model.timing import Timing
from forking import environ
from outsider import client_hello
from running import Program
from tasks_world import FakeObserver, Sink
from wire_world import (
    TIMEOUT,
    Bomb,
    Echo,
    Mailbox,
    answers_echo,
    damaged,
    frame,
    hello,
    in_thread,
    recorded,
    until,
    warnings,
)


class Pool(FakeObserver):
    """Master's side of a pool at target 1; every peer is one of its workers."""

    def __init__(self, reactor):
        super().__init__()
        self.dispatcher = Dispatcher(
            1, reactor, max_attempts=3, maxtasksperchild=None, observer=self
        )

    def accepts(self, ident):
        return True

    def worker_disconnected(self, ident):
        self.dispatcher.lost(ident, None, counts=False)


class TestStrangers:
    """Unproven peers get nothing, and hinder no other peer."""

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
    def test_junk_on_a_bare_socket_affects_no_other(self, listening, junk, link):
        for _ in range(5):
            with bare(listening) as probe, contextlib.suppress(OSError):
                probe.sendall(junk)
            with bare(listening) as probe, contextlib.suppress(OSError):
                probe.sendall(junk)
                probe.shutdown(socket.SHUT_WR)
                probe.recv(100)
        assert answers_echo(link)
        assert answers_echo(listening.link("another"))

    @pytest.mark.parametrize("begins", [False, True], ids=["at once", "in the midst of its proof"])
    def test_one_that_falls_silent_is_cut_off_and_one_that_is_proven_is_not(
        self, listen, scheme, caplog, begins
    ):
        listening = listen(scheme, timing=Timing(handshake=0.5))
        # its time is over before the other's
        link = listening.link()
        silent = listening.stranger()
        if begins:
            kind, body = DialerHandshake(listening.credentials, hello("x")).hello()
            silent.send_bytes(frame(kind, body))
            assert silent.receive_frame().kind is Kind.CHALLENGE
        assert silent.is_cut_off()
        where = "this host" if scheme in ("unix", "ipc") else "127.0.0.1"
        assert (
            f"closed a connection from {where}: a peer did not prove who it is in time"
            in caplog.text
        )
        until(lambda: len(listening.endpoint._peers) == 1)
        assert answers_echo(link)

    @pytest.mark.parametrize(
        "scheme, said",
        [
            ("tls+tcp", slice(0)),
            ("tls+tcp", slice(60)),
            ("tls+tcp", slice(None)),
            ("tcp", slice(0)),
        ],
        ids=["nothing", "half a greeting", "a greeting", "nothing, without TLS"],
    )
    def test_one_that_does_not_become_a_pipe_is_cut_off(self, listen, monkeypatch, scheme, said):
        monkeypatch.setattr(nng, "_LOAD", 1.0)
        listening = listen(scheme, timing=Timing(handshake=0.7, nng_check=0.05))
        link = listening.link()
        with bare(listening) as probe:
            probe.sendall(client_hello()[said])
            with contextlib.suppress(ConnectionResetError):
                while probe.recv(1000):
                    continue
        assert answers_echo(link)
        assert answers_echo(listening.link("another"))

    def test_the_descriptor_limit_is_raised_from_the_start(self, listen, limits):
        limits[1] = 4000
        listen("unix")
        listen("ipc")
        assert limits == [1024, 4000]
        listen("tls+tcp")
        assert limits == [4000, 4000]

    @pytest.mark.parametrize("authkey", ["", "a secret"], ids=["silent", "through TLS"])
    def test_as_many_as_there_are_descriptors_twice_keep_no_peer_out(self, folder, authkey):
        """With an authkey TLS lets anybody in."""
        limit = 96
        with contextlib.ExitStack() as held:
            listening = held.enter_context(elsewhere(folder, "tls+tcp", limit, authkey))
            program, link = listening.program, listening.link
            before = link("before")
            host, _, port = listening.url.rpartition("//")[2].rpartition(":")
            for _ in range(2 * limit):
                silent = held.enter_context(socket.socket())
                silent.settimeout(TIMEOUT if authkey else 0)
                silent.connect_ex((host, int(port)))
                if authkey:
                    with contextlib.suppress(OSError):
                        silent = held.enter_context(anybody().wrap_socket(silent))
                        silent.sendall(nng._GREETING)

            def is_let_in():
                try:
                    return answers_echo(link("new"))
                except TransportError:
                    # among so many that may speak TLS, one can be taken for a stranger: it dials again
                    assert authkey
                    return False

            def opens_a_file():
                program.tell("open")
                return program.line() == "opened"

            until(is_let_in)
            assert answers_echo(before)
            until(opens_a_file)

    def test_one_that_ends_before_it_is_looked_at_leaves_no_peer(self, listen):
        key = Credentials.of_authkey(b"secret")
        timing = Timing(handshake=3600, nng_check=0.05)
        listening = listen("tls+tcp", credentials=key, timing=timing)
        for _ in range(50):
            nng.shown_certificate(listening.url, timeout=TIMEOUT)
        until(lambda: not listening.endpoint._peers)

    def test_each_word_of_the_proof_has_its_own_time(self, listen):
        """While the listener is busy no deadline passes."""
        listening = listen(timing=Timing(handshake=0.3))
        with listening.held():
            wait = in_thread(listening.link)
            # nothing happens that could be waited for
            time.sleep(0.4)
        assert answers_echo(wait())

    @pytest.mark.parametrize("kind", Kind)
    def test_any_frame_ends_it_and_nothing_is_unpickled(self, listen, folder, kind):
        """A pickle that would leave a file behind is sent as everything there is."""
        listening = listen()
        mark, mailbox = folder / "unpickled", Mailbox()
        bomb = pickle.dumps(Bomb(str(mark)))
        listening.endpoint.serve(0, mailbox)
        listening.endpoint.serve(1, Pool(listening.reactor).dispatcher)
        for target, body in (
            (0, b"{}"),
            (1, bomb),
            (1, frames.joined(frames.pack(bomb))),
            (1, pack_done(1, 0, 1, 0.1, 1) + bomb),
        ):
            stranger = listening.stranger()
            stranger.send_bytes(frame(kind, body, target=target))
            assert stranger.is_cut_off()
        assert mailbox.messages.empty()
        assert not mark.exists()

    def test_large_frames_are_refused_before_they_are_looked_at(self, listening, caplog, link):
        stranger = listening.stranger()
        stranger.send_bytes(frame(Kind.HELLO, b"x" * frames.MAX_UNPROVEN))
        assert stranger.is_cut_off()
        words = (
            "65568 bytes from a peer that has not proved who it is",
            "a frame of 65568 bytes is announced, 65536 are the most",
        )
        assert any(said in caplog.text for said in words)
        assert answers_echo(link)

    def test_frames_beyond_the_limit_of_the_run_end_the_connection(self, listen, scheme):
        listening = listen(scheme, max_frame=2**17)
        link = listening.link()
        liar = listening.stranger()
        liar.prove(hello("too large"))
        liar.send_bytes(frame(Kind.CAST, b"x" * 2**18))
        assert liar.is_cut_off()
        assert answers_echo(link)

    def test_an_announced_size_alone_costs_no_memory(self, folder):
        """4 MiB frames, each announced by a few bytes on connections that then stay silent.

        In a new process: where its heap was larger before, the C library clears what it allocates.
        """
        with contextlib.ExitStack() as held:
            listening = held.enter_context(elsewhere(folder, "ipc", 1024))
            process = psutil.Process(listening.program.process.pid)
            assert answers_echo(listening.link("before"))
            before = process.memory_info().rss
            for _ in range(64):
                probe = held.enter_context(bare(listening))
                with contextlib.suppress(OSError):
                    probe.sendall(b"\x00SP\x00\x00\x30\x00\x00")
                    probe.sendall(b"\x01" + (frames.MAX_FRAME).to_bytes(8, "big"))
            assert answers_echo(listening.link("new"))
            assert process.memory_info().rss - before < 64 * 2**20

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
        assert answers_echo(listening.link())

    def test_hundreds_of_them_fill_no_log_and_leave_nothing(self, listen, caplog):
        listening = listen()
        link = listening.link()
        process = psutil.Process()
        before = process.num_fds()
        draw = random.Random(3)
        for _ in range(300):
            stranger = listening.stranger()
            stranger.send_bytes(draw.randbytes(draw.randrange(100)))
            assert stranger.is_cut_off()
            stranger.close()
            listening._opened.remove(stranger)
        del stranger
        until(lambda: process.num_fds() <= before)
        assert 1 <= len(warnings(caplog)) <= 5
        assert answers_echo(link)


@contextlib.contextmanager
def bare(listening):
    """A connection without any protocol."""
    scheme, _, where = listening.url.partition("://")
    if scheme in ("unix", "ipc"):
        probe = socket.socket(socket.AF_UNIX)
    else:
        probe = socket.socket()
        host, _, port = listening.url.rpartition("//")[2].rpartition(":")
        where = host, int(port)
    with probe:
        probe.settimeout(5)
        probe.connect(where)
        yield probe


def anybody():
    """TLS of a client without a certificate that accepts any."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


#: a process with so many descriptors that listens, and opens a file when it is asked
@contextlib.contextmanager
def elsewhere(folder, scheme, limit, authkey=""):
    """An endpoint of a process of its own, which may open so many descriptors."""
    words = "-c", _LISTENING, scheme, str(folder), str(limit), authkey
    with contextlib.ExitStack() as held:
        program = Program(folder, *words, environ=environ())
        held.callback(program.close)
        told = json.loads(program.line())
        credentials = Credentials.from_json(told["credentials"])

        def link(ident):
            made = Link(told["url"], credentials, hello(ident))
            return held.enter_context(contextlib.closing(made))

        yield SimpleNamespace(url=told["url"], link=link, program=program)


_LISTENING = """
import json, os, resource, sys
scheme, folder, limit, authkey = *sys.argv[1:3], int(sys.argv[3]), sys.argv[4].encode()
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from fiber._wire import handshake, nng
from fiber.model.timing import Timing
from wire_world import ListeningEndpoint
nng._LOAD = 1.0
ours = ListeningEndpoint(
    scheme,
    folder,
    credentials=handshake.Credentials.of_authkey(authkey) if authkey else None,
    timing=Timing(handshake=60 if authkey else 10, nng_check=0.1),
)
print(json.dumps({"url": ours.url, "credentials": ours.credentials.to_json()}), flush=True)
for _ in sys.stdin:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        print(error, flush=True)
    else:
        print("opened", flush=True)
ours.close()
"""


DAMAGED = soak.count(10_000)


class TestLiars:
    """Proven peers with malformed frames are disconnected, without effect on others."""

    @pytest.mark.parametrize(
        "data, words",
        [
            (b"short", "shorter than a header"),
            (frame(Kind.HELLO, b"{}"), "HELLO from a peer that is proven already"),
            (frame(Kind.PROOF, b"{}"), "PROOF from a peer that is proven already"),
            (frame(Kind.WELCOME, b"{}"), "WELCOME from a peer that is proven already"),
            (frame(Kind.PART, b"x"), "part of message 1, which never began"),
            (frame(Kind.GRANT, ack=5), "a peer acknowledges 5 frames of 0"),
            (frame(Kind.CAST, ack=2**32 - 1), "a peer acknowledges 4294967295 frames of 0"),
        ],
    )
    def test_what_was_wrong_is_logged_once_with_its_name(
        self, listening, data, words, caplog, mailbox
    ):
        other = listening.link("other")
        for number in range(3):
            liar = listening.stranger()
            liar.prove(hello(f"liar-{number}"))
            liar.send_bytes(data)
            assert liar.is_cut_off()
            assert mailbox.next_lost().ident == f"liar-{number}"
        assert [text for text in warnings(caplog) if words in text] == warnings(caplog)
        assert len(warnings(caplog)) == 1
        assert "closed the connection of liar-0 (" in caplog.text
        assert answers_echo(other)

    def test_frames_after_a_malformed_one_are_ignored(self, listening, mailbox):
        liar = listening.stranger()
        liar.prove(hello("liar"))
        with listening.held():
            liar.send_bytes(b"nonsense" * 10)
            liar.send_bytes(frame(Kind.CAST, b"heard", target=2))
        assert liar.is_cut_off()
        mailbox.next_lost()
        assert mailbox.messages.empty()

    @pytest.mark.timeout(1200 if soak.is_full() else 60)
    def test_damaged_frames_of_a_worker_take_down_nothing(self, listen, caplog):
        """A pool goes on with its honest worker while another sends damaged frames."""
        listening = listen(max_frame=2**16)
        pool = Pool(listening.reactor)
        listening.endpoint.serve(2, Echo())
        listening.endpoint.serve(1, pool.dispatcher)
        draw = random.Random(42)
        whole = [
            *(frame(kind, b"x" * 40, target=target) for kind in Kind for target in (0, 1, 2)),
            frame(Kind.ASK, b"\x01"),
            frame(Kind.DONE, pack_done(1, 0, 1, 0.01, 1) + b"".join(codec.dumps(([1], None)))),
            frame(Kind.DONE, pack_done(1, 0, 5, 0.01, 0) + b"".join(codec.dumps(([], None)))),
            frame(Kind.DONE, pack_done(9, 2**63, 2**64 - 1, 0.01, 0)),
            frame(Kind.KEPT, bytes(16)),
            frame(Kind.KEPT, b"\xff" * 16),
            frame(Kind.MISSING, bytes(16)),
            frame(Kind.SEEN, bytes(7)),
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
                items = [number, number + 1]
                pool.dispatcher.add(pool.dispatcher.prepare(abs, Mode.MAP, sinks[-1], items=items))
            if liar is None:
                liar = listening.stranger()
                liar.prove(hello(f"liar-{number}"))
                # the answer of an honest frame tells that it is still there
            data = damaged(draw.choice(whole), draw, least=0)
            liar.send_bytes(data)
            liar.send_bytes(frame(Kind.CALL, target=2, number=number))
            if not answered(liar, number):
                liar.close()
                liar, cut_off = None, cut_off + 1
                listening._opened = [one for one in listening._opened if one is honest]
        if liar is not None:
            liar.close()

        for sink in sinks:
            until(lambda sink=sink: sink.is_done)
        assert answers_echo(listening.link("last"), target=2)
        assert cut_off > DAMAGED // 4
        assert "an event handler failed" not in caplog.text
        assert len(warnings(caplog)) <= 40
        assert threads <= {thread.name for thread in threading.enumerate()}
        honest.close()


def answered(liar, number):
    """True where the endpoint still answers; messages for workers in between are ignored."""
    try:
        while True:
            heard = liar.receive_frame()
            if heard.kind is Kind.REPLY and heard.id == number:
                return True
    except PeerLostError:
        return False


def answer_tasks(link):
    """Be an honest worker on a thread of its own, until the link is closed."""

    def redial():
        raise PeerLostError("over")

    def work():
        with contextlib.suppress(TransportError):
            Worker(link, 1, redial, timing=Timing()).run()

    threading.Thread(target=work, name="honest").start()


#: inputs of a round: on connections of a Unix socket, to one side of a handshake, through TLS
ON_UNIX, IN_MEMORY, BY_TLS = 8_900, 1_000, 100


@pytest.mark.timeout(7200 if soak.is_full() else 120)
def test_a_million_mutated_handshakes_of_strangers_have_nothing_unpickled(
    listen, folder, monkeypatch, caplog
):
    """Replayed ones with changes, and a pickle among them; honest peers are served all the while."""
    mark, loaded, loads = folder / "unpickled", [], pickle.loads
    monkeypatch.setattr(pickle, "loads", lambda *a, **k: loaded.append(a) or loads(*a, **k))
    bomb = pickle.dumps(Bomb(str(mark)))
    bodies = bomb, frames.joined(frames.pack(bomb))
    bombs = [frame(kind, body, target=2) for kind in Kind for body in bodies]
    by_unix, by_tls = both = listen("unix"), listen("tls+tcp")
    honest = [each.link() for each in both]
    for each in both:
        each.endpoint.serve(2, Unpickling())
    for current in soak.rounds("mutated frames and handshakes", 100):
        draw = current.rng

        def mutated(sent, draw=draw):
            said = sent[:]
            said.insert(draw.randrange(len(sent) + 1), draw.choice(bombs))
            at = draw.randrange(len(said))
            said[at] = damaged(said[at], draw)
            return said

        for _ in range(ON_UNIX // 100):
            sent = another_handshake(by_unix.credentials)[::2]
            send_all(by_unix, [stream(mutated(sent), draw) for _ in range(100)])
        for number in range(IN_MEMORY):
            run = (by_unix.credentials, Credentials.of_authkey(b"guessable"))[number // 2 % 2]
            side = (ListenerHandshake, DialerHandshake)[number % 2](run, hello("x"))
            with pytest.raises((WireError, HandshakeError)):
                for data in mutated(another_handshake(run)[number % 2 :: 2]):
                    side.receive(frames.parse(data))
            assert side.peer is None
        for _ in range(BY_TLS):
            stranger = by_tls.stranger()
            for data in mutated(another_handshake(by_tls.credentials)[::2]):
                stranger.send_bytes(data)
            assert stranger.is_cut_off()
            stranger.close()
        for each, link in zip(both, honest, strict=True):
            assert answers_echo(link)
            with contextlib.closing(each.link(f"of round {current.seed}")) as new:
                assert answers_echo(new)
            del each._opened[1:]
        assert (loaded, mark.exists()) == ([], False)
        current.note(inputs=ON_UNIX + IN_MEMORY + BY_TLS, unpickled=len(loaded))
        current.note(megabytes=psutil.Process().memory_info().rss >> 20)
    assert len(warnings(caplog)) <= 2 * 32


class Unpickling(Echo):
    """Service that loads whatever reaches it."""

    def on_message(self, peer, message):
        codec.loads(message.body)


def another_handshake(run):
    return recorded(DialerHandshake(run, hello("d")), ListenerHandshake(run, hello("l")))


def stream(said, draw):
    """The bytes of some frames, maybe damaged once more."""
    whole = b"".join(frames.LENGTH.pack(len(data)) + data for data in said)
    return damaged(whole, draw, least=0)


def send_all(listening, streams):
    """Send each on a connection of its own, all at once; each is cut off."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(bare(listening)) for _ in streams]
        for probe, data in zip(probes, streams, strict=True):
            probe.settimeout(TIMEOUT)
            with contextlib.suppress(OSError):
                probe.sendall(data)
                probe.shutdown(socket.SHUT_WR)
        for probe in probes:
            with contextlib.suppress(ConnectionError):
                while probe.recv(4096):
                    continue
