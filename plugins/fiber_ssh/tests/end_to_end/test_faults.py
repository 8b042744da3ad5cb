"""Hosts, links, sshds and workers die during a map: results are right, and nothing is left.

What happens to connections happens to hosts that dial and to such that are reached by streams alone.
"""

import os
import signal

import pytest

from fiber._agent import rundir
from ssh_programs import LEASE, left_on

pytestmark = pytest.mark.timeout(150)


@pytest.fixture(params=["dialling", "streams"])
def _route(request):
    if request.param == "streams":
        request.getfixturevalue("unreachable")


both_routes = pytest.mark.usefixtures("_route")


def test_workers_run_on_all_hosts_and_nothing_is_left(master, world):
    program = master("squares", "6")
    hosts = {host for host, _ in program.up()}

    assert hosts == {"alpha", "beta", "gamma"}
    assert program.end()["good"]
    assert left_on(world, LEASE + 10.0) == []


@both_routes
def test_a_killed_remote_worker_loses_nothing(master, world):
    program = master("squares", "6")
    workers = program.up()

    for _, pid in workers[:3]:
        os.kill(pid, signal.SIGKILL)

    assert program.end()["good"]
    assert left_on(world, LEASE + 10.0) == []


@both_routes
def test_a_cut_link_is_noticed_within_the_lease_and_a_host_that_comes_back_is_used_again(
    master, world
):
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
    # its agent ended what it ran by itself
    assert left_on(world, LEASE + 10.0) == []

    again = master("squares", "6")
    assert "alpha" in {host for host, _ in again.up()}
    assert again.end()["good"]


@both_routes
def test_ssh_connections_that_drop_do_no_harm(master, world):
    # nobody waits for it: on a busy machine a connection takes longer than a short lease
    program = master("squares", "6", FIBER_LEASE="60")
    before = program.up()

    for host in world.hosts:
        host.drop_sessions()
    found = program.end()

    assert found["good"]
    assert {tuple(one) for one in found["after"]} <= set(before), "healthy workers were replaced"
    assert left_on(world, LEASE + 10.0) == []


@pytest.mark.lingers("the host's new sshd is for the tests that follow")
def test_a_host_whose_sshd_died_is_given_up(master, world):
    program = master("squares", "6")
    program.up()
    (_, beta, *_) = world.hosts
    try:
        beta.kill_sshd()
        found = program.end()
    finally:
        beta.start()

    assert found["good"]
    assert left_on(world, LEASE + 10.0) == []


@pytest.mark.lingers("the host's new sshd is for the tests that follow")
def test_a_host_that_dies_is_given_up(master, world):
    program = master("squares", "6")
    program.up()
    (*_, gamma) = world.hosts
    try:
        gamma.cut()
        gamma.kill_all()
        found = program.end()
    finally:
        gamma.restore()
        gamma.start()

    assert found["good"]
    assert "gamma" not in {host for host, _ in found["after"]}


def test_files_that_are_to_be_sent_are_in_the_working_directory_of_hosts(master, world, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("hello")

    program = master("files", "3", FIBER_SSH_SEND="data/**")
    program.up()

    assert program.end() == [["alpha", "hello"], ["beta", "hello"], ["gamma", "hello"]]


@both_routes
@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM"])
def test_nothing_outlives_a_killed_master_however_long_its_lease(master, world, ending):
    program = master("wait", "6", FIBER_LEASE="3600")
    program.up()

    program.process.send_signal(signal.Signals[ending])
    program.process.wait()

    assert left_on(world, 60.0) == []
    # what it left on this machine the next program removes
    rundir.sweep()
