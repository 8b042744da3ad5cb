"""Where a program listens so that pods reach it."""

import pytest

from fiber.exceptions import BackendError
from fiber.model import Interface
from fiber_k8s.address import choose, is_outside, source_address
from fiber_k8s.config import K8sConfig
from fiber_k8s.in_pod import JOB_VARIABLE

INSIDE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
LOOPBACK = Interface(name="lo", address="127.0.0.1", is_loopback=True)
ETH0 = Interface(name="eth0", address="10.244.0.7")
OTHER = Interface(name="net1", address="192.168.9.7")


def chosen(environ, *interfaces, way=None, **settings):
    return choose(K8sConfig(**settings), environ, interfaces, lambda host, port: way)


def test_in_a_pod_it_is_the_address_that_leads_to_the_api():
    found = chosen(INSIDE, LOOPBACK, OTHER, ETH0, way="10.244.0.7")
    assert (found.bind_url, found.advertise_host) == ("tls+tcp://10.244.0.7:0", None)


def test_an_address_of_the_newer_protocol_is_written_as_such():
    assert chosen(INSIDE, way="fd00::7").bind_url == "tls+tcp://[fd00::7]:0"


def test_without_a_route_it_is_the_first_outward_address():
    assert chosen(INSIDE, LOOPBACK, ETH0).bind_url == "tls+tcp://10.244.0.7:0"


def test_a_pod_without_any_is_an_error_with_the_setting():
    with pytest.raises(BackendError, match="127.0.0.1.*FIBER_K8S_ADDRESS"):
        chosen(INSIDE, LOOPBACK)


def test_outside_only_local_streams_dial_it():
    assert is_outside(K8sConfig(), {})
    assert not is_outside(K8sConfig(), INSIDE)
    assert chosen({}, LOOPBACK, ETH0).bind_url == "tls+tcp://127.0.0.1:0"


def test_an_address_that_was_set_is_bound_where_it_is_ours_and_advertised_where_it_is_not():
    assert chosen({}, ETH0, address="10.244.0.7").bind_url == "tls+tcp://10.244.0.7:0"
    told = chosen({}, ETH0, address="203.0.113.5")
    assert (told.bind_url, told.advertise_host) == ("tls+tcp://0.0.0.0:0", "203.0.113.5")


def test_a_job_has_its_masters_settings_and_another_address():
    found = chosen({**INSIDE, JOB_VARIABLE: "job"}, ETH0, way="10.244.0.7", address="203.0.113.5")
    assert found.bind_url == "tls+tcp://10.244.0.7:0"


def test_a_way_is_found_without_sending_anything():
    assert source_address("127.0.0.1", 9) == "127.0.0.1"
    assert source_address("no.such.host.invalid", 9) is None
