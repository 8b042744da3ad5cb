"""Calls to another process: each gets its own answer, or learns why there is none."""

from __future__ import annotations

import re
import threading

import pytest

from fiber._wire import codec
from fiber._wire.client import Client, ClientPool, PendingCall
from fiber._wire.frames import Kind
from fiber.exceptions import PeerLostError, TransportError, WireError
from making import making
from wire_world import TIMEOUT, close_listeners, hello, in_thread, threads, until


class Answers:
    """Service that does with a call as its body asks."""

    def on_message(self, peer, message):
        what, *rest = codec.loads(message.body)
        if what == "echo":
            peer.send(Kind.REPLY, message.target, message.id, codec.dumps(rest))
        elif what == "cast":
            peer.send(Kind.CAST, rest[0], 0, [rest[1]])
        elif what == "garbled":
            peer.send(Kind.ERROR, message.target, message.id, [b"\xff" * 30])

    def on_peer_lost(self, peer):
        """It keeps nothing."""


@pytest.fixture
def connect(reactor):
    def connect(listening):
        listening.endpoint.serve(1, Answers())
        return Client(listening.url, listening.credentials, hello("client"), reactor)

    with making(connect, Client.close) as connect:
        yield connect


@pytest.fixture
def client(connect, listening):
    return connect(listening)


def ask(client, *what):
    return client.call(1, codec.dumps(what))


def answer(pending):
    assert pending.wait(TIMEOUT)
    return codec.loads(pending.result())


class TestCalls:
    def test_twenty_threads_get_their_own_answers(self, client):
        def call(name):
            for number in range(50):
                assert answer(ask(client, "echo", name, number)) == [name, number]

        with threads(20, call):
            pass
        assert not client._pending

    def test_an_answer_without_a_call_is_ignored(self, client, listening):
        listening.peer("client").send(Kind.REPLY, 1, 12345, [b"?"])
        assert answer(ask(client, "echo", 2)) == [2]

    def test_large_calls_both_ways_between_two_processes_never_wait_for_each_other(
        self, listen, reactor
    ):
        """Each is the other's client and listener; the handler of neither may wait."""
        first, second = (listen(max_frame=4096) for _ in range(2))
        ways = []
        for here, there in ((first, second), (second, first)):
            there.endpoint.serve(1, Answers())
            ways.append(
                Client(there.url, there.credentials, hello("x"), here.reactor, max_frame=4096)
            )
        body = b"x" * 50_000

        def call(number):
            pending = [ask(ways[number % 2], "echo", body) for _ in range(20)]
            assert [answer(one) for one in pending] == [[body]] * 20

        with threads(8, call):
            pass
        for way in ways:
            way.close()

    def test_a_callback_runs_once_however_it_meets_the_answer(self, client):
        counts = []
        for _ in range(300):
            count = []
            pending = ask(client, "echo", 1)
            pending.add_done_callback(count.append)
            assert pending.wait(TIMEOUT)
            counts.append(count)
        until(lambda: all(counts))
        assert all(len(count) == 1 for count in counts)

    def test_a_handler_of_casts_that_fails_stops_nothing(self, client, caplog):
        client.on_cast(7, lambda _: 1 / 0)
        ask(client, "cast", 7, b"x")
        assert answer(ask(client, "echo", 1)) == [1]
        until(lambda: "ZeroDivisionError" in caplog.text)


class TestErrors:
    def test_an_answer_that_is_not_here_yet_has_no_result(self, client):
        with pytest.raises(TransportError, match="not here yet; wait"):
            PendingCall(client, 1).result()

    def test_an_error_without_a_body_is_an_object_that_is_no_more(self, client, listening):
        words = re.escape(f"the object asked for no longer exists in {listening.url}")
        with pytest.raises(PeerLostError, match=words):
            answer(client.call(99, [b"x"]))
        assert not client.lost

    def test_an_answer_that_cannot_be_unpickled_is_the_callers_error(self, client):
        with pytest.raises(Exception, match="object body"):
            answer(ask(client, "garbled"))
        assert answer(ask(client, "echo", 1)) == [1]


