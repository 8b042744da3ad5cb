"""Connections over streams: to the program, from it, among jobs; streams that break, jobs that end."""

import collections
import contextlib
import functools
import itertools
import os
import random
import re
import socket
import struct
import sys
import threading
import time

import pytest
from attrs import evolve

from fiber._base.threads import SharedLoop
from fiber._tunnel import server as module
from fiber._tunnel import tunnel as tunnel_module
from fiber._tunnel.mux import MAX_DATA, PING, Kind, Mux, Resumption
from fiber._tunnel.server import TunnelServer
from fiber._tunnel.tunnel import Records, Tunnel, TunnelStream, dialer_handshake, listener_handshake
from fiber._wire.frames import Deframer, header, joined, parse, stream_buffers
from fiber._wire.handshake import Hello
from fiber.exceptions import HandshakeError, TransportError
from fiber.model.timing import Timing
from tunnel_world import RUN, TunnelWorld
from waiting import until
from wire_world import in_thread


@pytest.fixture
def world(tmp_path):
    with contextlib.closing(TunnelWorld(tmp_path)) as world:
        yield world


def route(ident, echo):
    return f"tunnel+tcp://{ident}@127.0.0.1:{echo.port}"


def talk(sock, data):
    """Say something, and the end; what comes back, nothing from one that hangs up."""

    def say():
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)

    has_said = in_thread(say)
    heard = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 16):
            heard += piece
    has_said()
    return bytes(heard)


WAYS = {
    "from a job to the program": lambda world, echo: world.servers["one"].resolve(
        world.serve("program", echo)
    ),
    "from the program to a job": lambda world, echo: world.client.resolve(
        world.serve("one.0", echo)
    ),
    "from a job to another": lambda world, echo: world.servers["one"].resolve(
        world.serve("two", echo)
    ),
}


@pytest.fixture(params=WAYS)
def way(world, request):
    """Each way between two jobs and the program."""
    world.job("one")
    world.job("two")
    return WAYS[request.param](world, world.echo())


def test_a_job_reaches_its_own_processes_by_itself(world):
    echo = world.echo()
    server = world.job("one", begin=False)
    assert talk(world.connect(server.resolve(route("one.3", echo))), b"hello") == b"hello"


def test_processes_of_a_job_ask_for_ways(world, tmp_path):
    world.job("one")
    way = resolve(tmp_path / "one", world.serve("program", world.echo()), timeout=30)
    assert talk(world.connect(way), b"hello") == b"hello"


def test_where_nobody_answers_there_is_no_way(tmp_path):
    with pytest.raises(TransportError):
        resolve(tmp_path, "tunnel+tcp://program@127.0.0.1:1", timeout=30)


def test_jobs_and_the_program_reach_each_other_over_streams_that_break(world, way):
    data = random.Random(2).randbytes(30 * 2**20)
    over = threading.Event()

    def cut():
        chance = random.Random(3)
        while not over.wait(0.05 + 0.2 * chance.random()):
            world.wires[chance.choice(["one", "two"])].cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        assert talk(world.connect(way), data) == data
    finally:
        over.set()
        cutter.join(10)


def test_nothing_is_dialled_where_no_process_of_the_run_listens(world):
    private = world.echo()
    server = world.job("one")
    world.job("two")
    for ident in ("program", "two", "three"):
        assert talk(world.connect(server.resolve(route(ident, private))), b"GET /") == b""
    for ident in ("one", "three"):
        assert talk(world.connect(world.client.resolve(route(ident, private))), b"GET /") == b""
    assert not private.talked


def test_a_process_that_listens_no_more_is_not_dialled(world):
    echo = world.echo()
    way = world.job("one").resolve(world.serve("program", echo))
    assert talk(world.connect(way), b"hello") == b"hello"
    world.client.withdraw(route("program", echo))
    assert talk(world.connect(way), b"hello") == b""


