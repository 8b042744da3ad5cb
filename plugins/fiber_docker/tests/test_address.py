"""Listen addresses of masters, chosen without an engine."""

import pytest

from fiber.exceptions import BackendError
from fiber.model import Interface
from fiber_docker.address import Facts, choose

LOOPBACK = Interface(name="lo", address="127.0.0.1", is_loopback=True)
ETHERNET = Interface(name="eth0", address="192.0.2.7")
BRIDGE = Interface(name="docker0", address="172.17.0.1")
ALL = (LOOPBACK, ETHERNET, BRIDGE)


def where(facts, interfaces=ALL):
    found = choose(facts, interfaces)
    return found.bind_url, found.advertise_host


def test_on_the_engines_own_host_it_is_the_bridge():
    assert where(Facts(gateways=("172.17.0.1",))) == ("tls+tcp://172.17.0.1:0", None)


def test_the_bridge_is_found_by_its_address_whatever_its_name():
    odd = (LOOPBACK, Interface(name="x7", address="10.9.9.1"))

    assert where(Facts(gateways=("10.9.9.1",)), odd) == ("tls+tcp://10.9.9.1:0", None)


def test_in_a_container_it_is_the_containers_own_address():
    inside = (LOOPBACK, Interface(name="eth0", address="172.18.0.5"))

    found = where(Facts(own=("172.18.0.5",), gateways=("172.18.0.1",)), inside)

    assert found == ("tls+tcp://172.18.0.5:0", None)


def test_from_a_virtual_machine_the_host_has_a_name():
    facts = Facts(gateways=("172.17.0.1",), desktop=True)

    assert where(facts, (LOOPBACK, ETHERNET)) == ("tls+tcp://127.0.0.1:0", "host.docker.internal")


def test_jobs_of_a_remote_engine_dial_the_address_on_the_route_to_it():
    facts = Facts(gateways=("172.17.0.1",), route="192.0.2.7")

    assert where(facts, (LOOPBACK, ETHERNET)) == ("tls+tcp://192.0.2.7:0", None)


def test_a_rootless_engine_reaches_what_others_reach():
    facts = Facts(gateways=("172.17.0.1",))

    assert where(facts, (LOOPBACK, ETHERNET)) == ("tls+tcp://192.0.2.7:0", None)


def test_an_address_of_this_host_that_was_set_is_bound():
    assert where(Facts(address="192.0.2.7")) == ("tls+tcp://192.0.2.7:0", None)


def test_another_address_that_was_set_is_advertised():
    assert where(Facts(address="nat.example")) == ("tls+tcp://0.0.0.0:0", "nat.example")


def test_a_bridge_that_has_no_container_yet_is_down_and_meant_all_the_same():
    down = Interface(name="docker0", address="172.17.0.1", is_up=False)

    found = where(Facts(gateways=("172.17.0.1",)), (LOOPBACK, down, ETHERNET))

    assert found == ("tls+tcp://172.17.0.1:0", None)


def test_another_interface_that_is_down_is_none():
    down = Interface(name="eth1", address="198.51.100.7", is_up=False)

    assert where(Facts(), (LOOPBACK, down, ETHERNET)) == ("tls+tcp://192.0.2.7:0", None)


@pytest.mark.parametrize("another", [{"rootless": True}, {"route": "192.0.2.7"}])
def test_the_bridge_of_another_engine_may_have_the_same_address(another):
    found = where(Facts(gateways=("172.17.0.1",), **another))

    assert found == ("tls+tcp://192.0.2.7:0", None)


def test_without_a_route_the_error_names_the_setting():
    with pytest.raises(BackendError, match="FIBER_DOCKER_ADDRESS"):
        choose(Facts(gateways=("172.17.0.1",)), (LOOPBACK,))


def test_an_address_of_the_newer_protocol_is_written_as_such():
    interface = Interface(name="docker0", address="fd00::1")

    assert where(Facts(gateways=("fd00::1",)), (interface,)) == ("tls+tcp://[fd00::1]:0", None)
