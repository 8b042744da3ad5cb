"""Whether a host is the one that is known."""

import paramiko
import pytest

from fiber.exceptions import BackendUnavailableError
from fiber_ssh.known_hosts import KnownHosts


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
    found = known("alpha", "# mine", "", line(name, keys[0]), "nonsense")

    found.check(keys[0], "alpha")
    assert found.algorithms == (keys[0].get_name(),)


def test_names_that_are_hashed_are_known_as_well(known, keys):
    hashed = paramiko.HostKeys.hash_host("[alpha]:7")

    known("[alpha]:7", line(hashed, keys[0])).check(keys[0], "alpha")


@pytest.mark.parametrize("name", ["beta", "!alpha,*", "[alpha]:7"])
def test_a_key_of_another_host_is_not_this_ones(known, keys, name):
    with pytest.raises(BackendUnavailableError, match="the key of alpha is not known"):
        known("alpha", line(name, keys[0])).check(keys[0], "alpha")


def test_an_unknown_key_is_refused_with_the_line_to_add(known, keys, tmp_path):
    with pytest.raises(BackendUnavailableError) as caught:
        known("[alpha]:7").check(keys[0], "a")

    text = f"{keys[0].get_name()} {keys[0].get_base64()}"
    assert f"add this line to {tmp_path}/known: [alpha]:7 {text}" in str(caught.value)


def test_another_key_is_refused_with_both_fingerprints(known, keys):
    with pytest.raises(BackendUnavailableError) as caught:
        known("alpha", line("alpha", keys[0])).check(keys[1], "alpha")

    assert keys[0].fingerprint in str(caught.value)
    assert keys[1].fingerprint in str(caught.value)
    assert "ssh-keygen -R 'alpha'" in str(caught.value)


def test_a_revoked_key_is_refused_also_if_it_is_known(known, keys):
    found = known("alpha", line("alpha", keys[0]), "@revoked " + line("*", keys[0]))

    with pytest.raises(BackendUnavailableError, match="revoked"):
        found.check(keys[0], "alpha")
