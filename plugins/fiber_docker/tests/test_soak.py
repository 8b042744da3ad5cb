"""Containers, the processes in them and their engine fail again and again during maps.

The full count (``tox -e soak``) is 75 rounds of 4; results are right and no container is left. 50 masters
are killed at any moment of their lives.
"""

import contextlib
import functools
import os
import signal
import time

import psutil
import pytest
from docker.errors import APIError, NotFound

import soak
import waiting
from running import Maps

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


def signal_workers(supervisor, number):
    with contextlib.suppress(psutil.NoSuchProcess):
        for worker in psutil.Process(supervisor).children():
            worker.send_signal(number)


def fail(engine, maps, rng):
    """Make something fail, once there is a container; returns its name."""
    while not (found := running(engine)):
        # the last fault ended all of them, and no event tells of the next ones
        time.sleep(0.1)
    container, supervisor = rng.choice(found)

    def ask(action, **options):
        # it may have ended since we looked
        with contextlib.closing(engine.docker()) as client, contextlib.suppress(APIError):
            getattr(client.api, action)(container, **options)

    def pause():
        # for less than after which a pool gives it up
        ask("pause")
        time.sleep(3)
        ask("unpause")

    def kill_supervisor():
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, signal.SIGKILL)

    def restart_engine():
        # all containers end with it
        engine.daemon.stop()
        engine.daemon.start()

    faults = {
        "kill_container": lambda: ask("kill"),
        "stop_container": lambda: ask("stop", timeout=1),
        "pause_container": pause,
        "kill_supervisor": kill_supervisor,
        "kill_worker": lambda: signal_workers(supervisor, signal.SIGKILL),
        # nobody continues it
        "stop_worker": lambda: signal_workers(supervisor, signal.SIGSTOP),
        "close_descriptors": maps.close_descriptors,
        "restart_engine": restart_engine,
    }
    name = rng.choice(sorted(faults))
    faults[name]()
    return name


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 600)
def test_maps_are_right_whatever_fails_and_no_container_is_left(own_engine, tmp_path):
    """Containers share a /tmp with each other, and with containers of other runs."""
    engine = own_engine
    (tmp_path / "shared").mkdir()
    environ = {"FIBER_DOCKER_VOLUMES": f"{tmp_path}/shared:/tmp", "FIBER_LEASE": "30"}
    for current in soak.rounds("failing containers", 75):
        with contextlib.closing(Maps(tmp_path, engine.environ(**environ))) as maps:
            faults = maps.withstand(current.rng, functools.partial(fail, engine))
            maps.end()
        # the engine may still be removing one
        assert waiting.left(engine.containers, 30.0) == []
        current.note(faults=faults)


@pytest.mark.timeout(4 * 3600 if soak.is_full() else 300)
def test_a_killed_master_takes_its_containers_with_it(engine, tmp_path):
    """A container that was created and not started is removed by the next run of the same user."""
    for current in soak.rounds("killed masters", 50, least=3):
        with contextlib.closing(Maps(tmp_path, engine.environ())):
            # also while it makes and starts its containers
            time.sleep(current.rng.uniform(0, 4))
        since = time.monotonic()
        count = len(running(engine))
        # nobody else is left who would tell
        assert waiting.left(lambda: running(engine), PATIENCE, pause=0.1) == []
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
