"""The user's ssh configuration as the manual page has it, and whether a host is the one that is known."""

import paramiko
import pytest

from fiber.exceptions import BackendUnavailableError, ConfigError
from fiber_ssh.connect import KnownHosts
from fiber_ssh.ssh_config import look_up
from supervised import until_gone


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "me")
    (tmp_path / ".ssh").mkdir()
    return tmp_path


@pytest.fixture
def read(home):
    def look(text, name, timeout=60, **options):
        path = home / ".ssh" / "config"
        path.write_text(text)
        return look_up(path, name, timeout, system=None, **options)

    return look


def test_options_that_are_not_configured_have_defaults(read, home):
    found = read("", "alpha")

    assert (found.hostname, found.user, found.port) == ("alpha", "me", 22)
    assert found.identity_files == found.proxy_jump == ()
    assert found.known_hosts[0] == str(home / ".ssh" / "known_hosts")
    assert found.key_name == "alpha"
    assert look_up(home / "none", "alpha", 60, system=None) == found


@pytest.mark.parametrize(
    "text, expected",
    [
        # the first value found counts, and what comes before any host is for all
        ("Host a*\n Port 1\nHost x\n Port 2\n User you\nHost *\n User me", ("port", 2)),
        ("Host a*\n Port 1\nHost x\n Port 2\n User you\nHost *\n User me", ("user", "you")),
        ("User you\nHost x\n User other", ("user", "you")),
        ("ProxyJump a, you@b:7", ("proxy_jump", ("a", "you@b:7"))),
        ("ProxyJump none", ("proxy_jump", ())),
        ("ProxyJump a\nProxyCommand nc %h %p", ("proxy_command", None)),
        ("Port 7\nProxyCommand nc %h %p", ("proxy_command", "nc x 7")),
        ("Port 7", ("key_name", "[x]:7")),
        # lines are written in many ways
        ("# a comment\n\nport=7", ("port", 7)),
        ("  PORT = 7  ", ("port", 7)),
        ('Port "7"', ("port", 7)),
        ("\tPort\t7", ("port", 7)),
        ("Port 7 # seven", ("port", 7)),
        ("IdentitiesOnly TRUE", ("identities_only", True)),
        ("IdentitiesOnly no", ("identities_only", False)),
        ("Port 7\nHostKeyAlias y", ("key_name", "y")),
        ("UserKnownHostsFile /k1 /k2\nGlobalKnownHostsFile none", ("known_hosts", ("/k1", "/k2"))),
    ],
)
def test_options_are_as_in_the_manual(read, text, expected):
    name, value = expected
    assert getattr(read(text, "x"), name) == value


def test_identity_files_add_up(read, home):
    text = "Host alpha\n  IdentityFile ~/one\nHost *\n  IdentityFile %d/two_%r_%h\n  User you\n"

    assert read(text, "alpha").identity_files == (f"{home}/one", f"{home}/two_you_alpha")


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


@pytest.mark.parametrize(
    "line,matches",
    [
        ("Host alpha", True),
        ("Host al?ha", True),
        ("Host *.example", False),
        ("Host a* !alpha", False),
        ("Host !beta *", True),
        ("Host beta alpha", True),
        ("Host !beta", False),
        ("Match all", True),
        ("Match !all", False),
        ("Match localnetwork 10.0.0.0/8", False),
        ("Match !localnetwork 10.0.0.0/8", False),
        ("Match host alpha.example", True),
        ("Match host alpha", False),
        ("Match originalhost alpha", True),
        ("Match user you", True),
        ("Match user me,you", True),
        ("Match !user you", False),
        ("Match localuser me", True),
        ("Match originalhost alpha user other", False),
        ("Match originalhost alpha user you", True),
        ("Match host=alpha.example", True),
        ("Match final", False),
        ('Match exec "test %n = alpha"', True),
        ('Match exec "echo of no account; test %n = beta"', False),
        ('Match !exec "test %n = beta"', True),
    ],
)
def test_blocks_that_match(read, line, matches):
    text = f"HostName %h.example\nUser you\n{line}\n  Port 7\n"

    assert (read(text, "alpha").port == 7) is matches


