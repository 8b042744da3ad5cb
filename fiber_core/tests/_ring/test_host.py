"""The host that a member reports: key and addresses."""

import socket

from fiber._ring.member import addresses, this_host
from fiber.model import Interface


def test_hosts_of_the_same_name_have_different_keys():
    assert this_host() == this_host()
    assert this_host().name == socket.gethostname()


def test_loopback_comes_last_and_what_is_down_or_newer_not_at_all():
    found = addresses(
        [
            Interface(name="lo", address="127.0.0.1", is_loopback=True),
            Interface(name="down", address="10.1.0.1", is_up=False),
            Interface(name="local", address="169.254.0.1"),
            Interface(name="eth0", address="fe80::1%eth0"),
            Interface(name="docker0", address="172.17.0.1"),
            Interface(name="eth0", address="10.0.0.1"),
        ]
    )

    assert [(one.interface, one.ip) for one in found] == [
        ("docker0", "172.17.0.1"),
        ("eth0", "10.0.0.1"),
        ("local", "169.254.0.1"),
        ("lo", "127.0.0.1"),
    ]


def test_the_address_by_which_the_parent_is_reached_comes_first():
    local = [
        Interface(name="a", address="127.0.0.2"),
        Interface(name="b", address="127.0.0.1"),
    ]

    assert addresses(local, "tls+tcp://127.0.0.1:5")[0].ip == "127.0.0.1"
    assert addresses(local, "unix:///tmp/x")[0].ip == "127.0.0.2"
    assert addresses(local, "tls+tcp://[nonsense:5")[0].ip == "127.0.0.2"
