"""Hosts that dial neither the program nor each other: shared objects work, also after faults."""

import os
import signal

import pytest

from fiber._agent import rundir
from ssh_programs import LEASE, left_on

pytestmark = pytest.mark.timeout(150)


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


def check_meeting(found):
    maker, user = found["hosts"]
    assert maker != user
    assert found["size"] == 8 << 20
    assert found["words"] == "there and back"
    assert found["names"] == {"maker": maker}
    assert (found["count"], found["codes"]) == (2, [0, 0])


def test_queues_pipes_locks_and_managers_are_shared_by_isolated_hosts(master, world, unreachable):
    check_meeting(master("meet", "2").end())

    assert left_on(world, LEASE + 10.0) == []


def test_hosts_that_reach_the_program_alone_meet_through_it(master, world, isolated):
    check_meeting(master("meet", "2").end())

    assert left_on(world, LEASE + 10.0) == []


def test_one_host_that_cannot_dial_is_enough(master, world):
    alpha, *_ = world.hosts
    alpha.refuse_outgoing(to=world.address)
    try:
        check_meeting(master("meet", "2").end())
    finally:
        alpha.allow_outgoing()

    assert left_on(world, LEASE + 10.0) == []


def test_the_setting_reversed_needs_no_route_to_the_program(master, world):
    program = master("squares", "6", FIBER_SSH_REACH="reversed")
    hosts = {host for host, _ in program.up()}

    assert program.end()["good"]
    assert len(hosts) == 3
    assert left_on(world, LEASE + 10.0) == []


def test_ssh_connections_that_drop_do_no_harm(master, world, unreachable):
    program = master("squares", "6")
    before = program.up()

    for host in world.hosts:
        host.drop_sessions()
    found = program.end()

    assert found["good"]
    assert {tuple(one) for one in found["after"]} <= set(before), "healthy workers were replaced"
    assert left_on(world, LEASE + 10.0) == []


def test_killed_workers_lose_nothing(master, world, unreachable):
    program = master("squares", "6")
    workers = program.up()

    for _, pid in workers[:3]:
        os.kill(pid, signal.SIGKILL)

    assert program.end()["good"]
    assert left_on(world, LEASE + 10.0) == []


def test_a_cut_link_is_noticed_within_the_lease(master, world, unreachable):
    program = master("squares", "6")
    program.up()
    (alpha, *_) = world.hosts
    try:
        alpha.cut()
        found = program.end()
    finally:
        alpha.restore()

    assert found["good"]
    assert "alpha" not in {host for host, _ in found["after"]}
    assert left_on(world, LEASE + 10.0) == []


def test_nothing_outlives_a_killed_master_by_more_than_its_lease(master, world, unreachable):
    program = master("wait", "6")
    program.up()

    program.process.kill()
    program.process.wait()

    assert left_on(world, LEASE + 10.0) == []
    # what it left on this machine the next program removes
    rundir.sweep()
