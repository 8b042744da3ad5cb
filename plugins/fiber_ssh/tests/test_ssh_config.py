"""The user's ssh configuration as the manual page has it."""

from pathlib import Path

import pytest

from fiber.exceptions import ConfigError
from fiber_ssh.ssh_config import look_up, run_command


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "me")
    (tmp_path / ".ssh").mkdir()
    return tmp_path


@pytest.fixture
def read(home):
    def look(text, name, **options):
        path = home / ".ssh" / "config"
        path.write_text(text)
        return look_up(path, name, system=None, run=lambda words: run_command(words, 60), **options)

    return look


def test_options_that_are_not_configured_have_defaults(read, home):
    found = read("", "alpha")

    assert (found.hostname, found.user, found.port) == ("alpha", "me", 22)
    assert found.identity_files == ()
    assert found.proxy_jump == ()
    assert found.known_hosts[0] == str(home / ".ssh" / "known_hosts")
    assert found.key_name == "alpha"


def test_a_missing_file_sets_nothing(home):
    assert look_up(home / "none", "alpha", system=None, run=bool).hostname == "alpha"


def test_the_first_value_found_counts(read):
    text = "Host a*\n  Port 1\nHost alpha\n  Port 2\n  User you\nHost *\n  User other\n"

    found = read(text, "alpha")

    assert (found.port, found.user) == (1, "you")


def test_what_comes_before_any_host_is_for_all(read):
    assert read("User you\nHost beta\n  User other\n", "beta").user == "you"


def test_identity_files_add_up(read, home):
    text = "Host alpha\n  IdentityFile ~/one\nHost *\n  IdentityFile %d/two_%r_%h\n  User you\n"

    assert read(text, "alpha").identity_files == (f"{home}/one", f"{home}/two_you_alpha")


@pytest.mark.parametrize(
    "pattern,matches",
    [
        ("alpha", True),
        ("al?ha", True),
        ("*.example", False),
        ("a* !alpha", False),
        ("!beta *", True),
        ("beta alpha", True),
        ("!beta", False),
    ],
)
def test_patterns_of_hosts(read, pattern, matches):
    assert (read(f"Host {pattern}\n  Port 7\n", "alpha").port == 7) is matches


@pytest.mark.parametrize(
    "line", ["Port 7", "port=7", "  PORT = 7  ", 'Port "7"', "\tPort\t7", "Port 7 # seven"]
)
def test_lines_are_written_in_many_ways(read, line):
    assert read(f"# a comment\n\n{line}\n", "alpha").port == 7


def test_files_are_included_where_they_are_named(read, home):
    (home / ".ssh" / "conf.d").mkdir()
    (home / ".ssh" / "conf.d" / "1").write_text("Host alpha\n  HostName one.example\n")
    (home / ".ssh" / "conf.d" / "2").write_text("Host alpha\n  HostName two.example\n  Port 2\n")
    (home / "more").write_text("User you\n")

    found = read("Include conf.d/*\nInclude ~/more none\nHost *\n  Port 3\n", "alpha")

    assert (found.hostname, found.port, found.user) == ("one.example", 2, "you")


def test_a_file_included_for_one_host_is_for_that_host_alone(read, home):
    (home / ".ssh" / "more").write_text("Host *\n  Port 7\n")
    text = "Host beta\n  Include more\nHost *\n  User you\n"

    assert read(text, "alpha").port == 22
    assert read(text, "beta").port == 7


def test_a_file_that_includes_itself_is_an_error(read):
    with pytest.raises(ConfigError, match="does a file include itself"):
        read("Include config\n", "alpha")


@pytest.mark.parametrize(
    "line,matches",
    [
        ("all", True),
        ("host alpha.example", True),
        ("host alpha", False),
        ("originalhost alpha", True),
        ("user you", True),
        ("user me,you", True),
        ("!user you", False),
        ("localuser me", True),
        ("originalhost alpha user other", False),
        ("originalhost alpha user you", True),
        ("host=alpha.example", True),
        ("final", False),
        ('exec "test %n = alpha"', True),
        ('exec "echo of no account; test %n = beta"', False),
        ('!exec "test %n = beta"', True),
    ],
)
def test_blocks_that_match(read, line, matches):
    text = f"HostName %h.example\nUser you\nMatch {line}\n  Port 7\n"

    assert (read(text, "alpha").port == 7) is matches


def test_a_command_that_does_not_end_is_an_error():
    with pytest.raises(ConfigError, match="'Match exec'.*timed out"):
        run_command("sleep 600", 0.1)


def test_jumps_are_in_order_and_none_is_none(read):
    assert read("ProxyJump a, you@b:7\n", "x").proxy_jump == ("a", "you@b:7")
    assert read("ProxyJump none\n", "x").proxy_jump == ()


def test_a_jump_counts_for_more_than_a_command(read):
    assert read("ProxyJump a\nProxyCommand nc %h %p\n", "x").proxy_command is None
    assert read("Port 7\nProxyCommand nc %h %p\n", "x").proxy_command == "nc x 7"


def test_names_of_keys(read):
    assert read("Port 7\n", "x").key_name == "[x]:7"
    assert read("Port 7\nHostKeyAlias y\n", "x").key_name == "y"
    found = read("UserKnownHostsFile ~/k1 ~/k2\nGlobalKnownHostsFile none\n", "x")
    assert [Path(file).name for file in found.known_hosts] == ["k1", "k2"]


def test_a_user_named_beside_the_host_counts_for_more(read):
    assert read("User you\n", "x", user="she").user == "she"


def test_a_port_that_is_none_is_an_error_that_names_the_host(read):
    with pytest.raises(ConfigError, match="port 'http' for x"):
        read("Port http\n", "x")


def test_a_quote_that_is_not_closed_is_an_error_with_its_line(read):
    with pytest.raises(ConfigError, match="config line 2 makes no sense"):
        read('User you\nPort "7\n', "x")