@pytest.fixture
def between(world):
    """Somebody without the key, to whom streams into a job come, and who passes them on."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(30)

        def stream(onward):
            """A stream of the program's, and one to the port of a job, for him to join."""
            world.client.add("stolen", "stolen", lambda: world.connect(f"x://127.0.0.1:{port}"))
            world.client.begin("stolen")
            program, _ = listener.accept()
            opened.enter_context(program).settimeout(30)
            return program, world.connect(f"x://127.0.0.1:{onward}")

        port = listener.getsockname()[1]
        yield stream
        world.client.remove("stolen")


def pass_on(source, target):
    """One frame."""
    length = source.recv(4, socket.MSG_WAITALL)
    frame = source.recv(*struct.unpack("<I", length), socket.MSG_WAITALL) if length else b""
    target.sendall(length + frame)
    return frame


def test_a_handshake_that_is_passed_on_to_another_job_is_refused(world, between):
    """Whoever took the port of one job sits between the program and another job of the run."""
    world.job("two", begin=False)
    program, job = between(world.ports["two"])
    assert pass_on(program, job)
    # what the other job proves is of no use for a stream that was not meant for it
    assert pass_on(job, program)
    with contextlib.suppress(ConnectionError):
        assert program.recv(1) == b""


def test_nobody_between_says_anything_of_his_own(world, between):
    """He passes on the whole handshake, which is good, and then wants something himself."""
    private = world.echo()
    world.job("stolen", begin=False, add=False)
    program, job = between(world.ports["stolen"])
    for source, target in [(program, job), (job, program)] * 3:
        # hello, challenge, proof, welcome, and what both sides remember
        assert pass_on(source, target)
    _, frames = Mux(is_client=False).open(world.serve("program", private))
    for record in Records(b"k" * 32, b"k" * 32).protect(frames):
        program.sendall(record)
    # it is closed without an answer
    with contextlib.suppress(ConnectionError):
        while program.recv(1000):
            continue
    assert not private.talked


def test_a_connection_ends_with_its_job_and_nothing_is_listened_on_for_it(world):
    world.job("one")
    way = world.client.resolve(world.serve("one", world.echo()))
    sock = world.connect(way)
    sock.sendall(b"x")
    assert sock.recv(1) == b"x"
    world.client.remove("one")
    world.servers["one"].close()
    assert sock.recv(1) == b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            world.connect(way)
        except ConnectionRefusedError:
            return
        except ConnectionError:
            # while it is being closed
            continue
    pytest.fail("it is listened on still")


def test_a_connection_waits_until_its_job_runs(world):
    echo = world.echo()
    server = world.job("one", begin=False)
    sock = world.connect(server.resolve(world.serve("program", echo)))
    world.client.begin("one")
    assert talk(sock, b"hello") == b"hello"


def test_whoever_is_of_another_run_is_let_into_nothing(tmp_path):
    world = TunnelWorld(tmp_path, patience=1.0, timing=Timing(stream_answer=1.0))
    with contextlib.closing(world):
        world.job("one", run=evolve(RUN, key=b"x" * 32))
        assert world.connect(world.client.resolve(world.serve("one", world.echo()))).recv(1) == b""


def test_it_is_said_once_that_no_stream_can_be_opened_and_why(tmp_path, caplog):
    world = TunnelWorld(tmp_path, timing=Timing(stream_greeting=0.2, stream_backoff=(0.05,)))
    with contextlib.closing(world):
        echo = world.echo()
        server = world.job("one", add=False)

        def refuse():
            if time.monotonic() < world_is_back:
                raise OSError("the cluster is away")
            return world.opener("one")()

        world_is_back = time.monotonic() + 60
        world.client.add("one", "worker-1", refuse)
        world.client.begin("one")
        until(lambda: caplog.records)
        world_is_back = 0.0
        sock = world.connect(server.resolve(world.serve("program", echo)))
        assert talk(sock, b"hello") == b"hello"
    (said,) = [record.getMessage() for record in caplog.records]
    assert "no stream can be opened into worker-1" in said
    assert said.endswith("the cluster is away")


