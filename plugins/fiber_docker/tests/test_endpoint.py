"""Which engine is meant, where masters listen for its containers, and what images are called."""

import socket
import types

import attrs
import pytest

from fiber.exceptions import BackendError, SubmitError
from fiber.model import Interface
from fiber_docker import endpoint
from fiber_docker.address import Facts, choose
from fiber_docker.config import DockerConfig
from fiber_docker.images import _parts
from fiber_docker.network import facts_of


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint, "SOCKET", str(tmp_path / "docker.sock"))
    return {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}


CONTEXTS = ".docker/config.json"


@pytest.mark.parametrize(
    "settings, variables, files, expected",
    [
        ({}, {}, {}, False),
        ({"host": "tcp://a:1"}, {}, {}, True),
        ({"context": "there"}, {}, {}, True),
        ({}, {"DOCKER_HOST": "x"}, {}, True),
        ({}, {"DOCKER_CONTEXT": "x"}, {}, True),
        pytest.param({}, {}, {"docker.sock": ""}, True, id="the usual socket"),
        pytest.param({}, {}, {CONTEXTS: '{"currentContext": "there"}'}, True, id="current context"),
        pytest.param({}, {}, {CONTEXTS: "{"}, False, id="what is broken is the SDK's to tell"),
    ],
)
def test_an_engine_is_there_where_something_names_one(
    environ, tmp_path, settings, variables, files, expected
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    found = endpoint.is_visible(DockerConfig(**settings), {**environ, **variables})

    assert found is expected


def test_podmans_socket_is_found(environ, tmp_path, monkeypatch):
    (tmp_path / "podman").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as podman:
        # a path of pytest's may be too long for a socket
        podman.bind("podman/podman.sock")
        assert endpoint.podman_socket(environ) == f"unix://{tmp_path}/podman/podman.sock"
        assert endpoint.is_visible(DockerConfig(), environ)


def test_a_job_that_has_the_engine_finds_it_where_jobs_do_and_others_as_it_is_set():
    config = DockerConfig(host="tcp://far:1", address="10.0.0.1", network="n")
    shared = {endpoint.ENGINE_VARIABLE: endpoint.SHARED_ENGINE}
    alone = {endpoint.ENGINE_VARIABLE: endpoint.NO_ENGINE}

    effective = attrs.evolve(config, host="unix:///var/run/docker.sock", address=None)
    assert endpoint.effective_config(config, shared) == effective
    assert endpoint.effective_config(config, {}) is config
    assert [endpoint.has_no_engine(one) for one in (shared, alone, {})] == [False, True, False]


LOOPBACK = Interface(name="lo", address="127.0.0.1", is_loopback=True)
ETHERNET = Interface(name="eth0", address="192.0.2.7")
BRIDGE = Interface(name="docker0", address="172.17.0.1")
ODD = Interface(name="x7", address="10.9.9.1")
DOWN = Interface(name="eth1", address="198.51.100.7", is_up=False)
BRIDGE_DOWN = Interface(name="docker0", address="172.17.0.1", is_up=False)
BRIDGE_OF_6 = Interface(name="docker0", address="fd00::1")
HOST, ALL = (LOOPBACK, ETHERNET), (LOOPBACK, ETHERNET, BRIDGE)
ELSEWHERE, ON_BRIDGE, ANY = "192.0.2.7", "172.17.0.1", "0.0.0.0"
OF_BRIDGE = {"gateways": ("172.17.0.1",)}
ADDRESSES = {
    "the bridge on the engine's own host": (OF_BRIDGE, ALL, ON_BRIDGE, None),
    "a bridge of any name": ({"gateways": ("10.9.9.1",)}, (LOOPBACK, ODD), "10.9.9.1", None),
    "one that is down for want of containers": (
        OF_BRIDGE,
        (BRIDGE_DOWN, ETHERNET),
        ON_BRIDGE,
        None,
    ),
    "one of the newer protocol": ({"gateways": ("fd00::1",)}, (BRIDGE_OF_6,), "[fd00::1]", None),
    "not that of a rootless engine": ({**OF_BRIDGE, "rootless": True}, ALL, ELSEWHERE, None),
    "not that of a remote one": ({**OF_BRIDGE, "route": "192.0.2.7"}, ALL, ELSEWHERE, None),
    "the route to a remote one": ({**OF_BRIDGE, "route": "192.0.2.7"}, HOST, ELSEWHERE, None),
    "a container's own": ({"own": ("10.9.9.1",), **OF_BRIDGE}, (LOOPBACK, ODD), "10.9.9.1", None),
    "a name in a virtual machine": (
        {**OF_BRIDGE, "desktop": True},
        HOST,
        "127.0.0.1",
        "host.docker.internal",
    ),
    "what others reach, rootless": (OF_BRIDGE, HOST, ELSEWHERE, None),
    "no interface that is down": ({}, (LOOPBACK, DOWN, ETHERNET), ELSEWHERE, None),
    "one of this host that was set": ({"address": "192.0.2.7"}, ALL, ELSEWHERE, None),
    "another one that was set": ({"address": "nat.example"}, ALL, ANY, "nat.example"),
    "one of an interface that is down": ({"address": DOWN.address}, (DOWN,), ANY, DOWN.address),
}


@pytest.mark.parametrize("facts, interfaces, bound, told", ADDRESSES.values(), ids=ADDRESSES)
def test_the_address_is(facts, interfaces, bound, told):
    found = choose(Facts(**facts), interfaces)

    assert (found.bind_url, found.advertise_host) == (f"tls+tcp://{bound}:0", told)


def test_without_a_route_the_error_names_the_setting():
    with pytest.raises(BackendError, match="FIBER_DOCKER_ADDRESS"):
        choose(Facts(gateways=("172.17.0.1",)), (LOOPBACK,))


@pytest.mark.parametrize(
    "image, parts", [("a", ("a", "latest")), (f"a@sha256:{'0' * 64}", ("a", f"sha256:{'0' * 64}"))]
)
def test_a_name_has_a_repository_and_a_tag(image, parts):
    assert _parts(image) == parts


def test_an_invalid_name_is_refused_before_any_call_of_the_engine():
    with pytest.raises(SubmitError, match="small letters"):
        _parts("MyImage")


@pytest.mark.parametrize(
    "folder, snap", [("/var/lib/docker", False), ("/var/snap/docker/common/var-lib-docker", True)]
)
def test_an_engine_that_is_a_snap_is_recognized(folder, snap):
    api = types.SimpleNamespace(
        info=lambda: {"DockerRootDir": folder}, inspect_network=lambda _: {}
    )
    client = types.SimpleNamespace(
        url="unix:///x", call=lambda _, ask: ask(api), inspect=lambda _: {"Id": "1", "Image": "i"}
    )

    assert facts_of(client, DockerConfig()).snap is snap
