"""The master, or the supervisor, is killed at a random moment; nobody and nothing is left."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
import pytest

import fiber
import soak
import waiting
from children import marked
from waiting import until

PROGRAMS = {
    "pool": """
import multiprocessing, sys, time
import fiber

def work_for_ever(numbers):
    while True:
        numbers.append(1)
        numbers.pop()

def work(n):
    time.sleep(0.001)
    return n

def bystander(_):
    time.sleep(60)

if __name__ == "__main__":
    with fiber.Pool(3) as pool:
        pool.map(work, range(10))
        pids = []
        if sys.argv[1:] == ["forked"]:
            other = multiprocessing.get_context("fork").Pool(2)
            other.map_async(bystander, range(2))
            pids = [process.pid for process in other._pool]
        manager = fiber.Manager()
        child = fiber.Process(target=work_for_ever, args=(manager.list(),))
        child.start()
        queue = fiber.Queue()
        print("ready", *pids, flush=True)
        while True:
            pool.map(work, range(1000))
            queue.put(queue.qsize())
""",
    "blocks": """
import sys, time
import fiber
from fiber.shared_memory import SharedMemory

def attach(name):
    SharedMemory(name).close()

if __name__ == "__main__":
    block = SharedMemory(sys.argv[1], create=True, size=8)
    child = fiber.Process(target=attach, args=(block.name,))
    child.start()
    child.join()
    assert child.exitcode == 0
    print("ready", flush=True)
    time.sleep(600)
""",
    "ring": """
import time
from fiber.experimental import Ring

def member(rank, size):
    time.sleep(600)

if __name__ == "__main__":
    ring = Ring(3, member, max_restarts=3)
    ring.start()
    print("ready", flush=True)
    ring.join()
""",
}


def kill_master(environ, tmp_path, kind, delay, *arguments):
    """Kill the master of a run at some moment; what is left of it, and forks of its own."""
    script, out = tmp_path / "master.py", tmp_path / "out"
    script.write_text(PROGRAMS[kind])
    # files, not pipes: whoever holds a pipe's end would keep us waiting
    with open(out, "w") as stream:
        words = [sys.executable, script, *arguments]
        master = subprocess.Popen(words, env=environ, stdout=stream, stderr=stream)
    until(lambda: "ready" in out.read_text() or master.poll() is not None)
    assert master.poll() is None, out.read_text()
    # the moment is random: faults come when they come
    time.sleep(delay)
    strangers = set(map(int, out.read_text().split("ready", 1)[1].split("\n")[0].split()))
    master.kill()
    master.wait(30)

    def left():
        running = marked(environ["TEST_MARK"])
        processes = [f"{p.pid} {p}" for p in running if p.pid not in strangers]
        return processes + list(map(str, Path(environ["XDG_RUNTIME_DIR"]).glob("fiber/*")))

    found = waiting.left(left, waiting.PATIENCE)
    for pid in strangers:
        os.kill(pid, signal.SIGKILL)
    return found, strangers


@pytest.mark.timeout(3600 if soak.is_full() else 120)
@pytest.mark.parametrize("kind, rounds, latest", [("pool", 50, 0.5), ("ring", 100, 1.5)])
def test_a_killed_master_leaves_nothing(environ, tmp_path, kind, rounds, latest):
    for current in soak.rounds(f"dead master of a {kind}", rounds, least=2):
        left, _ = kill_master(environ, tmp_path, kind, current.rng.uniform(0, latest))
        assert left == []


def test_a_killed_master_leaves_nothing_though_its_own_forks_live_on(environ, tmp_path):
    # the stdlib's pool, forked by the user, outlives its master: those two are not ours
    left, bystanders = kill_master(environ, tmp_path, "pool", 0.2, "forked")

    assert left == []
    assert len(bystanders) == 2


def test_a_killed_master_that_had_no_jobs_leaves_no_folder_and_no_shared_memory(environ, tmp_path):
    name = f"test-{os.getpid()}-block"

    left, _ = kill_master(environ, tmp_path, "blocks", 0, name)

    assert left == []
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def nap(n):
    time.sleep(0.005)
    return n


def test_a_killed_supervisor_costs_no_task():
    with fiber.Pool(3) as pool:
        pool.map(nap, range(10))
        result = pool.map_async(nap, range(600))
        supervisor = psutil.Process(pool._pool[0].pid).parent()
        assert supervisor.pid != os.getpid()
        supervisor.kill()
        assert result.get(60) == list(range(600))