def test_streams_that_break_at_once_are_opened_after_a_pause(tmp_path):
    with contextlib.closing(TunnelWorld(tmp_path, timing=Timing(stream_backoff=(0.2,)))) as world:
        world.job("one", add=False)._proven = lambda stream: stream.close()
        opened = []

        def open_stream():
            opened.append(time.monotonic())
            return world.opener("one")()

        world.client.add("one", "one", open_stream)
        world.client.begin("one")
        until(lambda: len(opened) == 4)
        assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(opened))


def test_the_speed_is_told_once(world):
    world.job("one")
    until(lambda: world.speeds)
    world.job("two")
    ((there_and_back, rate),) = world.speeds
    assert there_and_back > 0
    assert rate > 0


def test_one_stream_carries_all_connections_of_a_job(world):
    world.job("one")
    ways = [world.servers["one"].resolve(world.serve("program", world.echo())) for _ in range(5)]
    ways += [world.client.resolve(world.serve("one", world.echo())) for _ in range(5)]
    for sock in list(map(world.connect, ways)):
        assert talk(sock, b"hello") == b"hello"
    assert world.wires["one"].count == 1


def test_a_connection_that_nobody_reads_holds_up_no_other(world):
    server = world.job("one")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stuck = f"tunnel+tcp://program@127.0.0.1:{listener.getsockname()[1]}"
        world.client.register(stuck)
        sender = world.connect(server.resolve(stuck))
        unread, _ = listener.accept()
        sender.settimeout(0.5)
        with unread, contextlib.suppress(TimeoutError):
            # until all that is between them is full
            while True:
                sender.sendall(bytes(2**20))
    assert talk(world.connect(server.resolve(world.serve("program", world.echo()))), b"hi") == b"hi"


def test_a_job_that_was_out_of_reach_for_too_long_begins_anew(tmp_path):
    timing = Timing(stream_answer=0.2, heartbeat=0.05, stream_silence=0.3, stream_heartbeat=0.1)
    world = TunnelWorld(tmp_path, patience=0.2, timing=timing, of_servers=timing)
    with contextlib.closing(world):
        server = world.job("one")
        way = server.resolve(world.serve("program", world.echo()))
        sock = world.connect(way)
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        world.wires["one"].silence()
        # given up by both sides, each by itself
        assert sock.recv(1) == b""
        world.wires["one"].silence(False)
        until(lambda: talk(world.connect(way), b"hello") == b"hello")


def test_streams_may_come_in_at_a_path(tmp_path):
    path = tmp_path / "in"
    server = TunnelServer(str(path), credentials=RUN, ident="one", patience=1.0)
    assert path.is_socket()
    server.close()
    assert not path.exists()


def test_streams_may_come_in_by_a_socket_that_is_inherited(tmp_path):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        number = os.dup(bound.fileno())
        os.set_inheritable(number, True)
        server = TunnelServer(f"fd:{number}", credentials=RUN, ident="one", patience=1.0)
        assert not os.get_inheritable(number)
        server.serve(str(tmp_path))
        with socket.create_connection(bound.getsockname(), timeout=30) as stream:
            Program(stream, RUN, "one")
        server.close()


def test_a_place_that_is_taken_or_no_socket_is_said():
    with open(os.devnull) as file, socket.create_server(("127.0.0.1", 0)) as taken:
        for where in (f"fd:{file.fileno()}", f"127.0.0.1:{taken.getsockname()[1]}"):
            with pytest.raises(TransportError, match=where):
                TunnelServer(where, credentials=RUN, ident="one", patience=1.0)


resolve = functools.partial(module.resolve, timeout=30)
register = functools.partial(module.register, timeout=30)


@pytest.fixture
def where():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[:2]


