"""Remote processes, connections, links, sshds and clocks fail again and again during maps.

The full count (``tox -e soak``) is 75 rounds of 4; results are right and no process is left.
"""

import contextlib
import functools
import os
import signal
import time

import pytest

import soak
from running import Maps
from ssh_hosts import ssh_hosts
from ssh_programs import LEASE, left_on


def kill_one(host, number, rng):
    """Send a signal to one process of Fiber's jobs on a host, if there is one."""
    found = [int(job.partition(":")[0]) for job in host.jobs() if "fiber._agent.job" in job]
    if found:
        # it may have ended since we looked
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(found), number)


def restart_sshd(host, rng):
    """Kill a host's sshd with its sessions, without a word; another one is started later."""
    host.kill_sshd()
    time.sleep(rng.uniform(0, LEASE))
    host.start()


def cut(host, seconds):
    host.cut()
    time.sleep(seconds)
    host.restore()


def fail(hosts, maps, rng):
    """Make something fail on a host; returns its name and the host's."""
    host = rng.choice(hosts)
    faults = {
        "kill_process": lambda: kill_one(host, signal.SIGKILL, rng),
        # a worker or a job's supervisor, which nobody continues
        "stop_process": lambda: kill_one(host, signal.SIGSTOP, rng),
        "close_descriptors": maps.close_descriptors,
        "restart_sshd": lambda: restart_sshd(host, rng),
        # its sshd takes new ones
        "drop": host.drop_sessions,
        # for less than the lease, which must have no effect, and for longer
        "cut_shortly": lambda: cut(host, rng.uniform(0, LEASE / 2)),
        "cut_for_long": lambda: cut(host, LEASE + rng.uniform(1, 4)),
        # by up to an hour, until the next time
        "set_clock": lambda: host.set_clock(rng.randint(-3600, 3600)),
    }
    name = rng.choice(["kill_process", *faults])
    faults[name]()
    return f"{name} {host.name}"


@pytest.fixture
def world():
    with ssh_hosts("alpha", "beta", "gamma", clocks=True) as made:
        yield made


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 300)
def test_maps_are_right_whatever_fails_and_no_process_is_left(world, tmp_path):
    environ = {**world.environ(slots=2), "FIBER_BACKEND": "ssh", "FIBER_LEASE": str(LEASE)}
    for current in soak.rounds("failing hosts", 75):
        with contextlib.closing(Maps(tmp_path, environ)) as maps:
            faults = maps.withstand(current.rng, functools.partial(fail, world.hosts))
            maps.end()
        assert left_on(world, LEASE + 10.0) == []
        current.note(faults=faults)
