"""The interfaces of this host, as the system reports them."""

from __future__ import annotations

import ipaddress

from fiber._wire.interfaces import interfaces


def test_the_loopback_is_listed_and_marked():
    found = [one for one in interfaces() if one.address == "127.0.0.1"]
    assert [one.is_loopback for one in found] == [True]
    assert found[0].is_up


def test_every_address_is_numeric_and_has_the_name_of_its_interface():
    for one in interfaces():
        assert one.name
        assert ipaddress.ip_address(one.address.partition("%")[0])


def test_only_addresses_that_stay_on_the_host_are_loopback():
    for one in interfaces():
        assert one.is_loopback == ipaddress.ip_address(one.address.partition("%")[0]).is_loopback


def test_they_are_read_once():
    assert interfaces() is interfaces()
