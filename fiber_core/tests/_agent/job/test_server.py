"""A supervisor of a remote job: its configuration, its link to the parent, when processes start and end."""

import os
import subprocess
import sys
import threading
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber._agent.instructions import Instructions
from fiber._agent.job import SupervisorConfig
from fiber._agent.job.parent_link import Acknowledged, Connected, Lost, ParentLink, Refused
from fiber._agent.job.server import Drain, StartBarrier, choose_route
from fiber._agent.supervisor import messages
from fiber._agent.supervisor.messages import Decoder, encode
from fiber._base import values
from fiber._wire.frames import Kind, Message
from fiber._wire.handshake import Credentials
from fiber.exceptions import HandshakeError, PeerLostError, StartError, TransportError
from fiber.model import Timing
from waiting import until

ROUTE = "tunnel+tls+tcp://0badcafe@127.0.0.1:5000"
INSTRUCTIONS = Instructions(
    credentials=Credentials.new(),
    urls=("tls+tcp://10.0.0.1:5000", "tls+tcp://10.1.0.1:5000"),
    ident="0a1b2c3d",
    directory="/run/x",
    processes=2,
    max_frame=2**22,
)
CONFIG = SupervisorConfig(
    instructions=INSTRUCTIONS, name="a job", lease=30.0, silence=None, cpu=0.5, memory=100
)


def test_they_come_as_they_were_and_the_secret_is_in_no_text_of_them():
    assert SupervisorConfig.decode(CONFIG.encode()) == CONFIG
    assert INSTRUCTIONS.credentials.key.hex() not in repr(CONFIG)


def at(*urls):
    """The configuration where the parent has other addresses."""
    return values.evolve(CONFIG, instructions=values.evolve(INSTRUCTIONS, urls=urls))


def test_with_a_route_the_parent_is_dialled_there_first_and_by_everybody():
    assert CONFIG.via_address("") == CONFIG
    instructions = CONFIG.via_address("127.0.0.1:99").instructions
    assert instructions.urls == ("tls+tcp://127.0.0.1:99", *INSTRUCTIONS.urls)
    assert instructions.forwards == {INSTRUCTIONS.urls[0]: "tls+tcp://127.0.0.1:99"}
    assert values.evolve(instructions, urls=INSTRUCTIONS.urls, forwards={}) == INSTRUCTIONS


@pytest.mark.parametrize("reach", ["", "127.0.0.1:99"])
def test_a_job_that_dials_gets_no_routes(reach):
    assert at(ROUTE, *INSTRUCTIONS.urls).via_address(reach) == CONFIG.via_address(reach)


def test_what_is_reached_by_streams_is_dialled_where_they_are_joined():
    ways = {ROUTE: "tls+tcp://127.0.0.1:99"}
    config = at(INSTRUCTIONS.urls[0], ROUTE)
    instructions = config.via_tunnel(lambda url: ways.get(url, url)).instructions
    assert instructions.urls == (INSTRUCTIONS.urls[0], "tls+tcp://127.0.0.1:99")
    assert instructions.forwards == {ROUTE: "tls+tcp://127.0.0.1:99"}
    assert instructions.tunnelled


def test_loopback_of_the_parents_host_is_not_dialled_where_there_are_streams():
    config = at("tls+tcp://127.0.0.1:5000", ROUTE)
    urls = config.via_tunnel(lambda url: f"way to {url}").instructions.urls
    assert urls == (f"way to {ROUTE}",)


NO_TRANSPORT = """
import sys
sys.modules["pynng"] = None
from fiber._agent.job.server import main
sys.exit(main())
"""


