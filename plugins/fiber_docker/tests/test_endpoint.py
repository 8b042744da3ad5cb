"""Which engine is meant, where masters listen for its containers, and what images are called."""

import socket

import attrs
import pytest

from fiber.exceptions import BackendError, SubmitError
from fiber.model import Interface
from fiber_docker import endpoint
from fiber_docker.address import Facts, choose
from fiber_docker.config import DockerConfig
from fiber_docker.images import _parts


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
ALL = (LOOPBACK, ETHERNET, BRIDGE)

DOWN = Interface(name="eth1", address="198.51.100.7", is_up=False)
BRIDGE_DOWN = Interface(name="docker0", address="172.17.0.1", is_up=False)
BRIDGE_OF_6 = Interface(name="docker0", address="fd00::1")
ELSEWHERE = ("tls+tcp://192.0.2.7:0", None)
ON_BRIDGE = ("tls+tcp://172.17.0.1:0", None)
OF_BRIDGE = {"gateways": ("172.17.0.1",)}


@pytest.mark.parametrize(
    "facts, interfaces, expected",
    [
        pytest.param(OF_BRIDGE, ALL, ON_BRIDGE, id="the bridge on the engine's own host"),
        pytest.param(
            {"gateways": ("10.9.9.1",)},
            (LOOPBACK, Interface(name="x7", address="10.9.9.1")),
            ("tls+tcp://10.9.9.1:0", None),
            id="a bridge of any name",
        ),
        pytest.param(
            {"own": ("172.18.0.5",), "gateways": ("172.18.0.1",)},
            (LOOPBACK, Interface(name="eth0", address="172.18.0.5")),
            ("tls+tcp://172.18.0.5:0", None),
            id="a container's own",
        ),
        pytest.param(
            {**OF_BRIDGE, "desktop": True},
            (LOOPBACK, ETHERNET),
            ("tls+tcp://127.0.0.1:0", "host.docker.internal"),
            id="a name in a virtual machine",
        ),
        pytest.param(
            {**OF_BRIDGE, "route": "192.0.2.7"},
            (LOOPBACK, ETHERNET),
            ELSEWHERE,
            id="the route to a remote engine",
        ),
        pytest.param(OF_BRIDGE, (LOOPBACK, ETHERNET), ELSEWHERE, id="what others reach, rootless"),
        pytest.param({"address": "192.0.2.7"}, ALL, ELSEWHERE, id="one of this host that was set"),
        pytest.param(
            {"address": "nat.example"},
            ALL,
            ("tls+tcp://0.0.0.0:0", "nat.example"),
            id="another one that was set",
        ),
        pytest.param(
            OF_BRIDGE,
            (LOOPBACK, BRIDGE_DOWN, ETHERNET),
            ON_BRIDGE,
            id="a bridge that is down for want of containers",
        ),
        pytest.param({}, (LOOPBACK, DOWN, ETHERNET), ELSEWHERE, id="no interface that is down"),
        pytest.param(
            {"address": DOWN.address},
            (LOOPBACK, DOWN, ETHERNET),
            ("tls+tcp://0.0.0.0:0", DOWN.address),
            id="one of an interface that is down is not bound",
        ),
        pytest.param(
            {**OF_BRIDGE, "rootless": True}, ALL, ELSEWHERE, id="not the bridge of a rootless one"
        ),
        pytest.param(
            {**OF_BRIDGE, "route": "192.0.2.7"}, ALL, ELSEWHERE, id="not that of a remote one"
        ),
        pytest.param(
            {"gateways": ("fd00::1",)},
            (BRIDGE_OF_6,),
            ("tls+tcp://[fd00::1]:0", None),
            id="one of the newer protocol",
        ),
    ],
)
def test_the_address_is(facts, interfaces, expected):
    found = choose(Facts(**facts), interfaces)

    assert (found.bind_url, found.advertise_host) == expected


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
