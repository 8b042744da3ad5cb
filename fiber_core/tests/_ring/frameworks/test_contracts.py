"""Variables of each framework, as its own documentation names them."""

import contextlib
import json
import socket
import struct
import types
import urllib.error
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from commands import ran
from distributions import Answers
from fiber._plugins.manager import load_plugins
from fiber._ring import frameworks
from fiber._ring.frameworks import RingFramework, find_framework, torchrun
from fiber._ring.frameworks.horovod import RendezvousServer, Store
from fiber._ring.frameworks.torchrun import VersionedState
from fiber._ring.model import Member, RingTiming
from fiber._ring.ring import Ring
from fiber._ring.view import RingView
from fiber._runtime import runtime
from fiber.exceptions import PluginClashError


def member(rank, host, local_rank, local_size, node):
    return Member(
        rank=rank,
        ip=f"10.0.0.{node + 1}",
        port=4000 + rank,
        host=host,
        local_rank=local_rank,
        local_size=local_size,
        node=node,
        nodes=2,
        interface="eth0",
    )


#: two ranks on the first host, one on the second
MEMBERS = (member(0, "a", 0, 2, 0), member(1, "a", 1, 2, 0), member(2, "b", 0, 1, 1))

#: of rank 0, where nobody asks for a store
FACTS = {"port": 29, "pipes": None}


def ring(rank):
    return RingView(rank=rank, members=MEMBERS, restarts=2, round=4, name="r")


def variables(name, rank, **facts):
    return find_framework(name).environ(ring(rank), facts)


def test_whatever_the_framework_every_member_knows_its_place():
    assert frameworks.common_environ(ring(2)) == {
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "NODE_RANK": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4000",
        "FIBER_RING_NAME": "r",
        "FIBER_RING_ROUND": "4",
        "FIBER_RING_RESTARTS": "2",
    }


TORCHRUN = {
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "1",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "10.0.0.1",
    "PET_MASTER_PORT": "4000",
    "PET_RDZV_ID": "r.4",
    "PET_RDZV_BACKEND": "fiber",
}
CONTRACTS = {
    "torch": {
        # on rank 0's host the store itself, on others the port that enter() opens
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "r.4",
        **TORCHRUN,
    },
    "jax": {
        # as torch's
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:29",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "1",
    },
    "horovod": {
        "HOROVOD_HOSTNAME": "a",
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "3",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        # only the first host has a second rank
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        # each member's own server, whose port enter() knows
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    },
    "xgboost": {
        "DMLC_TRACKER_URI": "10.0.0.1",
        "DMLC_TRACKER_PORT": "29",
        "DMLC_NUM_WORKER": "3",
        "DMLC_TASK_ID": "1",
    },
}


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_member_has_the_variables_of_its_framework(name):
    assert variables(name, 1, uri="10.0.0.1", port=29) == CONTRACTS[name]


def test_further_members_have_theirs():
    assert variables("horovod", 2)["HOROVOD_CROSS_RANK"] == "1"
    assert json.loads(variables("tensorflow", 2)["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.1:4000", "10.0.0.1:4001", "10.0.0.2:4002"]},
        "task": {"type": "worker", "index": 2},
    }
    found = variables("mxnet", 2)
    assert (found["DMLC_PS_ROOT_URI"], found["DMLC_PS_ROOT_PORT"]) == ("10.0.0.1", "4000")
    assert (found["DMLC_ROLE"], found["DMLC_NUM_WORKER"]) == ("worker", "3")


@pytest.mark.parametrize("name", ["mpi", "deepspeed"])
def test_hostfiles_have_a_line_a_host_and_go_with_the_ring(name):
    seen = ring(0)

    found = find_framework(name).enter(seen, FACTS)
    path = Path(found["FIBER_RING_HOSTFILE"])

    assert path.read_text() == "10.0.0.1 slots=2\n10.0.0.2 slots=1\n"
    if name == "mpi":
        # it has the other syntax too
        machines = Path(found["FIBER_RING_MACHINEFILE"])
        assert machines.read_text() == "10.0.0.1:2\n10.0.0.2:1\n"
    seen.close()
    assert not path.exists()


