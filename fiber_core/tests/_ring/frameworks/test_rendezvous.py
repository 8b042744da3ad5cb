"""The key-value server that gloo's members meet at."""

import urllib.error
import urllib.request

import pytest

from fiber._ring.frameworks.horovod import RendezvousServer


@pytest.fixture
def server():
    found = RendezvousServer("127.0.0.1")
    yield found
    found.close()


def ask(server, method, path, data=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", data=data, method=method
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read()


def test_what_one_puts_another_gets(server):
    ask(server, "PUT", "/global/0", b"here")

    assert ask(server, "GET", "/global/0") == b"here"


def test_a_missing_key_is_not_found(server):
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        ask(server, "GET", "/global/1")
    # the error is the answer, too
    caught.value.close()


def test_values_of_a_member_that_left_stay_readable(server):
    ask(server, "PUT", "/global/0", b"here")
    ask(server, "DELETE", "/global/0")

    assert ask(server, "GET", "/global/0") == b"here"


def test_two_have_two_ports(server):
    other = RendezvousServer("127.0.0.1")

    assert other.port != server.port
    other.close()
