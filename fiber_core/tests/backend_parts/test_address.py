"""Addresses of this host, as the system reports them."""

from fiber.backend_parts.address import interfaces


def test_the_loopback_is_listed_and_marked():
    found = [one for one in interfaces() if one.address == "127.0.0.1"]
    assert [one.is_loopback for one in found] == [True]
    assert found[0].is_up