@pytest.mark.parametrize("name", ["tensorflow", "mxnet", "xgboost"])
def test_servers_that_ask_nobody_for_a_key_are_opened_on_request_alone(name, caplog):
    with pytest.raises(ValueError, match=r"over the network is asked for no key.*open_ports=True"):
        Ring(1, print, framework=name)
    Ring(1, print, framework=name, open_ports=True)
    assert "is asked for no key" in caplog.text


@pytest.mark.parametrize("name", ["mpi", "deepspeed", "horovod"])
def test_elastic_launchers_get_the_current_hosts(name):
    seen, framework = ring(0), find_framework(name)
    script = framework.enter(seen, FACTS)["FIBER_RING_DISCOVER_HOSTS"]
    assert ask(script) == ["10.0.0.1:2", "10.0.0.2:1"]
    before = Path(script).stat().st_ino

    seen.changed(0, MEMBERS[:1], 1)
    framework.changed(seen)

    assert ask(script) == ["10.0.0.1:2"]
    # another file in its place: who reads the old one reads the whole of it
    assert Path(script).stat().st_ino != before
    assert {path.name for path in seen.folder.iterdir() if path.is_file()} == {
        *("discover_hosts.sh", "hostfile", "machinefile")
    }
    seen.close()


def ask(script):
    """As Horovod's elastic launcher asks it: it is run, and each line is a host with its slots."""
    return ran([script], check=True).stdout.split()


def test_an_elastic_torchrun_gets_the_bounds():
    seen = RingView(rank=2, members=MEMBERS, round=4, name="r", bounds=(2, 5))
    torch = find_framework("torch")

    found = torch.environ(seen, {"port": 29})

    assert {name: found[name] for name in found if name.startswith("PET_")} == {
        **TORCHRUN,
        "PET_NNODES": "2:5",
        "PET_NODE_RANK": "2",
        "PET_LOCAL_ADDR": "10.0.0.2",
    }
    assert "last_call_timeout=5" in torch.preferences(seen)["PET_RDZV_CONF"]
    assert torch.preferences(ring(0)) == {}


class Mine(RingFramework):
    name = "mine"

    def environ(self, ring, facts):
        return {"MINE": str(ring.rank)}


def installed(monkeypatch, *offered):
    plugins = [Answers("fiber_ring_frameworks", [one]) for one in offered]
    found = load_plugins(entry_points=[], extra=plugins)
    monkeypatch.setattr(runtime.Runtime, "plugins", property(lambda _: found))
    return found


def test_a_plugin_offers_its_own_and_two_of_one_name_are_an_error(monkeypatch):
    installed(monkeypatch, Mine())

    assert isinstance(find_framework("mine"), Mine)
    assert "torch" in frameworks.frameworks()
    installed(monkeypatch, Mine(), Mine())
    with pytest.raises(PluginClashError, match="both offer the framework 'mine'"):
        find_framework("mine")


def test_a_plugin_that_returns_other_objects_is_reported_and_ignored(monkeypatch):
    plugins = installed(monkeypatch, "torch")

    assert find_framework("jax").name == "jax"
    assert any("RingFramework" in str(one.error) for one in plugins.broken)


def request(port, method, path, data=None):
    asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, method=method)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return answer.read()


@pytest.mark.usefixtures("shared_runtime")
def test_what_a_rank_puts_others_get_by_their_own_loopback_and_no_other_host_does():
    horovod, first = find_framework("horovod"), Member(rank=0, ip="127.0.0.2", port=1, host="a")
    with contextlib.closing(RingView(rank=0, members=(first,))) as view:
        facts = horovod.host(view)
        entered = [horovod.enter(view, facts) for _ in range(2)]
        put, get = [int(environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]) for environ in entered]
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            request(get, "GET", "/global/0")
        # the error is the answer, too
        caught.value.close()
        request(put, "PUT", "/global/0", b"a b")
        request(put, "DELETE", "/global/0")
        assert request(get, "GET", "/global/0") == b"a b"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((first.ip, put))


