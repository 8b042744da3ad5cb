"""Which hosts a setting or a file names."""

import pytest

from fiber.exceptions import ConfigError
from fiber_ssh.config import SshConfig
from fiber_ssh.hosts import Host, read_hosts


def hosts(text, **settings):
    return read_hosts(SshConfig(hosts=text, **settings))


def test_a_list_has_hosts_and_their_slots():
    assert hosts("a:8,b:4, c") == (
        Host(name="a", slots=8),
        Host(name="b", slots=4),
        Host(name="c"),
    )


def test_a_list_may_have_users_and_addresses():
    assert hosts("you@a:2 [fe80::1]:3 [::2]") == (
        Host(name="a", user="you", slots=2),
        Host(name="fe80::1", slots=3),
        Host(name="::2"),
    )


def test_settings_are_for_hosts_that_name_nothing(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("a python=/opt/python directory=/data\nb\n")

    one, other = hosts(str(file), python="/usr/bin/python3", directory="/work")

    assert (one.python, one.directory) == ("/opt/python", "/data")
    assert (other.python, other.directory) == ("/usr/bin/python3", "/work")


def test_a_file_has_a_section_for_each_host_and_one_for_all(tmp_path):
    file = tmp_path / "hosts.ini"
    file.write_text(
        "[*]\nuser = you\nenv.Mode = fast\n"
        "[a]\nslots = 8\nport = 2222\nkey = ~/k\naddress = 10.0.0.1\ngpus = 1,0\n"
        "[b]\nuser = other\ngpus = none\nenv.A = b = c\n"
    )

    assert hosts(str(file)) == (
        Host(
            name="a",
            slots=8,
            user="you",
            port=2222,
            key="~/k",
            address="10.0.0.1",
            gpus=(0, 1),
            env={"Mode": "fast"},
        ),
        Host(name="b", user="other", gpus=(), env={"Mode": "fast", "A": "b = c"}),
    )


def test_a_file_may_have_a_line_for_each_host(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# mine\na slots=8 env.X='two words'\n\nb  # no more\n")

    assert hosts(str(file)) == (Host(name="a", slots=8, env={"X": "two words"}), Host(name="b"))


@pytest.mark.parametrize(
    "text,expected",
    [
        ("", "no ssh hosts are named"),
        ("a:x", r"hosts \(a:x\): slots is 'x', expected a whole number"),
        ("a:0", "slots is '0'"),
        ("@a:1", r"expected \[USER@\]HOST\[:SLOTS\]"),
        ("[::1", r"expected \[ADDRESS\]:SLOTS"),
        ("a:1,b:1,a:2", "names a more than once"),
        ("./none.ini", "there is no such file"),
    ],
)
def test_invalid_lists_are_errors(text, expected):
    with pytest.raises(ConfigError, match=expected):
        hosts(text)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("[a]\nslot = 8\n", r"hosts.ini \[a\]: unknown key 'slot', allowed are slots"),
        ("[a]\npassword = x\n", "never read from configuration"),
        ("a passphrase=x\n", "hold a key with a passphrase in ssh-agent"),
        ("[a]\ngpus = all\n", "gpus is 'all'"),
        ("a 8\n", "line 1: '8' is no KEY=VALUE"),
        ("[*]\nslots = 3\n", "names no hosts"),
        ("[a]\n[a]\n", "cannot be read"),
    ],
)
def test_invalid_lines_of_a_file_are_errors_with_their_place(tmp_path, text, expected):
    file = tmp_path / "hosts.ini"
    file.write_text(text)

    with pytest.raises(ConfigError, match=expected):
        hosts(str(file))