@pytest.fixture
def timing():
    return Timing()


@pytest.fixture
def server(where, tmp_path, timing):
    server = TunnelServer(
        f"{where[0]}:{where[1]}", credentials=RUN, ident="one", patience=1.0, timing=timing
    )
    server.serve(str(tmp_path))
    yield server
    server.close()


class Program:
    """The program's side of a stream: a handshake, and then what it says."""

    def __init__(self, sock, run, job, *, resumes=True, before_proof=lambda: None):
        self._sock = sock
        self._deframer = Deframer(2**20)
        self._arrived = collections.deque()
        handshake = dialer_handshake(run, Hello.mine("program"), job)
        answer = handshake.hello()
        while answer is not None:
            head = header(answer[0], size=len(answer[1]))
            self._sock.sendall(joined(stream_buffers(head, [answer[1]])[0]))
            answer = handshake.receive(parse(self._next()))
            if answer is not None:
                before_proof()
        self._records = Records(handshake.derive(b"to listener"), handshake.derive(b"to dialer"))
        self._mux = Mux(is_client=True)
        if resumes:
            self.say([Resumption(b"s" * 16, 0).frame()])
            assert self.hear().kind is Kind.RESUME

    def _next(self):
        while not self._arrived:
            data = self._sock.recv(1000)
            if not data:
                raise ConnectionError
            self._arrived += self._deframer.split(data)
        return self._arrived.popleft()

    def say(self, frames):
        self._sock.sendall(b"".join(self._records.protect(frames)))

    def hear(self):
        """The next event."""
        while True:
            record = self._next()
            for frame in self._records.feed(len(record).to_bytes(4, "little") + record):
                event = self._mux.receive(frame)
                if event is not None:
                    return event

    def dial(self, place):
        """Open a connection to a place; the reason why there is none."""
        channel, frames = self._mux.open(f"tunnel+tcp://one@{place}")
        self.say(frames + self._mux.probe(1, b""))
        why = ""
        while (event := self.hear()).kind is not Kind.PROBED:
            if event.kind is Kind.RESET and event.channel == channel:
                why = event.text
        return why


STRANGER = evolve(RUN, key=b"x" * 32)


def test_what_came_in_place_of_the_parents_streams_is_told(server, where):
    def told(what):
        place = re.escape(f"{where[0]}:{where[1]}")
        none = rf"no stream was opened into this job at {place} within \d+ s"
        return re.fullmatch(none + re.escape(what), server.missing())

    assert told("")
    with socket.create_connection(where, timeout=30):
        until(lambda: told(" (1 came and said nothing)"))
        with (
            socket.create_connection(where, timeout=30) as other,
            pytest.raises(HandshakeError, match="prove"),
        ):
            Program(other, STRANGER, "one")
        assert told(" (2 came, none of which proved that it is the parent's)")
    with socket.create_connection(where, timeout=30) as stream:
        Program(stream, RUN, "one")
    assert server.missing() == ""


@pytest.fixture
def stream(where, server):
    with socket.create_connection(where, timeout=30) as stream:
        yield stream


@pytest.mark.parametrize(
    "run, job", [(STRANGER, "one"), (RUN, "two")], ids=["a stranger", "one that means another job"]
)
def test_others_learn_that_it_is_not_theirs(stream, run, job):
    with pytest.raises(HandshakeError, match="could not prove"):
        Program(stream, run, job)


def test_a_peer_that_breaks_the_protocol_is_sent_away(stream):
    program = Program(stream, RUN, "one")
    # an end of what never began
    program.say([(b"\x06\x09\0\0\0", b"")])
    with pytest.raises(ConnectionError):
        program.hear()


def test_nonsense_is_sent_away(stream):
    stream.sendall(b"GET / HTTP/1.1\r\n\r\n")
    while stream.recv(100):
        continue