def test_a_python_without_the_transport_is_refused_before_the_parent_is_dialled():
    config = values.evolve(CONFIG, lease=600.0)
    done = subprocess.run(
        [sys.executable, "-c", NO_TRANSPORT],
        input=config.encode(),
        env={**os.environ, "FIBER_BOOTSTRAP": "fd:0"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    words = done.stderr.decode()
    assert done.returncode == 126, words
    assert f"fiber: {sys.executable} cannot connect to the parent: ModuleNotFoundError" in words
    assert "pynng" in words


@pytest.mark.parametrize("given, grace", [("", None), ("30", 30.0), ("0.5", 0.5)])
def test_the_platforms_grace_comes_from_the_backend(given, grace):
    assert CONFIG.with_grace(given).grace == grace


@pytest.mark.parametrize("given", ["soon", "30s", "nan", "-1"])
def test_a_grace_that_is_no_number_of_seconds_is_refused(given):
    with pytest.raises(StartError, match="FIBER_GRACE"):
        CONFIG.with_grace(given)


def test_a_parent_that_cannot_be_dialled_needs_streams():
    with pytest.raises(StartError, match="FIBER_REACH"):
        choose_route(at(ROUTE), "")


class TestStartBarrier:
    def test_waiting_processes_go_on_when_it_is_opened(self):
        barrier = StartBarrier()
        mine = os.dup(barrier.reader)
        barrier.open()
        assert os.read(mine, 1) == b"\0"
        os.close(mine)

    def test_one_that_is_never_opened_returns_false(self):
        assert not StartBarrier().wait()

    def test_it_may_be_opened_when_all_waiting_processes_were_killed(self):
        barrier = StartBarrier()
        writer = barrier.writer
        barrier.open()
        with pytest.raises(OSError):
            os.fstat(writer)


class TestDrain:
    def test_processes_without_drain_get_sigterm_at_once(self):
        drain = Drain(None)
        assert drain.request(5.0, parent_connected=True)
        assert not drain.is_on
        assert drain.due is None

    @pytest.mark.parametrize(
        "grace, due", [(30.0, 128.0), (10.0, 108.0), (4.0, 103.0), (1.0, 100.75)]
    )
    def test_others_get_sigterm_once_shortly_before_the_platforms_grace_ends(self, grace, due):
        drain = Drain(grace)
        assert drain.due is None
        assert not drain.is_due(1e9)
        assert not drain.request(100.0, parent_connected=True)
        assert drain.is_on
        assert drain.due == due
        assert not drain.is_due(due - 0.01)
        assert drain.is_due(due)
        assert not drain.is_due(due + 1)
        assert not drain.is_on

    def test_a_parent_out_of_reach_is_waited_for_a_moment_and_has_the_whole_grace_in_time(self):
        drain = Drain(30.0, Timing(parent_answer=2.0))
        drain.request(100.0, parent_connected=False)
        assert drain.due == 102.0
        drain.on_parent_connected()
        assert drain.due == 128.0
        assert not drain.is_due(102.0)

    @pytest.mark.parametrize(
        "grace, told", [(None, "before"), (3.0, "before"), (30.0, "after"), (30.0, "twice")]
    )
    def test_what_the_platform_says_of_this_job_counts_more_than_its_grace(self, grace, told):
        drain = Drain(grace)
        if told != "after":
            drain.limit(90.0, 130.0)
        assert not drain.request(100.0, parent_connected=True)
        if told != "before":
            drain.limit(101.0, 50.0 if told == "twice" else 119.0)
        assert drain.due == (149.0 if told == "twice" else 218.0)

    @given(grace=st.floats(0.0, 1e6), hears=st.booleans())
    def test_with_any_grace_processes_get_sigterm_within_it(self, grace, hears):
        drain = Drain(grace)
        drain.request(0.0, parent_connected=hears)
        assert 0.0 <= drain.due <= grace


class FakeLink:
    """A link that a test reads and writes; a pipe is readable when a message is there."""

    buffered = False

    def __init__(self, pipe):
        self._reader, self._writer = pipe
        self.fds = (self._reader,)
        self.sent = []
        self.coming = deque()
        self.broken = False

    def send(self, kind, target, number, segments):
        if self.broken:
            raise PeerLostError("gone")
        decoder = Decoder()
        decoder.feed(segments[0])
        self.sent += [(kind, one) for one in decoder.messages()]

    def receive(self, timeout):
        if self.broken:
            raise PeerLostError("gone")
        return self.coming.popleft() if self.coming else None

    def come(self, kind, message=None):
        body = b"" if message is None else encode(message)
        self.coming.append(Message(kind, 0, 1, memoryview(body)))

    def close(self):
        self.broken = True


class World:
    def __init__(self, pipe):
        self.pipe = pipe
        self.links = []
        self.failures = deque()
        self.dialled = []
        self.news = []
        self._changed = threading.Condition()
        self.line = ParentLink(
            ("first", "second"), self.connect, self.on_event, timing=Timing.at(0.1)
        )

    def connect(self, url):
        self.dialled.append(url)
        if self.failures:
            failure = self.failures.popleft()
            if failure is not None:
                raise failure
        self.links.append(FakeLink(self.pipe))
        return self.links[-1]

    def on_event(self):
        with self._changed:
            self._changed.notify_all()

    def until(self, kind):
        def there():
            self.news += self.line.take_events()
            return any(isinstance(one, kind) for one in self.news)

        with self._changed:
            assert self._changed.wait_for(there, 20), self.news
        return [one for one in self.news if isinstance(one, kind)]

    def sent(self, kind, message):
        until(lambda: (kind, message) in self.links[-1].sent)


@pytest.fixture
def failing():
    """One whose thread the test starts, once it has said what fails."""
    pipe = os.pipe()
    world = World(pipe)
    yield world
    world.line.close()
    for end in pipe:
        os.close(end)


@pytest.fixture
def world(failing):
    failing.line.start()
    failing.until(Connected)
    return failing


def test_a_report_has_a_receipt(world):
    world.line.send_acknowledged(messages.Exiting())
    world.sent(Kind.CALL, messages.Exiting())
    world.links[-1].come(Kind.REPLY)
    world.line.send(messages.Ping())
    world.until(Acknowledged)


def test_all_ways_are_tried_and_then_again(failing):
    world = failing
    world.failures.extend([TransportError("a"), TransportError("b"), TransportError("c")])
    world.line.start()
    world.until(Connected)
    assert world.dialled == ["first", "second", "first", "second"]
    assert world.until(Lost)[0].why == "b"


def test_a_parent_that_refuses_the_job_is_not_dialled_again(failing):
    refusal = HandshakeError("Python is 3.10 there")
    refusal.proven = True
    failing.failures.append(refusal)
    failing.line.start()
    assert failing.until(Refused) == [Refused("Python is 3.10 there")]
    assert failing.dialled == ["first"]


def test_nor_is_one_that_does_not_know_the_job(world):
    world.links[-1].come(Kind.ERROR)
    world.line.send(messages.Ping())
    world.until(Refused)


def test_a_stranger_is_no_parent_and_others_are_tried(failing):
    failing.failures.extend([HandshakeError("of another run"), None])
    failing.line.start()
    failing.until(Connected)
    assert failing.dialled == ["first", "second"]
