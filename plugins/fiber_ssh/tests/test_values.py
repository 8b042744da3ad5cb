"""Pure functions: addresses, sockets, statuses, compatibility, and files to send."""

import queue

import paramiko
import pytest

from fiber.exceptions import ConfigError
from fiber.model import Interface, JobState, ListenAddress, Peers, Reason, ReasonKind
from fiber_ssh import agent_link
from fiber_ssh.address import ADDRESS_VARIABLE, UNREACHABLE, listen_address
from fiber_ssh.agent_archive import agent_archive
from fiber_ssh.compatibility import incompatibility
from fiber_ssh.config import SshConfig
from fiber_ssh.connect import agent_socket
from fiber_ssh.exec_channel import HostInfo
from fiber_ssh.files import find_files
from fiber_ssh.status import job_of, status_of

ETH = Interface(name="eth0", address="10.0.0.5")
LO = Interface(name="lo", address="127.0.0.1", is_loopback=True)
SIX = Interface(name="eth0", address="fd00::5")
LOCAL = Interface(name="eth0", address="fe80::5%eth0")
DOWN = Interface(name="eth1", address="10.1.0.5", is_up=False)


def peers(**fields):
    environ = fields.pop("environ", {})
    return Peers(
        same_host=False, directory="/run", name="x", config=SshConfig(**fields), environ=environ
    )


@pytest.mark.parametrize(
    "given,interfaces,bind,host",
    [
        ({}, [LO, DOWN, LOCAL, SIX, ETH], "tls+tcp://0.0.0.0:0", "10.0.0.5"),
        ({}, [LO, SIX], "tls+tcp://[::]:0", "fd00::5"),
        ({}, [LO], "tls+tcp://127.0.0.1:0", None),
        ({"address": "me.example"}, [ETH], "tls+tcp://0.0.0.0:0", "me.example"),
        ({"reach": "reversed"}, [ETH], "tls+tcp://127.0.0.1:0", None),
    ],
)
def test_where_the_program_listens(given, interfaces, bind, host):
    found = listen_address(peers(**given), interfaces)

    assert found == ListenAddress(bind_url=bind, advertise_host=host, routed=True)


@pytest.mark.parametrize("reach", ["auto", "direct", "reversed"])
def test_jobs_listen_where_their_host_was_reached(reach):
    found = listen_address(peers(reach=reach, environ={ADDRESS_VARIABLE: "10.9.0.1"}), [ETH])

    assert (found.bind_url, found.advertise_host) == ("tls+tcp://0.0.0.0:0", "10.9.0.1")
    assert found.routed == (reach != "direct")


def test_jobs_that_others_cannot_dial_listen_for_their_own_host_alone():
    found = listen_address(peers(environ={ADDRESS_VARIABLE: UNREACHABLE}), [ETH])

    assert (found.bind_url, found.advertise_host) == ("tls+tcp://127.0.0.1:0", None)


def test_streams_are_not_offered_where_all_hosts_are_to_dial():
    found = listen_address(peers(reach="direct"), [ETH])

    assert found == ListenAddress(bind_url="tls+tcp://0.0.0.0:0", advertise_host="10.0.0.5")


RECORD = {
    "id": "0badcafe-1",
    "run": "0badcafe",
    "name": "x",
    "argv": ["a", "b"],
    "submitted": 1.5,
    "detached": False,
}


def test_a_record_is_a_job_and_its_status():
    record = {**RECORD, "state": "failed", "pid": 7, "reason": ["signal", 9], "code": -9, "peak": 4}

    job, status = job_of(record, "ssh", "alpha"), status_of(record, "alpha")

    assert (job.id, job.run_id, job.argv, job.data) == (
        "0badcafe-1",
        "0badcafe",
        ("a", "b"),
        {"host": "alpha"},
    )
    assert (status.state, status.exit_code, status.host) == (JobState.FAILED, -9, "alpha")
    assert status.reason == Reason(ReasonKind.SIGNAL, 9)
    assert (status.processes[0].pid, status.processes[0].peak_memory) == (7, 4)


def test_words_of_another_version_are_unknown_and_no_error():
    status = status_of({**RECORD, "state": "dreaming", "reason": ["tired", None]}, "alpha")

    assert status.state is JobState.UNKNOWN
    assert status.reason == Reason(ReasonKind.UNKNOWN)


def info(**fields):
    values = {
        "python": (3, 11, 2),
        "executable": "/usr/bin/python3",
        "fiber": "0.1.0",
        "hostname": "a",
        "archive": "/x",
        "root": "/",
        "cpus": 4,
        "memory": 100,
        "ssh_address": None,
        "client_address": None,
    }
    return HostInfo(**{**values, **fields})


def test_a_host_with_the_same_versions_is_fit():
    assert incompatibility(info(), "alpha", "0.1.0", (3, 11)) == ""


@pytest.mark.parametrize(
    "fields,expected",
    [
        (
            {"fiber": None},
            "no fiber; run: ssh alpha /usr/bin/python3 -m pip install fiber-core==0.1.0",
        ),
        ({"fiber": "0.0.9"}, "has fiber-core 0.0.9, and this program 0.1.0; run: ssh alpha"),
        ({"python": (3, 10, 1)}, "is Python 3.10, and this program runs on 3.11"),
    ],
)
def test_an_incompatible_host_is_reported_with_the_fix(fields, expected):
    assert expected in incompatibility(info(**fields), "alpha", "0.1.0", (3, 11))


def test_the_archive_is_the_same_each_time_and_small():
    first = agent_archive()
    agent_archive.cache_clear()

    assert agent_archive() == first
    assert len(first[1]) < 40_000


def test_patterns_name_files_and_folders(tmp_path):
    (tmp_path / "data" / "deep").mkdir(parents=True)
    for name in ("data/a", "data/deep/b", "c.txt", "d.txt"):
        (tmp_path / name).write_text(name)

    assert [f.path for f in find_files(tmp_path, ["data", "c*"])] == [
        "c.txt",
        "data/a",
        "data/deep/b",
    ]
    assert [f.path for f in find_files(tmp_path, ["**/*"])] == [
        "c.txt",
        "d.txt",
        "data/a",
        "data/deep/b",
    ]
    assert find_files(tmp_path, []) == ()


def test_a_changed_file_has_another_digest(tmp_path):
    (tmp_path / "a").write_text("one")
    before = find_files(tmp_path, ["a"])
    (tmp_path / "a").write_text("other")

    assert find_files(tmp_path, ["a"]) != before


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


class Cut:
    """A channel whose connection is gone, with paramiko's exceptions."""

    def __init__(self, error):
        self.error = error

    def sendall(self, data):
        raise self.error


@pytest.mark.parametrize(
    "error", [OSError("Socket is closed"), EOFError(), paramiko.SSHException()]
)
def test_a_writer_ends_and_leaves_the_error_to_the_reader(error):
    out = queue.SimpleQueue()
    for _ in range(2):
        out.put(b"data")

    agent_link._write(Cut(error), out)

    assert out.qsize() == 1
