"""How jobs meet: by dialling where all hosts can, by streams where one cannot and its sshd opens them."""

import json
from types import SimpleNamespace

import pytest

from fiber.exceptions import BackendUnavailableError
from fiber_ssh import reaching
from fiber_ssh.config import SshConfig
from fiber_ssh.reaching import Reaching, Way
from fiber_ssh.shell import Answer

PROGRAM = "tls+tcp://10.0.0.1:5000"
ROUTE = "hub+tls+tcp://0badcafe@127.0.0.1:5000"
URLS = (ROUTE, PROGRAM)
STREAMED = Way(is_streamed=True)
APART = Way(is_streamed=True, is_apart=True)
DIALLED = Way(dial="10.0.0.1:5000")


class Link:
    """A host's connection as far as it is asked; its host dials some addresses."""

    def __init__(self, name, address, *reached, refusal=""):
        self.host = SimpleNamespace(name=name, python="python3")
        self.about = SimpleNamespace(door=(address, 22), address=address, ours="10.0.0.1")
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
        return Answer(0, json.dumps([host in link.reached for host, _ in json.loads(argv[-1])]), "")

    monkeypatch.setattr(reaching, "run", run)
    monkeypatch.setattr(reaching, "refusal", lambda link, timeout: link.refusal)


def ways(links, urls=URLS, **settings):
    found = Reaching(SshConfig(**settings), lambda: links)
    return [found.way(link, urls) for link in links]


def test_hosts_that_dial_the_program_and_the_next_host_dial():
    links = [
        Link("alpha", "10.0.0.2", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.1", "10.0.0.2"),
    ]
    assert ways(links) == [DIALLED, DIALLED]
    assert [link.asked for link in links] == [1, 1]


def test_one_host_has_nobody_else_to_dial():
    assert ways([Link("alpha", "10.0.0.2", "10.0.0.1")]) == [DIALLED]


def test_where_one_host_does_not_reach_the_program_all_go_by_streams():
    links = [
        Link("alpha", "10.0.0.2", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.2"),
    ]
    assert ways(links) == [STREAMED, STREAMED]


def test_where_one_host_does_not_reach_the_next_all_go_by_streams_and_none_is_dialled():
    links = [
        Link("alpha", "10.0.0.2", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.1"),
    ]
    assert ways(links) == [APART, APART]
    assert ways(links, reach="reversed") == [APART, APART]


def test_another_hosts_loopback_leads_nowhere():
    links = [
        Link("alpha", "127.0.0.1", "10.0.0.1", "10.0.0.3"),
        Link("beta", "10.0.0.3", "10.0.0.1", "127.0.0.1"),
    ]
    assert ways(links) == [APART, APART]


def test_a_host_that_comes_later_is_asked_by_itself():
    links = [Link("alpha", "10.0.0.2", "10.0.0.1")]
    found = Reaching(SshConfig(), lambda: links)
    assert found.way(links[0], URLS) == DIALLED

    assert found.way(Link("beta", "10.0.0.3", "10.0.0.1"), URLS) == DIALLED
    assert found.way(Link("gamma", "10.0.0.4"), URLS) == STREAMED
    assert found.way(links[0], URLS) == DIALLED


def test_processes_of_jobs_are_dialled_where_they_say():
    links = [Link("alpha", "10.0.0.2", "10.0.0.1")]
    found = Reaching(SshConfig(), lambda: links)
    found.way(links[0], URLS)

    assert found.way(links[0], ("tls+tcp://10.0.0.3:77",)) == Way()


def test_a_name_for_this_machine_is_tried_alone():
    links = [Link("alpha", "10.0.0.2", "me.example")]
    assert ways(links, address="me.example") == [Way(dial="me.example:5000")]


def test_who_says_that_hosts_dial_nobody_is_believed():
    link = Link("alpha", "10.0.0.2", "10.0.0.1")
    assert ways([link], reach="reversed") == [STREAMED]
    assert ways([link], (), reach="reversed") == [STREAMED]


def test_what_nobody_can_dial_is_reached_by_streams():
    assert ways([Link("alpha", "10.0.0.2")], (ROUTE,)) == [STREAMED]


def test_a_job_without_a_parent_needs_no_way():
    assert ways([Link("alpha", "10.0.0.2")], ()) == [Way()]


def test_a_host_that_has_to_dial_and_cannot_is_an_error_with_the_fix():
    with pytest.raises(BackendUnavailableError, match="FIBER_SSH_REACH=reversed"):
        ways([Link("alpha", "10.0.0.2")], (PROGRAM,), reach="direct")


def test_an_sshd_that_opens_no_streams_is_an_error_with_the_fix():
    link = Link("alpha", "10.0.0.2", refusal="administratively prohibited")
    with pytest.raises(BackendUnavailableError, match="AllowTcpForwarding yes") as caught:
        ways([link])
    assert "sshd of host alpha opens no streams" in str(caught.value)


def test_a_host_that_says_nothing_is_an_error(monkeypatch):
    monkeypatch.setattr(reaching, "run", lambda *_, **__: Answer(1, "", "no such file"))
    with pytest.raises(BackendUnavailableError, match="does not tell what it can dial: no such"):
        ways([Link("alpha", "10.0.0.2")])