class TestTheEnd:
    def test_open_calls_fail(self, client, listening):
        with listening.held():
            pending = [ask(client, "echo", number) for number in range(5)]
            close_listeners(listening)
            errors = []
            for one in pending:
                with pytest.raises(PeerLostError) as caught:
                    answer(one)
                errors.append(caught.value)
        assert str(errors[0]) == f"the connection to {listening.url} is gone"
        # threads that raise the same exception would write each other's tracebacks
        assert len({id(error) for error in errors}) == 5
        assert client.lost

    def test_later_calls_fail_at_once_and_closing_leaves_alone_what_others_have(
        self, client, listening, monkeypatch
    ):
        listening.endpoint.close()
        until(lambda: client._ended)
        assert client.lost
        for attempt in (lambda: ask(client, "echo", 1), lambda: client.cast(1, [b"x"])):
            with pytest.raises(PeerLostError):
                attempt()
        # the next connection gets descriptors of the same numbers
        monkeypatch.setattr(client._reactor, "remove_reader", pytest.fail)
        client.close()

    def test_calls_and_the_end_at_the_same_time_leave_no_call_open(self, connect, listen):
        for _ in range(10):
            listening = listen()
            client = connect(listening)
            begun = threading.Event()

            def call(_, client=client, begun=begun):
                with pytest.raises(PeerLostError):
                    while True:
                        pending = ask(client, "echo", 1)
                        begun.set()
                        answer(pending)

            with threads(4, call):
                assert begun.wait(TIMEOUT)
                listening.endpoint.close()

    def test_closing_ends_open_calls_whatever_the_callback_of_one_does(self, client, listening):
        with listening.held():
            first, second = ask(client, "echo", 1), ask(client, "echo", 2)
            first.add_done_callback(lambda _: 1 / 0)
            client.close()
            client.close()
        words = re.escape(f"the connection to {listening.url} was closed")
        with pytest.raises(PeerLostError, match=words):
            answer(second)

    def test_it_may_be_closed_by_what_follows_a_call(self, client):
        closed = threading.Event()
        ask(client, "echo", 1).add_done_callback(lambda _: (client.close(), closed.set()))
        assert closed.wait(TIMEOUT)
        with pytest.raises(PeerLostError):
            ask(client, "echo", 2)

    def test_the_handler_of_the_end_is_called_once(self, connect, listen):
        for _ in range(20):
            listening = listen()
            client = connect(listening)
            told = []
            ended = in_thread(listening.endpoint.close)
            client.on_lost(lambda told=told: told.append("lost"))
            ended()
            until(lambda told=told: told)
            client.close()
            assert told == ["lost"]
            client.on_lost(lambda told=told: told.append("late"))
            assert told == ["lost", "late"]

    def test_nonsense_from_the_other_side_ends_it(self, client, listening):
        peer = listening.peer("client")
        with listening.held():
            pending = ask(client, "echo", 1)
            peer._listener.send(peer._pipe, b"nonsense" * 8, [])
            assert pending.wait(TIMEOUT)
        with pytest.raises(PeerLostError, match="frame begins with") as caught:
            pending.result()
        assert isinstance(caught.value.__cause__, WireError)
        until(lambda: client.lost)
        with pytest.raises(PeerLostError):
            ask(client, "echo", 2)


class Stub:
    def __init__(self, url):
        self.url = url
        self.lost = False
        self.closed = False

    def close(self):
        self.closed = True


class Slow:
    """Client whose dialing lasts until released."""

    def __init__(self):
        self.dialled = []
        self.begun = threading.Event()
        self.answer = threading.Event()

    def __call__(self, url):
        self.dialled.append(url)
        if url == "slow":
            self.begun.set()
            assert self.answer.wait(20)
        return Stub(url)


class TestPool:
    """One connection for each address, and a new one in the place of a lost one."""

    @pytest.fixture
    def clients(self):
        return ClientPool(Stub)

    def test_a_lost_connection_is_closed_and_made_anew(self, clients):
        first, other = clients.get("a"), clients.get("b")
        first.lost = other.lost = True

        assert clients.get("a") is not first
        assert first.closed
        assert other.closed

    def test_closing_closes_all_of_them_and_makes_no_more(self, clients):
        made = [clients.get("a"), clients.get("b")]

        clients.close()
        clients.close()

        assert all(one.closed for one in made)
        with pytest.raises(PeerLostError, match="is ending"):
            clients.get("a")

    def test_those_released_are_the_callers(self, clients):
        made = clients.get("a")

        assert clients.release(["a", "nobody dialled it"]) == [made]
        assert not made.closed
        assert clients.get("a") is not made

    def test_an_address_that_does_not_answer_delays_no_other(self):
        slow = Slow()
        clients = ClientPool(slow)
        got = in_thread(lambda: clients.get("slow"))
        assert slow.begun.wait(20)

        assert clients.get("quick").url == "quick"

        also = in_thread(lambda: clients.get("slow"))
        slow.answer.set()
        assert got() is also()
        assert slow.dialled == ["slow", "quick"]

    def test_what_is_dialled_when_the_process_ends_is_closed(self):
        made = []
        slow = Slow()
        clients = ClientPool(lambda url: made.append(slow(url)) or made[-1])
        got = in_thread(lambda: clients.get("slow"))
        assert slow.begun.wait(20)
        clients.close()
        slow.answer.set()

        with pytest.raises(PeerLostError, match="is ending"):
            got()
        assert made[0].closed

    def test_an_address_is_dialed_by_its_route(self):
        clients = ClientPool(Stub, lambda url: {"far": "near"}.get(url, url))

        assert clients.get("far") is clients.get("near")
        assert clients.get("far").url == "near"
