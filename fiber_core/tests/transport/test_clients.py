"""One connection for each address, and a new one in the place of a lost one."""

import pytest

from fiber.exceptions import PeerLostError
from fiber.transport.clients import Clients


class Stub:
    def __init__(self, url):
        self.url = url
        self.lost = False
        self.closed = False

    def close(self):
        self.closed = True


@pytest.fixture
def clients():
    return Clients(Stub)


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