def test_a_command_that_does_not_end_is_an_error_and_ends_with_all_that_it_started(read, tmp_path):
    with pytest.raises(ConfigError, match="'Match exec'.*timed out"):
        read(f'Match exec "sleep 600 & echo $$ $! > {tmp_path}/pids; wait"', "alpha", timeout=1)
    until_gone(*map(int, (tmp_path / "pids").read_text().split()))


def test_a_user_named_beside_the_host_counts_for_more(read):
    assert read("User you\n", "x", user="she").user == "she"


def test_limits_of_trust_that_are_not_applied_are_named_once(read, caplog, tmp_path):
    (tmp_path / "all").write_text("KexAlgorithms a\nRevokedHostKeys /keys\n")
    for host in "xy":
        read("MACs none\nHost *\n Ciphers aes\nRevokedHostKeys /gone\n", host)
        look_up(tmp_path / "none", host, 60, system=tmp_path / "all")

    user, everybody = [record.getMessage() for record in caplog.records]
    assert "config sets RevokedHostKeys, Ciphers, which Fiber does not apply; write revoked" in user
    assert "all sets RevokedHostKeys, which" in everybody


@pytest.mark.parametrize(
    "text, words",
    [
        ("Include config\n", "does a file include itself"),
        ("Port http\n", "port 'http' for x"),
        ("IdentitiesOnly 1\n", "IdentitiesOnly '1' for x; write yes or no"),
        ('User you\nPort "7\n', "config line 2 makes no sense"),
    ],
)
def test_what_makes_no_sense_is_an_error(read, text, words):
    with pytest.raises(ConfigError, match=words):
        read(text, "x")


@pytest.fixture(scope="module")
def keys():
    return [paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()]


@pytest.fixture
def known(tmp_path):
    def read(name, *lines):
        (tmp_path / "known").write_text("\n".join(lines) + "\n")
        return KnownHosts.read(name, [str(tmp_path / "known"), str(tmp_path / "none")])

    return read


def line(name, key):
    return f"{name} {key.get_name()} {key.get_base64()} a comment"


@pytest.mark.parametrize("name", ["alpha", "beta,alpha", "al*", "* !beta".replace(" ", ",")])
def test_a_known_key_is_accepted(known, keys, name):
    rsa = "ssh-rsa AAAAB3NzaC1yc2EAAAA"
    odd = ["nonsense", f"x {rsa}", f"x {rsa}=", "|1|a|b ssh-ed25519 AAAA", f"@revoked x {rsa}"]
    found = known("alpha", "# mine", "", *odd, line(f" {name}\t", keys[0]))

    found.check(keys[0], "alpha")
    assert found.algorithms == (keys[0].get_name(),)


def test_names_that_are_hashed_are_known_as_well(known, keys):
    hashed = paramiko.HostKeys.hash_host("[alpha]:7")

    known("[alpha]:7", line(hashed, keys[0])).check(keys[0], "alpha")


@pytest.mark.parametrize(
    "names, shown, told",
    [
        (["beta", "!alpha,*", "[alpha]:7"], 0, ["of a is not known", "line to {0}: alpha {1}"]),
        (["alpha"], 1, ["{2}", "{3}", "ssh-keygen -R 'alpha'"]),
        (["alpha", "@revoked  *  "], 0, ["revoked"]),
    ],
    ids=["of other hosts", "another", "revoked"],
)
def test_a_key_that_is_not_the_hosts_is_refused(known, keys, tmp_path, names, shown, told):
    with pytest.raises(BackendUnavailableError) as caught:
        known("alpha", *(line(name, keys[0]) for name in names)).check(keys[shown], "a")

    text = f"{keys[0].get_name()} {keys[0].get_base64()}"
    prints = [key.fingerprint for key in keys]
    for part in told:
        assert part.format(tmp_path / "known", text, *prints) in str(caught.value)
