"""The master, or the supervisor, is killed at a random moment; nobody and nothing is left."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

import fiber
import soak
from children import marked

MASTER = """
import multiprocessing, os, sys, time
import fiber

def work(n):
    time.sleep(0.001)
    return n

def bystander(_):
    time.sleep(60)

if __name__ == "__main__":
    with fiber.Pool(3) as pool:
        pool.map(work, range(10))
        pids = []
        if sys.argv[1] == "forked":
            other = multiprocessing.get_context("fork").Pool(2)
            other.map_async(bystander, range(2))
            pids = [process.pid for process in other._pool]
        child = fiber.Process(target=time.sleep, args=(600,))
        child.start()
        queue = fiber.Queue()
        print("ready", *pids, flush=True)
        while True:
            pool.map(work, range(1000))
            queue.put(queue.qsize())
"""


def kill_master(tmp_path, mark, kind, delay):
    script = tmp_path / f"master_{mark}.py"
    script.write_text(MASTER)
    # a short path: sockets are made in it
    runtime = Path(tempfile.mkdtemp(prefix="fm-"))
    environ = {**os.environ, "TEST_MARK": mark, "XDG_RUNTIME_DIR": str(runtime)}
    # files, not pipes: whoever holds a pipe's end would keep us waiting
    with open(tmp_path / f"out{mark}", "w") as out:
        master = subprocess.Popen(
            [sys.executable, str(script), kind],
            env=environ,
            stdout=out,
            stderr=out,
        )
    deadline = time.monotonic() + 60
    while "ready" not in (tmp_path / f"out{mark}").read_text():
        assert master.poll() is None, (tmp_path / f"out{mark}").read_text()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(delay)
    said = (tmp_path / f"out{mark}").read_text().split("ready", 1)[1].split("\n")[0].split()
    master.kill()
    master.wait(30)
    return runtime, {int(word) for word in said}


def left_after(mark, runtime, strangers, seconds):
    """What is left of a run so many seconds after its master's death, looking until it is nothing."""
    deadline = time.monotonic() + seconds
    while True:
        processes = [p for p in marked(mark) if p.pid not in strangers]
        files = [str(path) for path in runtime.glob("fiber/*")]
        if not processes and not files:
            shutil.rmtree(runtime)
            return []
        if time.monotonic() > deadline:
            return [f"{p.pid} {p.name()}" for p in processes if p.is_running()] + files
        time.sleep(0.05)


@pytest.mark.timeout(1800 if soak.is_full() else 120)
def test_a_killed_master_leaves_nothing(tmp_path):
    for current in soak.rounds("dead master", 50, least=2):
        rng = random.Random(current.seed)
        mark = f"{os.getpid()}-{current.seed}"
        runtime, _ = kill_master(tmp_path, mark, "plain", rng.uniform(0, 0.5))
        assert left_after(mark, runtime, set(), 10) == []


def test_a_killed_master_leaves_nothing_though_its_own_forks_live_on(tmp_path):
    mark = f"{os.getpid()}-forked"
    # the stdlib's pool, forked by the user, outlives its master: those two are not ours
    runtime, bystanders = kill_master(tmp_path, mark, "forked", 0.2)
    assert len(bystanders) == 2
    try:
        assert left_after(mark, runtime, bystanders, 10) == []
    finally:
        for pid in bystanders:
            os.kill(pid, signal.SIGKILL)


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
