"""Hosts that dial neither the program nor each other: shared objects work."""

import pytest

from ssh_programs import LEASE, left_on

pytestmark = pytest.mark.timeout(150)


def check_meeting(found):
    maker, user = found["hosts"]
    assert maker != user
    assert found["size"] == 8 << 20
    assert found["words"] == "there and back"
    assert found["names"] == {"maker": maker}
    assert (found["count"], found["codes"]) == (2, [0, 0])


@pytest.mark.parametrize("cut_off", ["unreachable", "isolated"])
def test_queues_pipes_locks_and_managers_are_shared_by_hosts_that_do_not_reach_each_other(
    master, world, cut_off, request
):
    request.getfixturevalue(cut_off)
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