@pytest.mark.parametrize("timing", [Timing(stream_greeting=0.5)])
def test_whoever_says_nothing_is_sent_away(stream):
    assert stream.recv(100) == b""


def test_as_many_as_may_say_nothing_keep_nobody_out(where, server):
    with contextlib.ExitStack() as held:
        silent = [
            held.enter_context(socket.create_connection(where, timeout=30))
            for _ in range(module._UNPROVEN + 1)
        ]
        # the first one made room for the last
        assert silent[0].recv(100) == b""
        stream = held.enter_context(socket.create_connection(where, timeout=30))
        Program(stream, RUN, "one")


def test_strangers_push_out_nobody_whose_proof_is_on_its_way(where, server):
    """However many there are: a proof takes long from far away."""
    with contextlib.ExitStack() as held:
        stream = held.enter_context(socket.create_connection(where, timeout=30))

        def crowd():
            strangers = [
                held.enter_context(socket.create_connection(where, timeout=30))
                for _ in range(2 * module._UNPROVEN)
            ]
            assert strangers[0].recv(100) == b""

        Program(stream, RUN, "one", before_proof=crowd)


def test_processes_of_the_job_are_reached_while_they_listen(stream, tmp_path):
    program = Program(stream, RUN, "one")
    with socket.create_server(("127.0.0.1", 0)) as other:
        there = f"127.0.0.1:{other.getsockname()[1]}"
        assert program.dial(there) == f"nobody of this job listens at {there}"
        with register(tmp_path, f"tunnel+tcp://one.0@{there}"):
            assert program.dial(there) == ""
            other.accept()[0].close()
        # its end is heard of before the next question is answered
        resolve(tmp_path, "tcp://127.0.0.1:1")
        assert program.dial(there).startswith("nobody of this job")


@pytest.mark.parametrize("url", ["tunnel+tcp://two.0@127.0.0.1:1", "tcp://127.0.0.1:1", "x"])
def test_what_is_no_address_of_the_job_is_said(server, tmp_path, url):
    with pytest.raises(TransportError, match="no address of a process of job one"):
        register(tmp_path, url)


@pytest.mark.skipif(sys.platform != "linux", reason="there are longer paths on Linux alone")
def test_it_is_asked_however_deep_its_folder_lies(world, tmp_path):
    deep = "d" * 120
    world.job(deep, begin=False, add=False)
    assert resolve(tmp_path / deep, "tcp://127.0.0.1:1") == "tcp://127.0.0.1:1"


class OtherSide:
    """The other side of a tunnel, frame by frame: a stream that takes all at once."""

    def __init__(self, tunnel, *, is_client=True):
        self.waiting = 0
        self.mux = Mux(is_client=is_client)
        self.heard_of = []
        self._tunnel = tunnel
        self.attach()
        if is_client:
            self.resume(b"s" * 16)

    def attach(self):
        """Another stream."""
        self.heard = self.spoke = time.monotonic()
        self._tunnel.attach(self)

    def resume(self, session):
        """Say what has arrived."""
        self.say([Resumption(session, self.mux.received).frame()])

    def write(self, frames):
        """What the tunnel sends."""
        self.heard_of += filter(None, (self.mux.receive(head + body) for head, body in frames))

    def close(self):
        """It keeps nothing open."""

    def cut(self):
        """The stream breaks."""
        self.on_end(self, "it was cut")

    def say(self, frames):
        """Have frames arrive."""
        for head, body in frames:
            self.on_frame(memoryview(head + body))


@pytest.fixture
def pair():
    """A connection of a job's, as its process and its tunnel have it."""
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


@pytest.fixture
def loop():
    with contextlib.closing(SharedLoop()) as loop:
        yield loop


@pytest.fixture
def tunnel_to(loop):
    """Makes a job's side of a tunnel, of what connects to routes."""
    with contextlib.ExitStack() as opened:

        def make(accept, *, is_client=False, clock=time.monotonic):
            tunnel = Tunnel(
                loop,
                is_client=is_client,
                accept=accept,
                patience=60,
                timing=Timing(),
                clock=clock,
            )
            opened.callback(tunnel.close)
            return tunnel

        yield make


