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


@both_routes
def test_a_killed_remote_worker_loses_nothing(master, world):
    program = master("squares", "6")
    workers = program.up()

    for _, pid in workers[:3]:
        os.kill(pid, signal.SIGKILL)

    assert program.end()["good"]
    assert left_on(world, LEASE + 10.0) == []


@both_routes
def test_a_cut_link_is_noticed_within_the_lease(master, world):
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
@pytest.mark.parametrize("is_alive", [True, False], ids=["its sshd died", "it died"])
def test_a_host_is_given_up_when(master, world, is_alive):
    program = master("squares", "6")
    program.up()
    (*_, gamma) = world.hosts
    try:
        if is_alive:
            gamma.kill_sshd()
        else:
            gamma.cut()
            gamma.kill_all()
        found = program.end()
    finally:
        gamma.restore()
        gamma.start()

    assert found["good"]
    # one that lives ends its workers by its own clock
    assert is_alive or "gamma" not in {host for host, _ in found["after"]}
    assert left_on(world, LEASE + 10.0) == []


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


class TestHostsThatDoNotReachEachOther:
    """Hosts that dial neither the program nor each other: shared objects work."""

    @pytest.fixture
    def one_of_them(self, world):
        alpha, *_ = world.hosts
        alpha.refuse_outgoing(to=world.address)
        yield
        alpha.allow_outgoing()

    @pytest.mark.parametrize("cut_off", ["unreachable", "isolated", "one_of_them"])
    def test_queues_pipes_locks_and_managers_are_shared(self, master, world, cut_off, request):
        request.getfixturevalue(cut_off)
        found = master("meet", "2").end()

        maker, user = found["hosts"]
        assert maker != user
        assert (found["size"], found["words"]) == (8 << 20, "there and back")
        assert found["names"] == {"maker": maker}
        assert (found["count"], found["codes"]) == (2, [0, 0])
        assert left_on(world, LEASE + 10.0) == []
