"""How addresses behind the hub are written."""

import pytest

from fiber._tunnel.routes import Route, is_route, parse, route_to

ROUTE = "hub+tls+tcp://ab12cd34.0@10.1.2.3:555"


def test_a_route_has_its_parts():
    route = parse(ROUTE)
    assert route == Route("tls+tcp", "ab12cd34.0", "10.1.2.3", 555)
    assert (str(route), route.job, route.direct) == (ROUTE, "ab12cd34", "tls+tcp://10.1.2.3:555")


@pytest.mark.parametrize(
    "url,route",
    [
        ("tls+tcp://10.1.2.3:555", "hub+tls+tcp://me@10.1.2.3:555"),
        ("tls+tcp://0.0.0.0:555", "hub+tls+tcp://me@127.0.0.1:555"),
        ("tls+tcp://[::]:555", "hub+tls+tcp://me@[::1]:555"),
        ("tls+tcp://[fe80::1]:555", "hub+tls+tcp://me@[fe80::1]:555"),
        ("unix:///run/x.sock", None),
    ],
)
def test_ports_have_routes(url, route):
    assert route_to(url, "me") == route


@pytest.mark.parametrize(
    "url",
    ["tls+tcp://10.1.2.3:555", "hub+tls+tcp://a@b:99999", "hub+unix://a@b:1", "hub+tls+tcp://b:1"],
)
def test_other_addresses_have_none(url):
    assert parse(url) is None


def test_routes_of_a_realm_are_routes():
    assert is_route(ROUTE)
    assert is_route("0123456789abcdef@" + ROUTE)
    assert not is_route("0123456789abcdef@tls+tcp://10.1.2.3:555")