def test_an_end_may_find_room_for_all_that_still_waits(loop, tunnel_to, pair):
    near, far = pair
    tunnel = tunnel_to(lambda _: far)
    other = OtherSide(tunnel)
    channel, frames = other.mux.open("anywhere")
    other.say(frames)
    near.shutdown(socket.SHUT_WR)
    loop.run_once()
    sent = 0
    while not tunnel._connections[channel].socket.waiting:
        other.say(other.mux.send_data(channel, bytes(1000)))
        sent += 1000
    near.setblocking(False)
    got = len(near.recv(2**24))
    other.say(other.mux.finish(channel))
    while piece := near.recv(2**24):
        got += len(piece)
    assert got == sent
    assert tunnel.is_idle


class SlowOtherSide(OtherSide):
    """A stream that takes bytes when it is told to."""

    def write(self, frames):
        frames = list(frames)
        self.waiting += sum(len(head) + len(body) for head, body in frames)
        super().write(frames)

    def take(self):
        """There is room for all that waits."""
        self.waiting = 0
        self.on_room()


def test_connections_with_much_to_send_have_turns_and_a_small_message_waits_for_none(
    loop, tunnel_to
):
    tunnel = tunnel_to(nobody)
    other = SlowOtherSide(tunnel)
    with contextlib.ExitStack() as opened:
        near, senders = [], 20
        for number in range(senders + 1):
            ends = [opened.enter_context(one) for one in socket.socketpair()]
            near.append(ends[0])
            tunnel.open(str(number), ends[1])
        channels = [event.channel for event in other.heard_of if event.kind is Kind.OPEN]
        other.heard_of.clear()

        def fill():
            for one in near[:senders]:
                one.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        one.send(bytes(MAX_DATA))

        def work():
            for _ in range(10):
                loop.run_once(loop.now())

        fill()
        work()
        congested = other.waiting
        near[senders].send(b"x")
        work()
        assert other.heard_of[-1].body == b"x"
        assert MAX_DATA < congested <= other.waiting < 6 * MAX_DATA

        for _ in range(50):
            other.take()
            fill()
            work()
        sent = collections.Counter()
        for event in other.heard_of:
            sent[event.channel] += len(event.body)
        # no more than a turn or two apart
        counts = [sent[channel] for channel in channels[:senders]]
        assert max(counts) - min(counts) <= 2 * MAX_DATA
        assert min(counts) > 5 * MAX_DATA


def test_where_there_is_no_descriptor_the_other_side_is_told(tunnel_to):
    def connect(_):
        raise OSError(24, "too many open files")

    other = OtherSide(tunnel_to(connect))
    channel, frames = other.mux.open("anywhere")
    other.say(frames)
    told = other.heard_of[-1]
    assert (told.kind, told.channel) == (Kind.RESET, channel)
    assert "too many open files" in told.text


def nobody(route):
    return f"nobody is at {route}"


def test_what_is_not_acknowledged_is_kept_up_to_a_bound_and_then_goes_on(
    loop, tunnel_to, monkeypatch
):
    monkeypatch.setattr(tunnel_module, "_FULL", 2**20)
    tunnel = tunnel_to(nobody)
    size = 2 * 2**20
    with contextlib.ExitStack() as opened:
        has_said = []
        for _ in range(4):
            near, far = map(opened.enter_context, socket.socketpair())
            tunnel.open("anywhere", far)
            has_said.append(in_thread(functools.partial(near.sendall, bytes(size))))

        def go_on():
            loop.run_once(loop.now() + 0.01)
            return tunnel._mux.kept

        until(lambda: go_on() >= 2**20)
        for _ in range(50):
            go_on()
        # a round of each connection more
        assert tunnel._mux.kept < 2 * 2**20
        other = OtherSide(tunnel)

        def sent():
            go_on()
            other.say(other.mux.acknowledgement(now=True))
            return sum(len(event.body) for event in other.heard_of if event.kind is Kind.DATA)

        until(lambda: sent() == 4 * size)
        for said in has_said:
            said()


