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
TUNNELLED = "hub+tls+tcp://0badcafe@127.0.0.1:5000"
URLS = (TUNNELLED, PROGRAM)
STREAMED = Route(uses_streams=True)
ISOLATED = Route(uses_streams=True, is_isolated=True)
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
    links = [
        Link("alpha", "10.0.0.2", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.1", "10.0.0.2"),
    ]
    assert routes_of(links) == [DIALLED, DIALLED]
    assert [link.asked for link in links] == [1, 1]


def test_one_host_dials_the_program_alone():
    assert routes_of([Link("alpha", "10.0.0.2", "10.0.0.1")]) == [DIALLED]


def test_where_one_host_does_not_reach_the_program_all_go_by_streams():
    links = [
        Link("alpha", "10.0.0.2", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.2"),
    ]
    assert routes_of(links) == [STREAMED, STREAMED]


def test_where_one_host_does_not_reach_the_next_all_go_by_streams_and_none_is_dialled():
    links = [
        Link("alpha", "10.0.0.2", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.1"),
    ]
    assert routes_of(links) == [ISOLATED, ISOLATED]
    assert routes_of(links, reach="reversed") == [ISOLATED, ISOLATED]


def test_another_hosts_loopback_leads_nowhere():
    links = [
        Link("alpha", "127.0.0.1", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.1", "127.0.0.1"),
    ]
    assert routes_of(links) == [ISOLATED, ISOLATED]


def test_a_host_that_comes_later_is_asked_by_itself():
    links = [Link("alpha", "10.0.0.2", "10.0.0.1")]
    found = Router(SshConfig(), lambda: links)
    assert found.route(links[0], URLS) == DIALLED

    assert found.route(Link("beta", "10.0.0.3", "10.0.0.1"), URLS) == DIALLED
    assert found.route(Link("gamma", "10.0.0.4"), URLS) == STREAMED
    assert found.route(links[0], URLS) == DIALLED


def test_processes_of_jobs_are_dialled_at_their_advertised_address():
    links = [Link("alpha", "10.0.0.2", "10.0.0.1")]
    found = Router(SshConfig(), lambda: links)
    found.route(links[0], URLS)

    assert found.route(links[0], ("tls+tcp://10.0.0.3:77",)) == Route()


def test_a_name_for_this_machine_is_tried_alone():
    links = [Link("alpha", "10.0.0.2", "me.example")]
    assert routes_of(links, address="me.example") == [Route(dial_address="me.example:5000")]


def test_the_setting_reversed_means_streams():
    link = Link("alpha", "10.0.0.2", "10.0.0.1")
    assert routes_of([link], reach="reversed") == [STREAMED]
    assert routes_of([link], (), reach="reversed") == [STREAMED]


def test_a_parent_without_an_address_to_dial_is_reached_by_streams():
    assert routes_of([Link("alpha", "10.0.0.2")], (TUNNELLED,)) == [STREAMED]


def test_a_job_without_a_parent_needs_no_route():
    assert routes_of([Link("alpha", "10.0.0.2")], ()) == [Route()]


def test_a_host_that_has_to_dial_and_cannot_is_an_error_with_the_fix():
    with pytest.raises(BackendUnavailableError, match="FIBER_SSH_REACH=reversed"):
        routes_of([Link("alpha", "10.0.0.2")], (PROGRAM,), reach="direct")


def test_an_sshd_that_opens_no_streams_is_an_error_with_the_fix():
    link = Link("alpha", "10.0.0.2", refusal="administratively prohibited")
    with pytest.raises(BackendUnavailableError, match="AllowTcpForwarding yes") as caught:
        routes_of([link])
    assert "sshd of host alpha opens no streams" in str(caught.value)


def test_a_host_without_an_answer_is_an_error(monkeypatch):
    monkeypatch.setattr(routes, "run", lambda *_, **__: CommandResult(1, "", "no such file"))
    with pytest.raises(BackendUnavailableError, match="does not report what it can dial: no such"):
        routes_of([Link("alpha", "10.0.0.2")])
