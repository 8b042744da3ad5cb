"""Containers, and the processes in them, are killed again and again during maps.

The full count (``tox -e soak``) is 50 rounds of 4; results are right and no container is left. The same
number of masters is killed at any moment of their lives.
"""

import contextlib
import os
import random
import signal
import time

import psutil
import pytest
from docker.errors import NotFound

import soak
from running import Maps

KILLS = 4
#: seconds for all that a dead master started to end, on the slowest machine; what it took is noted
PATIENCE = 60.0


def running(engine):
    """The containers of workers, with the pids of their first processes."""
    pids = []
    with contextlib.closing(engine.docker()) as client:
        for one in engine.listed("fiber.run", status="running"):
            # it may have ended since
            with contextlib.suppress(NotFound):
                pids.append((one["Id"], client.api.inspect_container(one["Id"])["State"]["Pid"]))
    return pids


def kill_one(engine, rng):
    """Kill a container by its engine, its supervisor, or the worker in it; returns which."""
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
    for current in soak.rounds("killed containers", 50):
        rng = random.Random(current.seed)
        killed = []
        with contextlib.closing(Maps(tmp_path, engine.environ())) as maps:
            for _ in range(KILLS):
                maps.wait_right()
                # the moment is random, not waited for: faults come when they come
                time.sleep(rng.uniform(0, 1))
                killed.append(kill_one(engine, rng))
            maps.wait_right()
            maps.end()
        assert engine.containers() == []
        current.note(killed=killed)


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 300)
def test_a_killed_master_takes_its_containers_with_it(engine, tmp_path):
    """A container that was created and not started is removed by the next run of the same user."""
    for current in soak.rounds("killed masters", 50, least=3):
        rng = random.Random(current.seed)
        with contextlib.closing(Maps(tmp_path, engine.environ())):
            # also while it makes and starts its containers
            time.sleep(rng.uniform(0, 4))
        since = time.monotonic()
        count = len(running(engine))
        while running(engine):
            assert time.monotonic() - since < PATIENCE, engine.containers()
            # nobody is left who would tell
            time.sleep(0.1)
        current.note(containers=count, gone=round(time.monotonic() - since, 2))

    with contextlib.closing(Maps(tmp_path, engine.environ())) as maps:
        maps.wait_right()
        maps.end()
    assert engine.containers() == []


SHARED = """
import fiber


def count(number, lock):
    for _ in range(50):
        with lock:
            number.value += 1


if __name__ == "__main__":
    number, lock = fiber.Value("i", 0, lock=False), fiber.Lock()
    workers = [fiber.Process(target=count, args=(number, lock)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(number.value, [worker.exitcode for worker in workers])
"""


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 300)
def test_jobs_that_share_a_temporary_folder_leave_each_others_alone(run_program, tmp_path):
    """Each container has process ids of its own, so that those of the others look like dead ones."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for current in soak.rounds("a shared /tmp", 20):
        done = run_program(SHARED, FIBER_DOCKER_VOLUMES=f"{folder}:/tmp")
        assert done.stdout == "150 [0, 0, 0]\n", done.stderr
        current.note(left=[path.name for path in folder.iterdir()])
