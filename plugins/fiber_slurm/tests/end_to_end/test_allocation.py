"""Inside an allocation that is there already: processes are its steps, and it is never cancelled."""

import contextlib
import functools
import os
import re
import signal
import sys
import time

import psutil
import pytest

import soak
import waiting
from fiber._agent import rundir
from fiber_slurm import sruns
from running import Maps, Program
from scenarios import check_policy

pytestmark = pytest.mark.timeout(240)

_POOL = """
import os, sys, time
import fiber as mp

def place(_):
    time.sleep(0.05)
    return os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_STEP_ID")

def wait(begun):
    begun.set()
    time.sleep(600)

def main():
    count = int(sys.argv[1])
    with mp.Pool(count, error_handling=False) as pool:
        places = set(pool.map(place, range(60), chunksize=1))
        print({job for job, _ in places} == {os.environ["SLURM_JOB_ID"]}, len(places), flush=True)
        if sys.argv[2:]:
            begun = mp.Event()
            result = pool.apply_async(wait, (begun,))
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
    return {**environ, "FIBER_LEASE": "8"}


@pytest.fixture
def program(tmp_path):
    (tmp_path / "pool.py").write_text(_POOL)
    return tmp_path / "pool.py"


@pytest.fixture
def allocation(cluster):
    with cluster.allocated("--nodes=2", "--ntasks=3", "--mem=2000") as job:
        yield job
    waiting.until(lambda: not cluster.run("squeue", "--noheader"))


@pytest.fixture
def start(settings, program, allocation, runs):
    """Starts a program with a pool in the allocation; it is ended, and its steps with it."""
    with contextlib.ExitStack() as stack:

        def started(count, **more):
            environ = {**settings, "SLURM_JOB_ID": allocation, **more}
            one = Program(program.parent, "pool.py", str(count), "wait", environ=environ)
            stack.callback(one.close)
            assert re.match("True [123]", one.line())
            assert one.line() == "up"
            return one

        yield started
    # what outlives a program is over
    waiting.until(lambda: not list(runs.iterdir()))
    rundir.sweep()


def is_of(cluster, pid):
    """True for a process of this cluster: there may be another one on this machine."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).environ().get("SLURM_CONF") == str(cluster.conf)
    return False


def steps(cluster):
    """Ids of steps, and of processes that wait for a place."""
    found = [pid for pid, _ in sruns.waiting(lambda name: name.startswith("fiber-"))]
    waits = [str(pid) for pid in found if is_of(cluster, pid)]
    listed = cluster.run("squeue", "--steps", "--noheader", "--Format=StepID:|,StepName:|")
    rows = [line.split("|") for line in listed.splitlines()]
    return [row[0] for row in rows if row[1].startswith("fiber-")], waits


def state(cluster, job):
    return cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip()


def test_a_job_scripts_pool_works_with_as_many_steps_as_its_job_has_places(
    cluster, settings, program, tmp_path
):
    script = tmp_path / "script.sh"
    script.write_text(f"#!/bin/sh\n{sys.executable} {program} 5\n")
    words = ["--wait", "--nodes=2", "--ntasks=3", "--mem=2000", f"--output={tmp_path}/output"]
    export = ",".join(f"{name}={value}" for name, value in settings.items())

    cluster.run("sbatch", f"--export=PATH,HOME,{export}", *words, str(script))

    written = (tmp_path / "output").read_text()
    assert re.search(r"^True [123]$", written, re.MULTILINE), written
    assert steps(cluster) == ([], [])


def test_a_ring_runs_in_an_allocation(cluster, settings, tmp_path):
    with cluster.allocated("--nodes=3", "--ntasks=12", "--mem=12000") as job:
        check_policy(tmp_path, {**os.environ, **settings, "SLURM_JOB_ID": job})

        assert steps(cluster) == ([], [])
        assert state(cluster, job) == "RUNNING"


def fail(cluster, maps, rng):
    """Make something fail, once a step runs; returns its name."""
    waiting.until(lambda: steps(cluster)[0])
    step = rng.choice(steps(cluster)[0])

    def kill_process():
        node = rng.choice(cluster.nodes[:2])
        if found := cluster.processes(node):
            # it may have ended since we looked
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(found), signal.SIGKILL)

    def kill_srun():
        if found := steps(cluster)[1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rng.choice(found)), signal.SIGKILL)

    def lose_controller():
        cluster.stop_controller()
        time.sleep(rng.uniform(0, 3))
        cluster.start_controller()

    faults = {
        "cancel": lambda: cluster.ask("scancel", step),
        "terminate": lambda: cluster.ask("scancel", "--signal=TERM", step),
        "kill_process": kill_process,
        "kill_srun": kill_srun,
        "close_descriptors": maps.close_descriptors,
        "lose_controller": lose_controller,
    }
    name = rng.choice(list(faults))
    faults[name]()
    return f"{name} {step}"


@pytest.mark.lingers("what was started again is for the tests that follow")
@pytest.mark.timeout(4 * 3600 if soak.is_full() else 400)
def test_maps_are_right_whatever_fails_and_the_allocation_goes_on(cluster, settings, tmp_path):
    for current in soak.rounds("failing steps", 10, least=1):
        # one of three workers waits for a place
        with cluster.allocated("--nodes=2", "--ntasks=2", "--mem=2000") as job:
            environ = {**settings, "SLURM_JOB_ID": job}
            with contextlib.closing(Maps(tmp_path, environ)) as maps:
                faults = maps.withstand(current.rng, functools.partial(fail, cluster))
                maps.end()
            assert steps(cluster) == ([], [])
            assert state(cluster, job) == "RUNNING"
        current.note(faults=faults)


class TestADeadProgram:
    @pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM"])
    def test_leaves_neither_steps_nor_what_waits_for_a_place_and_the_allocation_goes_on(
        self, cluster, start, allocation, ending
    ):
        # more than the allocation has places for
        program = start(5, FIBER_LEASE="3600")
        waiting.until(lambda: len(steps(cluster)[0]) == 3)
        assert len(steps(cluster)[1]) == 5

        program.process.send_signal(signal.Signals[ending])
        program.process.wait()
        began = time.monotonic()

        waiting.until(lambda: steps(cluster) == ([], []))
        print(f"{ending}: nothing was left after {time.monotonic() - began:.1f} s")
        assert state(cluster, allocation) == "RUNNING"


class TestWhyAStepEnded:
    def test_somebody_cancelled_it(self, cluster, start):
        program = start(1)

        cluster.run("scancel", *steps(cluster)[0])

        assert "somebody cancelled its step" in program.line()

    def test_somebody_cancelled_its_allocation(self, cluster, start, allocation):
        program = start(1)

        cluster.run("scancel", allocation)

        assert f"allocation {allocation} is over" in program.line()
