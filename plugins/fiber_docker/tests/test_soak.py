"""Containers, and the processes in them, are killed again and again during maps.

The full count (``tox -e soak``) is 50 rounds of 4; results are right and no container is left.
"""

import contextlib
import os
import random
import signal
import time

import psutil
import pytest

import soak
from maps import Maps

KILLS = 4


def running(engine):
    """The containers of workers, with the pids of their first processes."""
    with contextlib.closing(engine.docker()) as client:
        found = client.api.containers(filters={"label": "fiber.run", "status": "running"})
        return [
            (one["Id"], client.api.inspect_container(one["Id"])["State"]["Pid"]) for one in found
        ]


def kill_one(engine, rng):
    """Kill a container by its engine, its supervisor, or the worker in it; what it was."""
    container, first = rng.choice(running(engine))
    how = rng.choice(["engine", "supervisor", "worker"])
    # it may have ended since we looked
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if how == "engine":
            with contextlib.closing(engine.docker()) as client:
                client.api.kill(container)
        elif how == "supervisor":
            os.kill(first, signal.SIGKILL)
        else:
            for worker in psutil.Process(first).children():
                worker.kill()
    return how


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 300)
def test_maps_are_right_whatever_is_killed_and_no_container_is_left(engine, tmp_path):
    environ = {"FIBER_BACKEND": "docker", "FIBER_IMAGE": engine.image, "DOCKER_HOST": engine.url}
    for current in soak.rounds("killed containers", 50):
        rng = random.Random(current.seed)
        killed = []
        with contextlib.closing(Maps(tmp_path, environ)) as maps:
            for _ in range(KILLS):
                maps.wait_right()
                # the moment is random, not waited for: faults come when they come
                time.sleep(rng.uniform(0, 1))
                killed.append(kill_one(engine, rng))
            maps.wait_right()
            maps.end()
        assert engine.containers() == []
        current.note(killed=killed)
