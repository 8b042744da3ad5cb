"""Pure functions: addresses, sockets, statuses, compatibility, and files to send."""

import sys
from unittest import mock

import attrs
import paramiko
import pytest

from commands import ran
from fiber.exceptions import BackendUnavailableError, ConfigError
from fiber.model import Interface, ListenAddress, Peers
from fiber_ssh.address import ADDRESS_VARIABLE, UNREACHABLE, listen_address
from fiber_ssh.config import SshConfig
from fiber_ssh.connect import _log_in, agent_socket
from fiber_ssh.exec_channel import HostInfo, agent_archive
from fiber_ssh.files import find_files
from fiber_ssh.host_state import incompatibility
from fiber_ssh.ssh_config import SshOptions

ETH = Interface(name="eth0", address="10.0.0.5")
LO = Interface(name="lo", address="127.0.0.1", is_loopback=True)
SIX = Interface(name="eth0", address="fd00::5")
LOCAL = Interface(name="eth0", address="fe80::5%eth0")
DOWN = Interface(name="eth1", address="10.1.0.5", is_up=False)


EVERYWHERE, HERE, OWN = (f"tls+tcp://{ip}:0" for ip in ("0.0.0.0", "127.0.0.1", "10.0.0.5"))
OF_JOB, CUT_OFF = {ADDRESS_VARIABLE: "10.9.0.1"}, {ADDRESS_VARIABLE: UNREACHABLE}


@pytest.mark.parametrize(
    "settings, environ, interfaces, bind, host, routed",
    [
        ({}, {}, [LO, DOWN, LOCAL, SIX, ETH], EVERYWHERE, "10.0.0.5", True),
        ({}, {}, [LO, SIX], "tls+tcp://[::]:0", "fd00::5", True),
        ({}, {}, [LO], HERE, None, True),
        ({"address": "me.example"}, {}, [ETH], EVERYWHERE, "me.example", True),
        ({"address": "10.0.0.5"}, {}, [ETH], OWN, None, True),
        ({"reach": "reversed"}, {}, [ETH], HERE, None, True),
        # streams are not offered where all hosts are to dial
        ({"reach": "direct"}, {}, [ETH], EVERYWHERE, "10.0.0.5", False),
        # jobs listen where their host was reached
        ({"reach": "auto"}, OF_JOB, [ETH], EVERYWHERE, "10.9.0.1", True),
        ({"reach": "direct"}, OF_JOB, [ETH], EVERYWHERE, "10.9.0.1", False),
        ({"reach": "reversed"}, OF_JOB, [ETH], EVERYWHERE, "10.9.0.1", True),
        # and those that others cannot dial for their own host alone
        ({}, CUT_OFF, [ETH], HERE, None, True),
    ],
)
def test_where_programs_and_jobs_listen(settings, environ, interfaces, bind, host, routed):
    config = SshConfig(**settings)
    peers = Peers(same_host=False, directory="/run", name="x", config=config, environ=environ)

    assert listen_address(peers, interfaces) == ListenAddress(
        bind_url=bind, advertise_host=host, routed=routed
    )


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, ""),
        (
            {"fiber": None},
            "no fiber; run: ssh alpha /usr/bin/python3 -m pip install fiber-core==0.1.0",
        ),
        ({"fiber": "0.0.9"}, "has fiber-core 0.0.9, and this program 0.1.0; run: ssh alpha"),
        ({"python": (3, 10, 1)}, "is Python 3.10, and this program runs on 3.11"),
    ],
)
def test_an_incompatible_host_is_reported_with_the_fix(fields, expected):
    info = HostInfo(
        python=(3, 11, 2),
        executable="/usr/bin/python3",
        fiber="0.1.0",
        hostname="a",
        archive="/x",
        root="/",
        cpus=4,
        memory=100,
        ssh_address=None,
        client_address=None,
    )
    words = incompatibility(attrs.evolve(info, **fields), "alpha", "0.1.0", (3, 11))

    assert expected in words
    assert bool(words) == bool(expected)


def test_the_archive_is_the_same_each_time():
    first = agent_archive()
    agent_archive.cache_clear()

    assert agent_archive() == first


def test_the_archive_needs_nothing_but_pythons_own_library(tmp_path):
    archive = tmp_path / "agent.zip"
    archive.write_bytes(agent_archive()[1])
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); import fiber_ssh.remote.agent"

    assert ran([sys.executable, "-I", "-S", "-c", code]).stderr == ""


def test_patterns_name_files_and_folders_and_a_changed_file_has_another_digest(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name in ("data/a", "data/deep/b", "c.txt", "d.txt"):
        (tmp_path / name).write_text(name)

    def found(*patterns):
        return [file.path for file in find_files(tmp_path, patterns)]

    assert found("data", "c*") == ["c.txt", "data/a", "data/deep/b"]
    assert found("**/*") == ["c.txt", "d.txt", "data/a", "data/deep/b"]
    assert found() == []

    before = find_files(tmp_path, ["c.txt"])
    (tmp_path / "c.txt").write_text("other")
    assert find_files(tmp_path, ["c.txt"]) != before


@pytest.mark.parametrize("pattern", ["/etc/*", "../x", "none/*"])
def test_patterns_that_name_nothing_of_ours_are_errors(tmp_path, pattern):
    with pytest.raises(ConfigError, match="FIBER_SSH_SEND"):
        find_files(tmp_path, [pattern])


ENVIRON = {"SSH_AUTH_SOCK": "/run/usual", "MINE": "/run/mine"}


@pytest.mark.parametrize(
    "wanted, found",
    [
        (None, "/run/usual"),
        ("SSH_AUTH_SOCK", "/run/usual"),
        ("none", None),
        ("None", None),
        ("$MINE", "/run/mine"),
        ("${MINE}", "/run/mine"),
        ("$NOBODYS", None),
        ("/run/another", "/run/another"),
    ],
)
def test_the_socket_of_ssh_agent_is_named_as_in_ssh_config(wanted, found):
    assert agent_socket(wanted, ENVIRON) == found
    assert agent_socket(None, {}) is None


@pytest.mark.parametrize(
    "answer, words",
    [
        (["password"], "accepted, but password is required too"),
        (
            paramiko.BadAuthenticationType("", ["password", "none"]),
            "it accepts password, none only",
        ),
        (paramiko.BadAuthenticationType("", [""]), "it accepts no method"),
        (paramiko.AuthenticationException(), "refused"),
    ],
)
def test_a_host_that_a_key_alone_does_not_open_says_what_else_it_wants(tmp_path, answer, words):
    paramiko.RSAKey.generate(1024).write_private_key_file(str(tmp_path / "key"))
    options = SshOptions(
        name="alpha",
        hostname="10.0.0.7",
        user="root",
        identity_files=(str(tmp_path / "key"),),
        identity_agent="none",
    )
    transport = mock.Mock()
    transport.auth_publickey.side_effect = [answer]
    transport.is_authenticated.return_value = False

    with pytest.raises(BackendUnavailableError) as caught:
        _log_in(transport, options, "alpha")

    assert f"({tmp_path}/key: {words})" in str(caught.value)
