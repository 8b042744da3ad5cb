"""Jobs, nodes and the controller fail during maps: results are right, and nothing is left.

The full count (``tox -e soak``) is 25 rounds of 4 faults.
"""

import contextlib
import os
import re
import signal
import time
from pathlib import Path

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


LIVE = ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING")
ENDED = ("CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT")


def jobs(cluster, *states):
    """Ids and nodes of Fiber's jobs in these states."""
    words = ("--noheader", "--array", "--states=all", "--format=%i %T %N %j")
    found = [line.split(" ") for line in cluster.run("squeue", *words).splitlines()]
    return [(one[0], one[2]) for one in found if one[1] in states and one[3].startswith("fiber-")]


def running(cluster, but=()):
    """Ids and nodes of those that run; waits for one, for Slurm tells nobody."""
    waiting.until(lambda: {job for job, _ in jobs(cluster, "RUNNING")} - set(but))
    return [one for one in jobs(cluster, "RUNNING") if one[0] not in but]


def left(cluster):
    """What is left of all jobs, once nothing is or the patience is over."""

    def look():
        processes = [pid for node in cluster.nodes for pid in cluster.processes(node)]
        return jobs(cluster, *LIVE) + processes

    return waiting.left(look, PATIENCE, pause=0.2)


def preempt(cluster, node):
    """Have a job of higher priority take all of a node, for a moment."""
    words = ("--exclusive", f"--nodelist={node}", "--output=/dev/null", "--wrap=true")
    cluster.run("sbatch", "--partition=urgent", *words)


def end_soon(cluster, job):
    """Have a job's time be over now; Slurm looks once in half a minute."""
    cluster.run("scontrol", "update", f"jobid={job}", "EndTime=now+1")


#: what fails, and what is told of a job that was hit by it; None where it goes on. Whose place is taken
#: away ends well where it has nothing to do that takes longer
FAULTS = {
    "cancel": r"CANCELLED|EXIT\(0\)",
    "kill": r"SIGNAL\(9\)",
    # of which process, is chance
    "kill_process": r".",
    "memory": "OOM",
    "lose_controller": None,
    "node_down": r"NODE_LOST|LEASE|EXIT\(0\)",
    "preempt": r"PREEMPTED|EXIT\(0\)",
    "close_descriptors": r".",
    "lose_node": r"NODE_LOST|LEASE",
    "suspend": None,
    "time_limit": "TIME_LIMIT",
}


class Faults:
    """The faults of one round.

    Args:
        cluster: what fails.
        maps: the program whose jobs are hit.
        current: the round; four kinds are its own, so that all come up equally often.
    """

    def __init__(self, cluster, maps, current):
        self._cluster, self._maps, self._rng = cluster, maps, current.rng
        self._seed = current.seed
        first = current.seed * 4
        kinds = [list(FAULTS)[number % len(FAULTS)] for number in range(first, first + 4)]
        self._kinds = current.rng.sample(kinds, 4)
        # what ends by itself comes first, and takes its time while others fail
        self._kinds.sort(key="time_limit".__ne__)
        #: marks of tasks that are made twice
        self._marks = []
        #: kinds by the job that was hit, and by nodes all of whose jobs were
        self._jobs, self._nodes = {}, {}

    def fail(self, maps, rng):
        """Make the next one; returns its name."""
        kind = self._kinds.pop(0)
        job, node = self._rng.choice(running(self._cluster, self._jobs))
        hit = getattr(self, f"_{kind}")(job, node)
        if hit is None:
            self._nodes.setdefault(node, set()).add(kind)
        else:
            self._jobs.setdefault(hit, set()).add(kind)
        return kind

    def settle(self):
        """Wait until what was to be made twice was."""
        for mark in self._marks:
            waiting.until(mark.with_name(f"{mark.name}.again").exists, timeout=3 * PATIENCE)

    def told(self):
        """What was told of each job that was hit, which is right; nothing is of another one."""
        told = {}
        # all nodes are one host
        nodes = dict(jobs(self._cluster, *LIVE, *ENDED))
        for end in self._maps.ends():
            own = self._jobs.get(end["job"], set())
            kinds = own | self._nodes.get(nodes.get(end["job"]), set())
            wanted = [FAULTS[kind] for kind in kinds if FAULTS[kind]]
            why = f"{end['reason']} {end['message']}"
            right = any(re.search(one, why) for one in wanted)
            assert right or (not own and is_asked(why)), f"{end} after {kinds}"
            if kinds:
                told[end["job"]] = f"{'+'.join(sorted(kinds))}: {end['reason']}"
        missing = {job for job, kinds in self._jobs.items() if any(FAULTS[kind] for kind in kinds)}
        assert not missing - told.keys()
        return sorted(told.values())

    def _cancel(self, job, node):
        self._cluster.run("scancel", job)
        return job

    def _kill(self, job, node):
        self._cluster.run("scancel", "--batch", "--signal=KILL", job)
        return job

    def _kill_process(self, job, node):
        if found := self._cluster.processes(node):
            # it may have ended since we looked
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._rng.choice(found), signal.SIGKILL)

    def _memory(self, job, node):
        return self._once(self._maps.eat)

    def _time_limit(self, job, node):
        hit = self._once(self._maps.linger)
        end_soon(self._cluster, hit)
        return hit

    def _close_descriptors(self, job, node):
        self._maps.close_descriptors()
        for each in self._cluster.nodes:
            self._nodes.setdefault(each, set()).add("close_descriptors")

    def _preempt(self, job, node):
        preempt(self._cluster, node)

    def _suspend(self, job, node):
        # for less than after which a pool gives it up
        if self._cluster.ask("scontrol", "suspend", job) is not None:
            time.sleep(3)
            self._cluster.ask("scontrol", "resume", job)

    def _node_down(self, job, node):
        self._cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        time.sleep(self._rng.uniform(0, 2))
        self._cluster.resume(node)

    def _lose_node(self, job, node):
        self._cluster.lose_node(node)
        time.sleep(self._rng.uniform(0, 2))
        self._cluster.bring_back(node)

    def _lose_controller(self, job, node):
        self._cluster.stop_controller()
        time.sleep(30 if soak.is_full() else self._rng.uniform(0, 5))
        self._cluster.start_controller()

    def _once(self, order):
        """Have a task do something on its first attempt; returns its job."""
        self._marks.append(self._maps.folder / f"mark-{self._seed}-{len(self._marks)}")
        order(self._marks[-1])
        waiting.until(lambda: self._marks[-1].exists() and self._marks[-1].read_text())
        pid = self._marks[-1].read_text()
        found = Path(f"/proc/{pid}/environ").read_bytes()
        variables = dict(part.partition(b"=")[::2] for part in found.split(b"\0"))
        if b"SLURM_ARRAY_JOB_ID" in variables:
            names = b"SLURM_ARRAY_JOB_ID", b"SLURM_ARRAY_TASK_ID"
            return b"_".join(variables[name] for name in names).decode()
        return variables[b"SLURM_JOB_ID"].decode()


