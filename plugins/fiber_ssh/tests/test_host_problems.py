"""Hosts on which something is not as Fiber needs it: errors name it, and what to do."""

import contextlib
import logging
import socket
import subprocess
from pathlib import Path

import attrs
import paramiko
import pytest

from fiber.exceptions import BackendUnavailableError
from fiber.model import JobSpec, JobState, Reason, ReasonKind
from fiber.testing import programs
from fiber_ssh import checks
from fiber_ssh.config import SshConfig
from fiber_ssh.connect import connect as ssh_connect
from fiber_ssh.exec_channel import open_session
from fiber_ssh.hosts import Host, read_hosts


@pytest.fixture
def alpha(world):
    """The first host."""
    return world.hosts[0]


@pytest.fixture
def only_alpha(config, world, tmp_path):
    """Settings by which it is the only one."""
    shared, first, *_ = world.hosts_file.read_text().split("\n\n")
    (tmp_path / "hosts").write_text(f"{shared}\n\n{first}\n")
    return attrs.evolve(config, hosts=str(tmp_path / "hosts"))


@contextlib.contextmanager
def option(host, line):
    """A host whose sshd has one more option."""
    file = host.directory / "sshd_config"
    before = file.read_text()
    file.write_text(f"{line}\n{before}")
    host.kill_sshd()
    host.start()
    try:
        yield
    finally:
        file.write_text(before)
        host.kill_sshd()
        host.start()


@pytest.fixture
def one_session(alpha):
    """Its sshd allows one program a connection."""
    with option(alpha, "MaxSessions 1"):
        yield


@pytest.fixture
def behind(world, tmp_path):
    """Maker of settings by which a port of the second host is reached through the first one."""
    alpha, beta, *_ = world.hosts

    def make(port=22, jump_port=22):
        (tmp_path / "ssh_config").write_text(
            f"Host jump\n  HostName {alpha.address}\n  Port {jump_port}\n"
            f"Host inner\n  HostName {beta.address}\n  Port {port}\n  ProxyJump jump\n"
            f"Host *\n  User root\n  IdentityFile {world.key}\n"
            f"  UserKnownHostsFile {world.known_hosts}\n"
        )
        return Host(name="inner"), SshConfig(config=tmp_path / "ssh_config")

    return make


@pytest.mark.lingers("the host's new sshd is for the tests that follow")
def test_a_jump_host_that_forwards_nothing_is_named_with_the_option(alpha, behind):
    with (
        option(alpha, "AllowTcpForwarding no"),
        pytest.raises(BackendUnavailableError, match="jump host jump forwards no .*AllowTcpForw"),
    ):
        ssh_connect(*behind())


def test_a_host_that_its_jump_host_cannot_reach_is_told_from_a_jump_host_that_is_not_there(behind):
    with pytest.raises(BackendUnavailableError, match="jump host jump cannot connect to it"):
        ssh_connect(*behind(port=2299))
    with pytest.raises(
        BackendUnavailableError, match=r"^jump host jump \(.* 2299\) cannot be reach"
    ):
        ssh_connect(*behind(jump_port=2299))


def test_a_jump_host_whose_connection_ends_meanwhile_is_one_sentence(behind, monkeypatch):
    def ended(*_, **__):
        # raised by paramiko where the connection drops while a channel is opened
        raise EOFError

    monkeypatch.setattr(paramiko.Transport, "open_channel", ended)
    with pytest.raises(BackendUnavailableError, match="the connection to jump host jump ended"):
        ssh_connect(*behind())


@pytest.mark.lingers("the host's new sshd is for the tests that follow")
@pytest.mark.usefixtures("one_session")
def test_too_few_sessions_are_reported_with_the_option(context, connect, only_alpha):
    link = connect(*read_hosts(only_alpha), config=only_alpha)
    with pytest.raises(BackendUnavailableError, match="set MaxSessions in its sshd_config"):
        open_session(link.transport, 30)
    link.close()
    found = {
        check.name: check for check in checks.run_checks(attrs.evolve(context, config=only_alpha))
    }
    assert not found["host alpha: connections"].ok
    assert found["host alpha: connections"].fix.startswith("set MaxSessions")


def end_of(backend, context, *argv):
    job = backend.submit(JobSpec(run_id=context.run_id, name="x", argv=argv))
    statuses = (status for one, status in backend.events(context.run_id) if one.id == job.id)
    return next(status for status in statuses if status.state is JobState.FAILED)


def test_a_program_that_may_not_be_run_ends_as_in_a_shell(opened, context):
    assert end_of(opened(context), context, "/etc/passwd").exit_code == 126


def test_a_folder_that_hosts_lack_is_reported_and_not_a_missing_python(opened, context, config):
    backend = opened(context, config=attrs.evolve(config, directory="/no/folder"))

    end = end_of(backend, context, *programs.exit_with(0))
    assert end.reason == Reason(ReasonKind.START)
    assert "there is no folder /no/folder there, which the hosts file" in end.message
    assert "python" not in end.message


def test_a_python_2_is_reported_as_too_old_and_not_as_an_error_of_syntax(
    connect, only_alpha, tmp_path
):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho 'def _read(count: int)' >&2\n"
        "echo 'SyntaxError: invalid syntax' >&2\nexit 1\n"
    )
    python.chmod(0o755)
    (host,) = read_hosts(only_alpha)
    link = connect(attrs.evolve(host, python=str(python)), config=only_alpha)
    assert link.failure.startswith(f"{python} on host alpha is Python 2, and 3.10 or later is")


def test_a_home_that_cannot_be_written_to_is_reported_with_the_setting(alpha, connect, only_alpha):
    root = alpha.directory / "read-only"
    (root / "alpha").mkdir(parents=True)

    def mount(*words):
        pid = str(alpha.sshd.pid)
        subprocess.run(["nsenter", "--mount", "--root", "--target", pid, *words], check=True)

    mount("mount", "--bind", root, root)
    mount("mount", "-o", "remount,bind,ro", root)
    try:
        config = attrs.evolve(only_alpha, root=str(root))
        link = connect(*read_hosts(config), config=config)
        link.close()
    finally:
        mount("umount", root)
    words = f"{root}/alpha cannot be written to; name a folder with FIBER_SSH_ROOT"
    assert words in link.failure


def test_a_folder_for_the_agent_may_be_named_from_the_home_on(alpha, connect, only_alpha):
    (host,) = read_hosts(only_alpha)
    link = connect(host, config=attrs.evolve(only_alpha, root="of/fiber"))
    assert link.is_up, link.failure
    assert (alpha.home / "of/fiber/alpha/machine").is_file()


def test_a_port_without_an_sshd_is_one_sentence(caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        host = Host(name="x", address="127.0.0.1", port=server.getsockname()[1])
        settings = SshConfig(config=Path("/dev/null"), connect_timeout=0.5)
        with pytest.raises(BackendUnavailableError, match=r"nothing there said within 0.5 s that"):
            ssh_connect(host, settings)
    # Python prints to stderr what no logger of a program's takes
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


def test_the_doctor_leaves_no_run_on_hosts(context, world):
    def runs():
        return {
            (host.name, path.name)
            for host in world.hosts
            for path in (host.home / ".cache/fiber/ssh" / host.name / "runs").glob("*")
        }

    before = runs()
    assert all(check.ok for check in checks.run_checks(context))
    assert runs() <= before
