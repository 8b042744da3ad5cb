"""Jobs, nodes and the controller fail during maps: results are right, and nothing is left.

The full count (``tox -e soak``) is 25 rounds of 4 faults.
"""

import contextlib
import functools
import os
import re
import signal
import time

import pytest

import soak
import waiting
from fiber._agent import rundir
from running import Maps, Program

#: seconds for all that a dead program started to end, on the slowest machine
PATIENCE = 60.0
LEASE = 8.0

pytestmark = pytest.mark.timeout(240)

_POOL = """
import sys, time
import fiber as mp

def wait(begun):
    begun.set()
    time.sleep(600)

def eat(begun):
    begun.set()
    held = []
    while True:
        held.append(bytearray(b"x" * (20 << 20)))

def main():
    what, count = sys.argv[1], int(sys.argv[2])
    job = mp.meta(memory="100Mi")(eat) if what == "eat" else wait
    with mp.Pool(count, error_handling=False) as pool:
        pool.map(abs, range(count * 4))
        begun = mp.Event()
        result = pool.apply_async(job, (begun,))
        # a worker whose place is taken away before hands the task back
        begun.wait()
        print("up", flush=True)
        try:
            result.get()
        except mp.FiberError as error:
            print(str(error).replace("\\n", " "), flush=True)

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def settings(environ):
    return {**environ, "FIBER_LEASE": str(LEASE)}


@pytest.fixture
def start(cluster, settings, tmp_path):
    """Starts a program with a pool; it is ended, and its jobs with it."""
    (tmp_path / "pool.py").write_text(_POOL)
    with contextlib.ExitStack() as stack:

        def started(what, count=1, **more):
            program = Program(tmp_path, "pool.py", what, str(count), environ={**settings, **more})
            stack.callback(program.close)
            assert program.line() == "up"
            return program

        yield started
    # the next test looks for jobs of its own
    assert left(cluster) == []
    # what it left on this machine the next program removes
    rundir.sweep()


def jobs(cluster, *states):
    """Ids and nodes of Fiber's jobs in these states."""
    lines = cluster.run("squeue", "--noheader", "--array", "--format=%i %T %N %j").splitlines()
    found = [line.split(" ") for line in lines]
    return [(one[0], one[2]) for one in found if one[1] in states and one[3].startswith("fiber-")]


def a_running_one(cluster):
    """Id and node of one that runs; waits for it, for Slurm tells nobody."""
    waiting.until(lambda: jobs(cluster, "RUNNING"))
    return jobs(cluster, "RUNNING")[0]


def left(cluster):
    """What is left of all jobs, once nothing is or the patience is over."""
    states = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING")
    return waiting.left(lambda: jobs(cluster, *states), PATIENCE, pause=0.2)


def fail(cluster, maps, rng):
    """Make something fail, once a job runs; returns its name."""
    waiting.until(lambda: jobs(cluster, "RUNNING"))
    job, node = rng.choice(jobs(cluster, "RUNNING"))

    def kill_process():
        if found := cluster.processes(node):
            # it may have ended since we looked
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)

    def preempt():
        words = ("--exclusive", f"--nodelist={node}", "--output=/dev/null", "--wrap=true")
        cluster.run("sbatch", "--partition=urgent", *words)

    def suspend():
        # for less than after which a pool gives it up
        if cluster.ask("scontrol", "suspend", job) is not None:
            time.sleep(3)
            cluster.ask("scontrol", "resume", job)

    def lose_node():
        cluster.lose_node(node)
        time.sleep(rng.uniform(0, 2))
        cluster.bring_back(node)

    def lose_controller():
        cluster.stop_controller()
        time.sleep(rng.uniform(0, 5))
        cluster.start_controller()

    faults = {
        "cancel": lambda: cluster.ask("scancel", job),
        "kill": lambda: cluster.ask("scancel", "--batch", "--signal=KILL", job),
        "kill_process": kill_process,
        "close_descriptors": maps.close_descriptors,
        "preempt": preempt,
        "suspend": suspend,
        "lose_node": lose_node,
        "lose_controller": lose_controller,
    }
    name = rng.choice(list(faults))
    faults[name]()
    return f"{name} {node}"


@pytest.mark.lingers("what was started again is for the tests that follow")
@pytest.mark.timeout(4 * 3600 if soak.is_full() else 400)
def test_maps_are_right_whatever_fails_and_no_job_is_left(cluster, settings, tmp_path):
    for current in soak.rounds("failing Slurm", 25, least=2):
        with contextlib.closing(Maps(tmp_path, settings)) as maps:
            faults = maps.withstand(current.rng, functools.partial(fail, cluster))
        assert left(cluster) == []
        current.note(faults=faults)


class TestADeadProgram:
    @pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM"])
    def test_leaves_nothing_neither_what_runs_nor_what_waits(self, cluster, start, runs, ending):
        # more than the cluster has room for
        program = start("wait", 8, FIBER_LEASE="3600", FIBER_SLURM_OPTIONS="--cpus-per-task=16")
        waiting.until(lambda: len(jobs(cluster, "RUNNING")) == 6)
        assert len(jobs(cluster, "PENDING")) == 2

        program.process.send_signal(signal.Signals[ending])
        program.process.wait()
        began = time.monotonic()

        assert left(cluster) == []
        waiting.until(lambda: not list(runs.iterdir()))
        print(f"{ending}: nothing was left after {time.monotonic() - began:.1f} s")


class TestWhyAWorkerEnded:
    def test_memory(self, start):
        assert re.search(r"out of memory", start("eat").line())

    def test_somebody_cancelled_it(self, cluster, start):
        program = start("wait")
        job, _ = a_running_one(cluster)

        cluster.run("scancel", job)

        assert "CANCELLED" in program.line()

    def test_somebody_preempted_it(self, cluster, start):
        program = start("wait")
        _, node = a_running_one(cluster)

        words = ("--exclusive", f"--nodelist={node}", "--output=/dev/null", "--wrap=true")
        cluster.run("sbatch", "--partition=urgent", *words)

        assert "PREEMPTED" in program.line()

    @pytest.mark.lingers("the node's new slurmd is for the tests that follow")
    def test_its_node_was_lost(self, cluster, start):
        program = start("wait")
        _, node = a_running_one(cluster)
        try:
            cluster.lose_node(node)
            assert re.search(r"NODE_FAIL|NODE_LOST|LEASE|lost", program.line())
        finally:
            cluster.bring_back(node)

    @pytest.mark.skipif(not soak.is_full(), reason="Slurm's shortest limit is a minute: SOAK=1")
    @pytest.mark.timeout(400)
    def test_its_time_was_over(self, start):
        assert "TIMEOUT" in start("wait", FIBER_SLURM_TIME="1").line()


@pytest.mark.lingers("the new controller is for the tests that follow")
def test_a_controller_that_is_away_disturbs_no_worker(cluster, start):
    start("wait", 3)
    waiting.until(lambda: len(jobs(cluster, "RUNNING")) == 3)
    before = jobs(cluster, "RUNNING")

    cluster.stop_controller()
    time.sleep(LEASE + 2)
    cluster.start_controller()

    assert jobs(cluster, "RUNNING") == before
