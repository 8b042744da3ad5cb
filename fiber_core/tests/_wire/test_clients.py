"""One connection for each address, and a new one in the place of a lost one."""

import threading

import pytest

from fiber._wire.client import ClientPool
from fiber.exceptions import PeerLostError
from objects_world import in_thread


class Stub:
    def __init__(self, url):
        self.url = url
        self.lost = False
        self.closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def clients():
    return ClientPool(Stub)


def test_an_address_is_dialled_once(clients):
    assert clients.get("a") is clients.get("a")
    assert clients.get("a") is not clients.get("b")


def test_a_lost_connection_is_closed_and_made_anew(clients):
    first = clients.get("a")
    first.lost = True

    assert clients.get("a") is not first
    assert first.closed


def test_lost_connections_are_let_go_when_others_are_asked_for(clients):
    lost = clients.get("a")
    lost.lost = True

    clients.get("b")

    assert lost.closed


def test_closing_closes_all_of_them_and_makes_no_more(clients):
    made = [clients.get("a"), clients.get("b")]

    clients.close()
    clients.close()

    assert all(one.closed for one in made)
    with pytest.raises(PeerLostError, match="is ending"):
        clients.get("a")


def test_those_released_are_the_callers(clients):
    made = clients.get("a")

    assert clients.release(["a", "nobody dialled it"]) == [made]
    assert not made.closed
    assert clients.get("a") is not made


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


def test_an_address_that_does_not_answer_delays_no_other():
    slow = Slow()
    clients = ClientPool(slow)
    got = in_thread(lambda: clients.get("slow"))
    assert slow.begun.wait(20)

    assert clients.get("quick").url == "quick"

    also = in_thread(lambda: clients.get("slow"))
    slow.answer.set()
    assert got() is also()
    assert slow.dialled == ["slow", "quick"]


def test_what_is_dialled_when_the_process_ends_is_closed():
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


def test_an_address_is_dialed_by_its_route():
    asked = []

    def connect(address):
        asked.append(address)
        return Stub(address)

    clients = ClientPool(connect, lambda url: {"far": "near"}.get(url, url))

    assert clients.get("far") is clients.get("near")
    assert asked == ["near"]
