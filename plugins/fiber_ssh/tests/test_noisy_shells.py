"""Hosts whose shells print something at each log-in, as many a ``.bashrc`` does."""

import re
import sys

import attrs
import pytest

from fiber.exceptions import BackendUnavailableError
from fiber.testing import FakeProvider
from fiber_ssh import checks
from fiber_ssh.exec_channel import run
from fiber_ssh.files import FileSender
from fiber_ssh.hosts import read_hosts
from fiber_ssh.routes import Router

NOISES = {
    "on stdout": "echo noise of alpha",
    "on both": "printf 'noise on a line that does not end'; echo noise of alpha >&2",
    "traced": "set -xv; echo noise of alpha",
}


@pytest.fixture
def set_bashrc(world):
    """Has the shells of hosts, the first one's if none are named, do something at every login."""

    def set_bashrc_of(text, *hosts):
        for host in hosts or world.hosts[:1]:
            (host.home / ".bashrc").write_text(f"{text}\n")

    yield set_bashrc_of
    for host in world.hosts:
        (host.home / ".bashrc").unlink(missing_ok=True)


@pytest.fixture(params=NOISES.values(), ids=NOISES)
def _noise(request, set_bashrc):
    set_bashrc(request.param)


@pytest.fixture
def alpha(config):
    """The first host as the settings have it."""
    return next(one for one in read_hosts(config) if one.name == "alpha")


@pytest.fixture
def link(alpha, connect, run_id):
    """A connection to it that is up."""
    link = connect(alpha, run_id)
    assert link.is_up, link.failure
    yield link
    link.call("release", timeout=30, run=run_id)


@pytest.mark.usefixtures("_noise")
class TestNoise:
    def test_what_a_host_can_dial_is_found_out(self, link, config, world):
        route = Router(config, lambda: [link]).route(link, ["tls+tcp://127.0.0.1:1"])
        # nobody listens there
        assert route.uses_streams

    def test_files_are_sent(self, link, config, tmp_path, monkeypatch, run_id):
        (tmp_path / "words.txt").write_text("all of them")
        monkeypatch.chdir(tmp_path)
        sender = FileSender(attrs.evolve(config, send=("words.txt",)), link.host, fresh=0.0)

        folder = sender.send(link.transport, link.info, run_id)

        answer = run(link.transport, ["cat", f"{folder}/words.txt"], timeout=30)
        assert (answer.output, answer.errors, answer.code) == ("all of them", "", 0)


def test_a_pool_works_on_hosts_that_greet(set_bashrc, world, master):
    set_bashrc(NOISES["on both"], *world.hosts)
    program = master("squares", "2")
    program.up()
    assert program.end()["good"]


def test_a_missing_python_is_reported_without_the_noise(set_bashrc, connect, alpha):
    set_bashrc("echo noise; echo noise >&2")

    link = connect(attrs.evolve(alpha, python="/no/python"))

    assert not link.is_up
    assert "there is no Python '/no/python' on host alpha" in link.failure
    assert "noise" not in link.failure


@pytest.mark.parametrize(
    "text, timeout, words",
    [
        ("echo not today >&2; exit 3", 30.0, "ended with exit code 3 before it ran .*: not today; see"),
        # which is no missing Python
        ("exec no-such-shell", 30.0, "ended with exit code 127 before it ran .* no-such-shell: not"),
        ("kill -9 $$", 30.0, "was ended by a signal before it ran"),
        ("read line", 1.0, "not started fiber's agent 1 s after .*set FIBER_SSH_CONNECT_TIMEOUT"),
    ],
    ids=["ends", "lacks", "killed", "waits"],
)  # fmt: skip
def test_a_shell_that_starts_no_agent_is_told_from_python(
    set_bashrc, connect, config, alpha, text, timeout, words
):
    set_bashrc(text)

    link = connect(alpha, config=attrs.evolve(config, connect_timeout=timeout))

    assert not link.is_up
    assert re.search(words, link.failure), link.failure


def test_a_shell_that_runs_nothing_is_reported_with_its_message(link, set_bashrc):
    set_bashrc("echo 'this account may not run programs' >&2; exit 9")

    with pytest.raises(BackendUnavailableError) as caught:
        run(link.transport, [sys.executable, "-c", "pass"], timeout=30)

    assert "the user's shell ended before with exit code 9" in str(caught.value)
    assert "this account may not run programs" in str(caught.value)


class TestTheDoctor:
    def found(self, context, config):
        context = attrs.evolve(context, config=config, providers={"fake": FakeProvider()})
        return {check.name: check for check in checks.run_checks(context)}

    def test_all_is_well_with_noise(self, context, config, set_bashrc):
        set_bashrc(NOISES["on stdout"])
        found = self.found(context, config)
        assert [check for check in found.values() if not check.ok] == []
        assert found["host alpha: fake"].detail == "2 found"
        assert found["host alpha: connections"].detail == "its processes dial this program"

    def test_what_no_pool_could_do_is_not_well(self, context, config, set_bashrc):
        # as it is once the agent runs: programs that dial are refused, jobs are not
        set_bashrc('case "$BASH_EXECUTION_STRING" in *socket.create_connection*) exit 9;; esac')
        found = self.found(context, config)
        assert found["host alpha: a job"].ok
        assert not found["host alpha: connections"].ok
        assert "exit code 9" in found["host alpha: connections"].detail
        assert found["host beta: connections"].ok
