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


def kill_process(host, maps, rng):
    kill_one(host, signal.SIGKILL, rng)


def stop_process(host, maps, rng):
    """Stop a worker or a job's supervisor, and never continue it."""
    kill_one(host, signal.SIGSTOP, rng)


def close_descriptors(host, maps, rng):
    maps.close_descriptors()


def restart_sshd(host, maps, rng):
    """Kill a host's sshd with its sessions, without a word; another one is started later."""
    host.kill_sshd()
    time.sleep(rng.uniform(0, LEASE))
    host.start()


def drop(host, maps, rng):
    """End a host's connections; its sshd takes new ones."""
    host.drop_sessions()


def cut_shortly(host, maps, rng):
    """Cut a host's link for less than the lease, which must have no effect."""
    host.cut()
    time.sleep(rng.uniform(0, LEASE / 2))
    host.restore()


def cut_for_long(host, maps, rng):
    """Cut a host's link for longer than the lease; it comes back."""
    host.cut()
    time.sleep(LEASE + rng.uniform(1, 4))
    host.restore()


def set_clock(host, maps, rng):
    """Set a host's time of day to up to an hour before or after this machine's, until the next time."""
    host.set_clock(rng.randint(-3600, 3600))


HOW = [kill_process, kill_process, stop_process, close_descriptors]
HOW += [restart_sshd, drop, cut_shortly, cut_for_long, set_clock]


def fail(hosts, maps, rng):
    """Make something fail on a host; returns its name and the host's."""
    fault, host = rng.choice(HOW), rng.choice(hosts)
    fault(host, maps, rng)
    return f"{fault.__name__} {host.name}"


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
        assert left_on(world, LEASE + 10.0) == []
        current.note(faults=faults)
