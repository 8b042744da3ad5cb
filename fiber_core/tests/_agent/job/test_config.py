"""What the supervisor of a job is told, and where it finds its parent."""

import pytest

from fiber._agent.instructions import Instructions
from fiber._agent.job.config import Orders, supervisor_ident
from fiber._agent.job.main import reaching
from fiber._base import values
from fiber._wire.identity import Credentials
from fiber.exceptions import StartError

INSTRUCTIONS = Instructions(
    credentials=Credentials.new(),
    urls=("tls+tcp://10.0.0.1:5000", "tls+tcp://10.1.0.1:5000"),
    ident="0a1b2c3d",
    directory="/run/x",
    processes=2,
    max_frame=2**22,
)
ORDERS = Orders(
    instructions=INSTRUCTIONS, name="a job", lease=30.0, silence=None, cpu=0.5, memory=100
)


def test_they_come_as_they_were():
    assert Orders.decode(ORDERS.encode()) == ORDERS


def test_the_secret_is_in_no_text_of_them():
    assert INSTRUCTIONS.credentials.key.hex() not in repr(ORDERS)


def test_without_a_way_the_parent_is_dialled_where_it_says():
    assert ORDERS.by_way_of("") == ORDERS


def test_with_one_it_is_dialled_there_first_and_by_everybody():
    told = ORDERS.by_way_of("127.0.0.1:99").instructions
    assert told.urls == ("tls+tcp://127.0.0.1:99", *INSTRUCTIONS.urls)
    assert told.forwards == {INSTRUCTIONS.urls[0]: "tls+tcp://127.0.0.1:99"}
    assert values.evolve(told, urls=INSTRUCTIONS.urls, forwards={}) == INSTRUCTIONS


def test_who_dials_is_not_told_of_streams():
    route = "hub+tls+tcp://0badcafe@127.0.0.1:5000"
    both = values.evolve(INSTRUCTIONS, urls=(route, *INSTRUCTIONS.urls))
    orders = values.evolve(ORDERS, instructions=both)
    assert orders.by_way_of("") == ORDERS
    assert orders.by_way_of("127.0.0.1:99") == ORDERS.by_way_of("127.0.0.1:99")


def test_what_is_reached_by_streams_is_dialled_where_they_are_joined():
    route = "hub+tls+tcp://0badcafe@127.0.0.1:5000"
    orders = values.evolve(
        ORDERS, instructions=values.evolve(INSTRUCTIONS, urls=(INSTRUCTIONS.urls[0], route))
    )
    ways = {route: "tls+tcp://127.0.0.1:99"}
    told = orders.by_landing(lambda url: ways.get(url, url)).instructions
    assert told.urls == (INSTRUCTIONS.urls[0], "tls+tcp://127.0.0.1:99")
    assert told.forwards == {route: "tls+tcp://127.0.0.1:99"}
    assert told.landing


def test_loopback_of_the_parents_host_is_not_dialled_where_there_are_streams():
    route = "hub+tls+tcp://0badcafe@127.0.0.1:5000"
    urls = ("tls+tcp://127.0.0.1:5000", route)
    orders = values.evolve(ORDERS, instructions=values.evolve(INSTRUCTIONS, urls=urls))
    assert orders.by_landing(lambda url: f"way to {url}").instructions.urls == (f"way to {route}",)


def test_a_parent_that_nobody_can_dial_needs_streams():
    only = values.evolve(INSTRUCTIONS, urls=("hub+tls+tcp://0badcafe@127.0.0.1:5000",))
    with pytest.raises(StartError, match="FIBER_REACH"):
        reaching(values.evolve(ORDERS, instructions=only), "")


def test_the_platforms_grace_is_what_the_backend_says():
    assert ORDERS.with_grace("").grace is None
    assert ORDERS.with_grace("30").grace == 30.0
    assert ORDERS.with_grace("0.5").grace == 0.5


@pytest.mark.parametrize("given", ["soon", "30s", "nan", "-1"])
def test_a_grace_that_is_no_number_of_seconds_is_refused(given):
    with pytest.raises(StartError, match="FIBER_GRACE"):
        ORDERS.with_grace(given)


def test_a_supervisor_has_an_identity_of_its_own():
    assert supervisor_ident("0a1b2c3d") not in {INSTRUCTIONS.ident_of(index) for index in range(2)}
