"""Routes of jobs: dialling where all hosts can, streams where one cannot."""

import json
from types import SimpleNamespace

import pytest

from fiber.exceptions import BackendUnavailableError
from fiber_ssh import routes
from fiber_ssh.config import SshConfig
from fiber_ssh.exec_channel import CommandResult
from fiber_ssh.routes import Route, Router

PROGRAM = "tls+tcp://10.0.0.1:5000"
TUNNELLED = "tunnel+tls+tcp://0badcafe@127.0.0.1:5000"
URLS = (TUNNELLED, PROGRAM)
STREAMED = Route(uses_streams=True)
ISOLATED = Route(uses_streams=True, is_isolated=True)
#: addresses of this machine and of two hosts
THIS, ALPHA, BETA, LOOPBACK = "10.0.0.1", "10.0.0.2", "10.0.0.3", "127.0.0.1"
DIALLED = Route(dial_address="10.0.0.1:5000")


class Link:
    """A host's connection as far as it is asked; its host dials some addresses."""

    def __init__(self, name, address, *reached, refusal=""):
        self.host = SimpleNamespace(name=name, python="python3")
        self.info = SimpleNamespace(
            ssh_address=(address, 22), address=address, client_address="10.0.0.1"
        )
        self.reached = reached
        self.refusal = refusal
        self.is_up = True
        self.asked = 0

    @property
    def transport(self):
        return self


@pytest.fixture(autouse=True)
def _hosts_answer(monkeypatch):
    def run(link, argv, *, timeout):
        link.asked += 1
        return CommandResult(
            0, json.dumps([host in link.reached for host, _ in json.loads(argv[-1])]), ""
        )

    monkeypatch.setattr(routes, "run", run)
    monkeypatch.setattr(routes, "stream_refusal", lambda link, timeout: link.refusal)


def routes_of(links, urls=URLS, **settings):
    found = Router(SshConfig(**settings), lambda: links)
    return [found.route(link, urls) for link in links]


def test_hosts_that_dial_the_program_and_the_next_host_dial():
    links = [Link("alpha", ALPHA, THIS, BETA), Link("beta", BETA, THIS, ALPHA)]
    assert routes_of(links) == [DIALLED, DIALLED]
    assert [link.asked for link in links] == [1, 1]


@pytest.mark.parametrize("reach", ["auto", "reversed"])
@pytest.mark.parametrize(
    "alpha, reached_by_beta, expected",
    [
        pytest.param(ALPHA, [ALPHA], STREAMED, id="one does not reach the program"),
        pytest.param(ALPHA, [THIS], ISOLATED, id="one does not reach the next"),
        pytest.param(LOOPBACK, [THIS, LOOPBACK], ISOLATED, id="another one's loopback"),
    ],
)
def test_where_one_host_cannot_dial_all_go_by_streams(alpha, reached_by_beta, expected, reach):
    links = [Link("alpha", alpha, THIS, BETA), Link("beta", BETA, *reached_by_beta)]
    assert routes_of(links, reach=reach) == [expected, expected]


def test_a_host_that_comes_later_is_asked_by_itself_and_jobs_dialled_where_they_advertise():
    links = [Link("alpha", ALPHA, THIS)]
    found = Router(SshConfig(), lambda: links)
    assert found.route(links[0], URLS) == DIALLED

    assert found.route(Link("beta", BETA, THIS), URLS) == DIALLED
    assert found.route(Link("gamma", "10.0.0.4"), URLS) == STREAMED
    assert found.route(links[0], URLS) == DIALLED
    assert found.route(links[0], ("tls+tcp://10.0.0.3:77",)) == Route()


@pytest.mark.parametrize(
    "reached, urls, settings, expected",
    [
        pytest.param("10.0.0.1", URLS, {}, DIALLED, id="a host alone dials"),
        pytest.param(
            "me.example",
            URLS,
            {"address": "me.example"},
            Route(dial_address="me.example:5000"),
            id="a name of this machine is tried alone",
        ),
        pytest.param("10.0.0.1", URLS, {"reach": "reversed"}, STREAMED, id="reversed"),
        pytest.param("10.0.0.1", (), {"reach": "reversed"}, STREAMED, id="reversed, no parent"),
        pytest.param("", (TUNNELLED,), {}, STREAMED, id="a parent without an address to dial"),
        pytest.param("", (), {}, Route(), id="no parent"),
    ],
)
def test_the_route_of_one_host(reached, urls, settings, expected):
    assert routes_of([Link("alpha", "10.0.0.2", reached)], urls, **settings) == [expected]


def test_a_host_has_longer_to_answer_than_to_be_connected_to(monkeypatch):
    def run(link, argv, *, timeout):
        # a Python has to start there, on a machine that may be busy
        if timeout < 20.0:
            raise BackendUnavailableError("python3 could not be run to its end: it took too long")
        return CommandResult(0, "[true]", "")

    monkeypatch.setattr(routes, "run", run)
    assert routes_of([Link("alpha", ALPHA)], connect_timeout=1.0) == [DIALLED]


@pytest.mark.parametrize(
    "settings, refusal, answer, words",
    [
        ({"reach": "direct"}, "", None, "FIBER_SSH_REACH=reversed"),
        (
            {},
            "administratively prohibited",
            None,
            "sshd of host alpha opens no streams.*AllowTcpForwarding yes",
        ),
        ({}, "", CommandResult(1, "", "no such file"), "not report what it can dial: no such"),
    ],
    ids=["it has to dial and cannot", "no streams", "no answer"],
)
def test_a_host_without_a_route_is_an_error_with_the_fix(
    monkeypatch, settings, refusal, answer, words
):
    if answer:
        monkeypatch.setattr(routes, "run", lambda *_, **__: answer)
    with pytest.raises(BackendUnavailableError, match=words):
        routes_of([Link("alpha", ALPHA, refusal=refusal)], (PROGRAM,), **settings)