def test_a_session_outlives_any_time_without_a_stream(tunnel_to, pair):
    now = [0.0]
    tunnel = tunnel_to(nobody, clock=lambda: now[0])
    other = OtherSide(tunnel)
    other.say(other.mux.probe(0, b""))
    other.cut()
    now[0] = 1000.0
    tunnel.look()
    tunnel.open("anywhere", pair[1])
    other.attach()
    other.resume(b"s" * 16)
    resumed, opened = other.heard_of[-2:]
    assert Resumption.parse(resumed.body) == Resumption(b"s" * 16, 1)
    assert opened.text == "anywhere"


@pytest.mark.parametrize("how", ["its other end broke", "its job ended"])
def test_a_connection_takes_all_that_came_before_it_is_given_up(loop, tunnel_to, pair, how):
    near, far = pair
    tunnel = tunnel_to(lambda _: far)
    other = OtherSide(tunnel)
    channel, frames = other.mux.open("anywhere")
    other.say(frames)
    for _ in range(20):
        other.say(other.mux.send_data(channel, bytes(2**16)))
    if how == "its job ended":
        other.cut()
        tunnel.end_if_broken()
    else:
        other.say(other.mux.reset(channel))
    near.setblocking(False)
    got, piece = 0, b" "
    while piece:
        loop.run_once(loop.now())
        with contextlib.suppress(BlockingIOError):
            piece = near.recv(2**20)
            got += len(piece)
    assert got == 20 * 2**16
    assert tunnel.is_idle


def test_a_stream_is_measured_without_the_time_of_its_resumption(tunnel_to):
    now, told = [0.0], []
    tunnel = tunnel_to(nobody, is_client=True, clock=lambda: now[0])
    other = OtherSide(tunnel, is_client=False)
    tunnel.probe(2**18, told.append)
    now[0] = 5.0
    other.resume(Resumption.parse(other.heard_of[0].body).session)
    for later in (6.0, 8.0):
        now[0] = later
        other.say(other.mux.answer_probe(1))
    assert told == [(1.0, 2**18)]


def test_what_the_other_side_has_forgotten_ends_and_the_stream_goes_on(tunnel_to, pair):
    near, far = pair
    tunnel = tunnel_to(nobody, is_client=True)
    other = OtherSide(tunnel, is_client=False)
    session = Resumption.parse(other.heard_of[0].body).session
    other.resume(session)
    tunnel.open("one", far)
    other.cut()
    other.mux = Mux(is_client=False)
    other.attach()
    other.say([Resumption(session, 0, is_new=True).frame()])
    assert near.recv(1) == b""
    near, far = socket.socketpair()
    with near:
        tunnel.open("two", far)
        assert other.heard_of[-1].text == "two"


def test_a_stream_whose_frame_cannot_be_acted_on_ends_so_that_the_rest_comes_again(loop, pair):
    proven, ended = [], []
    listener = TunnelStream(
        loop,
        pair[0],
        listener_handshake(RUN, Hello.mine("one"), "one"),
        on_proven=proven.append,
        on_end=lambda _, why: ended.append(why),
    )
    has_greeted = in_thread(lambda: Program(pair[1], RUN, "one", resumes=False))
    until(lambda: loop.run_once(loop.now()) or proven)
    program = has_greeted()

    def fail(_):
        raise KeyError("gone")

    listener.on_frame = fail
    program.say([PING, PING])
    with pytest.raises(KeyError):
        until(lambda: loop.run_once(loop.now()) or ended)
    assert ended == ["'gone'"]
