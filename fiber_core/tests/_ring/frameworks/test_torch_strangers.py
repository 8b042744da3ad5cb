"""Other users of the network, who know every address and port of a ring with torch."""

import datetime as dt
import os
import pickle
import socket
import subprocess
import sys
from base64 import b64encode

import psutil
import pytest

import require
from fiber._ring import frameworks
from fiber._ring.frameworks.torch import Torch
from fiber._ring.model import Member
from fiber.experimental import RingView
from wire_world import Bomb

pytestmark = [pytest.mark.usefixtures("shared_runtime"), pytest.mark.timeout(120)]

#: who dials it is one more host on the network to a socket that listens on 127.0.0.1
NETWORK = "127.0.0.2"

#: what a torchrun does first
MEET = """
import json, os
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

environ = {name[4:].lower(): value for name, value in os.environ.items() if name.startswith("PET_")}
parameters = RendezvousParameters(
    backend=environ["rdzv_backend"], endpoint=environ["rdzv_endpoint"], run_id=environ["rdzv_id"],
    min_nodes=2, max_nodes=2, local_addr=environ.get("local_addr"),
    **dict(pair.split("=") for pair in environ["rdzv_conf"].split(",")),
)
handler = get_rendezvous_handler(parameters)
print("waits", flush=True)
found = handler.next_rendezvous()
print(json.dumps([found.rank, found.world_size]), flush=True)
handler.shutdown()
"""


@pytest.fixture(autouse=True)
def torch():
    require.need_module("torch")


@pytest.fixture
def view():
    """A live ring as its member with rank 0 sees it."""
    first = Member(rank=0, ip="127.0.0.1", port=1, host="a")
    made = RingView(rank=0, members=(first,), name="strange", bounds=(1, 2))
    yield made
    made.close()


@pytest.fixture
def environ(view):
    """Of that member, and of all that it starts."""
    framework = Torch()
    facts = framework.host(view)
    return {
        **frameworks.common_environ(view),
        **framework.environ(view, facts),
        **framework.preferences(view),
        **framework.enter(view, facts),
    }


def ports(*pids):
    """Where processes of a ring listen."""
    return {
        (one.laddr.ip, one.laddr.port)
        for one in psutil.net_connections("inet")
        if one.status == psutil.CONN_LISTEN and one.pid in pids
    }


def is_reached(port):
    """Return True if a port is reached from the network."""
    try:
        socket.create_connection((NETWORK, port), 30).close()
    except ConnectionRefusedError:
        return False
    return True


def store_at(port):
    """Return a store, opened as by any process of this host."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=dt.timedelta(seconds=30))


def test_a_stranger_on_the_network_does_not_reach_the_store(environ):
    port = int(environ["MASTER_PORT"])

    assert not is_reached(port)
    assert {ip for ip, one in ports(os.getpid()) if one == port} == {"127.0.0.1"}
    # as those who start in the member do
    assert environ["MASTER_ADDR"] == "127.0.0.1"
    store_at(port).set("key", "value")
    assert store_at(port).get("key") == b"value"


def agent(environ):
    return subprocess.Popen(
        [sys.executable, "-c", MEET],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_what_a_stranger_writes_is_never_unpickled_by_a_torchrun(environ, tmp_path):
    path = tmp_path / "executed"
    state = b64encode(pickle.dumps(Bomb(str(path))))
    with agent(environ) as one:
        assert one.stdout.readline() == "waits\n"
        listening = {port for _, port in ports(os.getpid(), one.pid)}
        reached = [port for port in listening if is_reached(port)]
        # whoever is on this very host reaches them
        for store in map(store_at, listening):
            store.set(f"torch.rendezvous.{environ['PET_RDZV_ID']}", state)
        with agent(environ) as other:
            output = [line for process in (one, other) for line in process.stdout]

    assert not path.exists()
    assert sorted(line for line in output if line != "waits\n") == ["[0, 2]\n", "[1, 2]\n"]
    assert listening
    assert reached == []
