"""Hosts to reach by ssh, made once for all tests, and backends that use them."""

import functools
import secrets
from pathlib import Path

import attrs
import pytest

from fiber._agent import rundir
from fiber.model import BackendContext
from fiber_ssh.agent_link import AgentLink
from fiber_ssh.backend import SshBackend
from fiber_ssh.config import SshConfig, SshTiming
from making import making
from ssh_hosts import ssh_hosts
from ssh_programs import Master


@pytest.fixture(scope="session")
def world():
    with ssh_hosts("alpha", "beta", "gamma") as made:
        yield made


@pytest.fixture
def config(world):
    """Settings by which all hosts are used, with 32 slots each."""
    environ = world.environ(slots=32)
    return SshConfig(hosts=environ["FIBER_SSH_HOSTS"], config=Path(environ["FIBER_SSH_CONFIG"]))


@pytest.fixture
def run_id():
    return secrets.token_hex(4)


@pytest.fixture
def context(run_id, config):
    directory = rundir.create(run_id, "ssh")
    yield BackendContext(run_id=run_id, run_directory=str(directory), config=config, lease=20.0)
    rundir.remove(directory)


@pytest.fixture
def opened():
    """Makes backends; all are closed."""

    def make(context, **changes):
        return SshBackend(attrs.evolve(context, **changes))

    with making(make, SshBackend.close) as opened:
        yield opened


@pytest.fixture
def connect(config):
    """Opens connections to hosts, whether they can be used or not; all are closed."""

    def to(host, run_id=None, config=config):
        ignored = dict.fromkeys(("on_jobs", "on_job", "on_beat", "on_change"), lambda *_: None)
        link = AgentLink(host, config, run_id=run_id, lease=20.0, timing=SshTiming(), **ignored)
        link.wait_connected(30)
        return link

    with making(to, AgentLink.close) as connect:
        yield connect


@pytest.fixture
def master(world, tmp_path):
    """Starts programs of ssh_masters; all are ended."""
    with making(functools.partial(Master, world, cwd=tmp_path), Master.close) as start:
        yield start


@pytest.fixture
def isolated(world):
    """Isolated hosts: packets between them are dropped; only this machine reaches them."""
    for host in world.hosts:
        host.isolate()
    yield
    for host in world.hosts:
        host.rejoin()


@pytest.fixture
def unreachable(world, isolated):
    """Isolated hosts that cannot dial this machine either."""
    for host in world.hosts:
        host.refuse_outgoing(to=world.address)
    yield
    for host in world.hosts:
        host.allow_outgoing()
