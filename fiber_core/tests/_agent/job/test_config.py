"""The configuration of a job's supervisor, and the addresses of its parent."""

import pytest

from fiber._agent.instructions import Instructions
from fiber._agent.job.config import SupervisorConfig
from fiber._agent.job.main import choose_route
from fiber._base import values
from fiber._wire.identity import Credentials
from fiber.exceptions import StartError

ROUTE = "hub+tls+tcp://0badcafe@127.0.0.1:5000"
INSTRUCTIONS = Instructions(
    credentials=Credentials.new(),
    urls=("tls+tcp://10.0.0.1:5000", "tls+tcp://10.1.0.1:5000"),
    ident="0a1b2c3d",
    directory="/run/x",
    processes=2,
    max_frame=2**22,
)
CONFIG = SupervisorConfig(
    instructions=INSTRUCTIONS, name="a job", lease=30.0, silence=None, cpu=0.5, memory=100
)


def test_they_come_as_they_were_and_the_secret_is_in_no_text_of_them():
    assert SupervisorConfig.decode(CONFIG.encode()) == CONFIG
    assert INSTRUCTIONS.credentials.key.hex() not in repr(CONFIG)


def at(*urls):
    """The configuration where the parent has other addresses."""
    return values.evolve(CONFIG, instructions=values.evolve(INSTRUCTIONS, urls=urls))


def test_with_a_route_the_parent_is_dialled_there_first_and_by_everybody():
    assert CONFIG.via_address("") == CONFIG
    instructions = CONFIG.via_address("127.0.0.1:99").instructions
    assert instructions.urls == ("tls+tcp://127.0.0.1:99", *INSTRUCTIONS.urls)
    assert instructions.forwards == {INSTRUCTIONS.urls[0]: "tls+tcp://127.0.0.1:99"}
    assert values.evolve(instructions, urls=INSTRUCTIONS.urls, forwards={}) == INSTRUCTIONS


@pytest.mark.parametrize("reach", ["", "127.0.0.1:99"])
def test_a_job_that_dials_gets_no_routes(reach):
    assert at(ROUTE, *INSTRUCTIONS.urls).via_address(reach) == CONFIG.via_address(reach)


def test_what_is_reached_by_streams_is_dialled_where_they_are_joined():
    ways = {ROUTE: "tls+tcp://127.0.0.1:99"}
    config = at(INSTRUCTIONS.urls[0], ROUTE)
    instructions = config.via_tunnel(lambda url: ways.get(url, url)).instructions
    assert instructions.urls == (INSTRUCTIONS.urls[0], "tls+tcp://127.0.0.1:99")
    assert instructions.forwards == {ROUTE: "tls+tcp://127.0.0.1:99"}
    assert instructions.tunnelled


def test_loopback_of_the_parents_host_is_not_dialled_where_there_are_streams():
    config = at("tls+tcp://127.0.0.1:5000", ROUTE)
    urls = config.via_tunnel(lambda url: f"way to {url}").instructions.urls
    assert urls == (f"way to {ROUTE}",)


@pytest.mark.parametrize("given, grace", [("", None), ("30", 30.0), ("0.5", 0.5)])
def test_the_platforms_grace_comes_from_the_backend(given, grace):
    assert CONFIG.with_grace(given).grace == grace


@pytest.mark.parametrize("given", ["soon", "30s", "nan", "-1"])
def test_a_grace_that_is_no_number_of_seconds_is_refused(given):
    with pytest.raises(StartError, match="FIBER_GRACE"):
        CONFIG.with_grace(given)


def test_a_parent_that_cannot_be_dialled_needs_streams():
    with pytest.raises(StartError, match="FIBER_REACH"):
        choose_route(at(ROUTE), "")
