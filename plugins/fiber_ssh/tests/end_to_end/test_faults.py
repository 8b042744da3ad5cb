"""Hosts, links, sshds and workers die during a map: results are right, and nothing is left."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ssh_masters
from fiber.launch import rundir

LEASE = 6.0
PROGRAM = Path(ssh_masters.__file__)


class Master:
    """A program on this machine that uses the hosts."""

    def __init__(self, world, *words, cwd, **environ):
        settings = world.environ(slots=2)
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *words],
            env={
                **os.environ,
                **settings,
                "FIBER_BACKEND": "ssh",
                "FIBER_LEASE": str(LEASE),
                **environ,
            },
            cwd=cwd,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def line(self, timeout=60):
        line = self._lines.get(timeout=timeout)
        assert line is not None, f"it ended with {self.process.wait()}"
        return line

    def up(self):
        """Hosts and pids of the workers."""
        word, _, rest = self.line().partition(" ")
        assert word == "up"
        return [(host, pid) for host, pid in json.loads(rest)]

    def end(self):
        found = json.loads(self.line())
        assert self.process.wait(60) == 0
        return found

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()


@pytest.fixture
def master(world, tmp_path):
    made = []

    def start(*words, **environ):
        made.append(Master(world, *words, cwd=tmp_path, **environ))
        return made[-1]

    yield start
    for one in made:
        one.close()


def left_on(world, seconds):
    """The processes that hosts still have after so many seconds, or once there is none."""
    deadline = time.monotonic() + seconds
    while (left := world.jobs()) and time.monotonic() < deadline:
        # nobody tells of the end of processes that are no children of ours
        time.sleep(0.05)
    return left


@pytest.mark.timeout(150)
def test_workers_run_on_all_hosts_and_nothing_is_left(master, world):
    program = master("squares", "6")
    hosts = {host for host, _ in program.up()}

    assert hosts == {"alpha", "beta", "gamma"}
    assert program.end()["good"]
    assert left_on(world, LEASE + 10.0) == []


@pytest.mark.timeout(150)
def test_a_killed_remote_worker_loses_nothing(master, world):
    program = master("squares", "6")
    workers = program.up()

    for _, pid in workers[:3]:
        os.kill(pid, signal.SIGKILL)

    assert program.end()["good"]
    assert left_on(world, LEASE + 10.0) == []


@pytest.mark.timeout(150)
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


@pytest.mark.timeout(150)
def test_ssh_connections_that_drop_disturb_nobody(master, world):
    program = master("squares", "6")
    before = program.up()

    for host in world.hosts:
        host.drop_sessions()
    found = program.end()

    assert found["good"]
    assert {tuple(one) for one in found["after"]} <= set(before), "healthy workers were replaced"
    assert left_on(world, LEASE + 10.0) == []


@pytest.mark.lingers("the host's new sshd is for the tests that follow")
@pytest.mark.timeout(150)
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
@pytest.mark.timeout(150)
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


@pytest.mark.timeout(150)
def test_hosts_that_cannot_reach_this_machine_do_by_the_ssh_connection(master, world):
    try:
        for host in world.hosts:
            host.refuse_outgoing(to=world.address)
        program = master("squares", "6")
        hosts = {host for host, _ in program.up()}
        found = program.end()
    finally:
        for host in world.hosts:
            host.allow_outgoing()

    assert found["good"]
    assert len(hosts) == 3
    assert left_on(world, LEASE + 10.0) == []


@pytest.mark.timeout(150)
def test_files_that_are_to_be_sent_are_in_the_working_directory_of_hosts(master, world, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "words.txt").write_text("hello")

    program = master("files", "3", FIBER_SSH_SEND="data/**")
    program.up()

    assert program.end() == [["alpha", "hello"], ["beta", "hello"], ["gamma", "hello"]]


@pytest.mark.timeout(150)
def test_nothing_outlives_a_killed_master_by_more_than_its_lease(master, world):
    program = master("wait", "6")
    program.up()

    program.process.kill()
    program.process.wait()

    assert left_on(world, LEASE + 10.0) == []
    # what it left on this machine the next program removes
    rundir.sweep()
