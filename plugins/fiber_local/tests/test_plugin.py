"""Where processes of a local run listen."""

import sys

import pytest

from fiber.model import Peers
from fiber_local.config import LocalConfig
from fiber_local.plugin import CAPABILITIES, fiber_backends, fiber_listen_address

HERE = "unix" if sys.platform == "linux" else "ipc"


def peers(**changes):
    return Peers(same_host=True, directory="/run/fiber/0badcafe", name="m0", **changes)


def test_peers_meet_at_a_socket_in_the_run_directory():
    for config in (None, LocalConfig()):
        address = fiber_listen_address("local", peers(config=config))
        assert address.bind_url == f"{HERE}:///run/fiber/0badcafe/m0.sock"
        assert address.advertise_host is None


def test_the_way_can_be_chosen():
    address = fiber_listen_address("local", peers(config=LocalConfig(transport="ipc")))

    assert address.bind_url == "ipc:///run/fiber/0badcafe/m0.sock"


def test_sockets_of_one_host_can_be_forbidden():
    address = fiber_listen_address("local", peers(config=LocalConfig(transport="tls")))

    assert address.bind_url == "tls+tcp://127.0.0.1:0"


def test_other_backends_answer_for_themselves():
    assert fiber_listen_address("docker", peers()) is None


def test_the_backend_is_announced():
    (info,) = fiber_backends()

    assert (info.name, info.config, info.capabilities) == ("local", LocalConfig, CAPABILITIES)


@pytest.mark.parametrize("value", [-1.0, -0.001])
def test_a_negative_timeout_is_refused(value):
    with pytest.raises(ValueError, match="idle_exit"):
        LocalConfig(idle_exit=value)