def is_asked(why):
    """Whether a job's end is what the program asked for."""
    return why.startswith("None") or "as asked" in why


@pytest.mark.lingers("what was started again is for the tests that follow")
@pytest.mark.timeout(4 * 3600 if soak.is_full() else 400)
def test_maps_are_right_whatever_fails_and_no_job_is_left(cluster, settings, tmp_path):
    for current in soak.rounds("failing Slurm", 25, least=2):
        with contextlib.closing(Maps(tmp_path, settings)) as maps:
            faults = Faults(cluster, maps, current)
            kinds = maps.withstand(current.rng, faults.fail)
            faults.settle()
            maps.wait_right()
            told = faults.told()
            if current.seed % 2:
                maps.end()
            else:
                maps.close()
            began = time.monotonic()
            assert left(cluster) == []
        current.note(faults=kinds, told=told, gone=round(time.monotonic() - began, 1))
        current.note(load=os.getloadavg()[0])
        rundir.sweep()


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

    def test_leaves_nothing_where_nobody_can_be_signalled_any_more(self, cluster, start):
        program = start("wait")
        job, _ = running(cluster)[0]
        cluster.kill_stepd(job)

        program.close()

        assert left(cluster) == []


class TestWhyAWorkerEnded:
    def test_memory(self, start):
        assert re.search(r"out of memory", start("eat").line())

    def test_somebody_cancelled_it(self, cluster, start):
        program = start("wait")
        job, _ = running(cluster)[0]

        cluster.run("scancel", job)

        assert "CANCELLED" in program.line()

    def test_somebody_preempted_it(self, cluster, start):
        program = start("wait")
        _, node = running(cluster)[0]

        preempt(cluster, node)

        assert "PREEMPTED" in program.line()

    @pytest.mark.lingers("the node's new slurmd is for the tests that follow")
    def test_its_node_was_lost(self, cluster, start):
        program = start("wait")
        _, node = running(cluster)[0]
        try:
            cluster.lose_node(node)
            assert re.search(r"NODE_FAIL|NODE_LOST|LEASE|lost", program.line())
        finally:
            cluster.bring_back(node)

    def test_its_time_was_over(self, cluster, start):
        program = start("wait", FIBER_SLURM_TIME="1")
        if not soak.is_full():
            # a minute is the shortest that can be asked for
            end_soon(cluster, running(cluster)[0][0])

        assert "TIME_LIMIT" in program.line()


@pytest.mark.lingers("the new controller is for the tests that follow")
def test_a_controller_that_is_away_disturbs_no_worker(cluster, start):
    start("wait", 3)
    waiting.until(lambda: len(jobs(cluster, "RUNNING")) == 3)
    before = jobs(cluster, "RUNNING")

    cluster.stop_controller()
    time.sleep(LEASE + 2)
    cluster.start_controller()

    assert jobs(cluster, "RUNNING") == before