@pytest.mark.parametrize(
    "length, told",
    [
        (b"many", b"HTTP/1.1 400"),
        (b"-1", b"HTTP/1.1 400"),
        (b"9999999999", b"HTTP/1.1 413"),
        (b"4", b""),
        # of another user
        (b"0", b"HTTP/1.1 403"),
    ],
)
def test_a_request_that_is_none_ends(monkeypatch, length, told):
    monkeypatch.setattr("fiber._ring.frameworks.horovod.may_connect", lambda _: b"403" not in told)
    server = RendezvousServer(Store(1).answer, RingTiming(request=0.1))
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(b"PUT /a HTTP/1.1\r\nContent-Length: %b\r\n\r\n" % length)
        assert client.makefile("rb").read(12) == told
    server.close()


def test_who_says_nothing_takes_no_more_than_so_many_threads():
    server = RendezvousServer(Store(1).answer, RingTiming())
    with contextlib.ExitStack() as stack:
        address = "127.0.0.1", server.port
        clients = [stack.enter_context(socket.create_connection(address, 60)) for _ in range(65)]
        assert clients[-1].recv(1) == b""
    server.close()


@pytest.mark.parametrize("size, most", [(0, 1 << 10), (1 << 20, 63)])
def test_a_store_takes_no_more_than_its_ranks_need(size, most):
    store = Store(1)
    answers = [store.answer(b"PUT /%d " % n + bytes(size)) for n in range(most + 1)]
    assert answers == [b"200 "] * most + [b"507 "]
    # what it has is replaced
    assert store.answer(b"PUT /0 " + bytes(size)) == b"200 "


def exchange(state, version=None, new=b""):
    """Send a request of torchrun: returns whether the state was replaced, version and state."""
    answer = state.answer(struct.pack("<?Q", version is not None, version or 0) + new)
    is_set, found, connected = struct.unpack_from("<?QQ", answer)
    assert connected == 0
    return is_set, found, answer[17:]


def test_a_state_is_replaced_only_with_the_last_version():
    state = VersionedState()

    assert exchange(state) == (False, 0, b"")
    assert exchange(state, 0, b"a") == (True, 1, b"a")
    assert exchange(state, 0, b"b") == (False, 1, b"a")
    assert exchange(state, 1, b"b") == (True, 2, b"b")
    assert exchange(state) == (False, 2, b"b")


def test_torchruns_learn_how_many_are_connected():
    state = VersionedState()
    with state.connected(), state.connected():
        answer = state.answer(struct.pack("<?Q", False, 0))

    assert struct.unpack_from("<?QQ", answer)[2] == 2
    assert exchange(state) == (False, 0, b"")


def made(endpoint, nodes):
    """As torchrun makes it."""
    (found,) = entry_points(group="torchrun.handlers", name=torchrun.NAME)
    parameters = types.SimpleNamespace(endpoint=endpoint, max_nodes=nodes, run_id="r.1")
    return found.load()()(parameters)


@pytest.mark.parametrize(
    "endpoint, told",
    [
        ("localhost:29400", "PET_RDZV_ENDPOINT; 'localhost:29400' is none"),
        (torchrun.endpoint("/s", 2), "given 2 nodes, and rank 2 of the ring is none of them"),
    ],
    ids=["in no ring", "fewer nodes than the ring"],
)
def test_a_torchrun_that_is_no_members_is_an_error(endpoint, told):
    with pytest.raises(ValueError, match=told):
        made(endpoint, 2)


def test_a_member_that_runs_one_alone_has_its_only_rank():
    assert made(torchrun.endpoint("/s", 2), 1).get_backend() == "fiber"
