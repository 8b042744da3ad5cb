"""The ssh-agent socket that a user's configuration names."""

import pytest

from fiber_ssh.connect import agent_socket

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
def test_it_is_named_as_in_ssh_config(wanted, found):
    assert agent_socket(wanted, ENVIRON) == found


def test_without_one_in_the_environment_there_is_none():
    assert agent_socket(None, {}) is None
