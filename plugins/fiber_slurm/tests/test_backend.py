"""What the kit does not ask of the backend: arrays, requests, waiting, names; on a real Slurm."""

import contextlib
import threading
import time
from collections import Counter

import attrs
import pytest

import waiting
from fiber.exceptions import SubmitError
from fiber.model import JobSpec, JobState, ResourceRequest
from fiber.testing import programs

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def backend(opened, context):
    return opened(context)


@pytest.fixture
def spec(run_id):
    def made(argv, **more):
        return JobSpec(run_id=run_id, name="job", argv=argv, **more)

    return made


def ends(backend, jobs):
    """Last statuses of jobs, in their order, once all have ended."""
    wanted = {job.id for job in jobs}
    found = {}
    with contextlib.closing(backend.events(jobs[0].run_id)) as events:
        for job, status in events:
            if status.state.is_terminal:
                found[job.id] = status
            if wanted <= found.keys():
                break
    return [found[job.id] for job in jobs]


def until(backend, job, state):
    waiting.until(lambda: backend.status([job])[0].state is state)
    return backend.status([job])[0]


class TestArrays:
    def test_jobs_that_are_alike_are_one_submission_and_each_is_its_own(
        self, backend, spec, cluster
    ):
        before = Counter(cluster.requests())
        began = time.monotonic()

        jobs = backend.submit_many([spec(programs.exit_with(n)) for n in range(60)])
        statuses = ends(backend, jobs)

        took = time.monotonic() - began
        made = Counter(cluster.requests()) - before
        assert [status.exit_code for status in statuses] == [*range(60)]
        assert made["REQUEST_SUBMIT_BATCH_JOB"] == 1
        assert made["REQUEST_JOB_INFO"] <= took + 2
        asked = made["REQUEST_JOB_INFO"] + made["REQUEST_PARTITION_INFO"]
        print(f"60 jobs: {took:.1f} s, 1 sbatch, {asked} requests for their statuses")

    def test_one_of_them_ends_alone(self, backend, spec, cluster):
        one, *others = backend.submit_many([spec(programs.sleep_forever())] * 3)
        for job in (one, *others):
            until(backend, job, JobState.RUNNING)

        backend.kill(one)

        (status,) = ends(backend, [one])
        assert status.exit_code == -9
        left = backend.status(others)
        assert {each.state for each in left} == {JobState.RUNNING}
        # by which jobs may be kept away from it
        assert {each.host for each in left} <= set(cluster.nodes)

    def test_one_that_no_signal_reaches_leaves_the_queue_all_the_same(self, backend, spec, cluster):
        job = backend.submit(spec(programs.sleep_forever()))
        until(backend, job, JobState.RUNNING)
        cluster.kill_stepd(job.id)

        backend.kill(job)

        (status,) = ends(backend, [job])
        assert status.exit_code == -9
        waiting.until(lambda: not cluster.run("squeue", "--noheader", f"--jobs={job.id}"))
        # a program without a lease
        cluster.kill_processes(status.host)
        assert waiting.left(lambda: cluster.processes(status.host), 60.0) == []

    def test_what_differs_is_apart_and_what_is_refused_is_told_of_its_own(self, backend, spec):
        small = spec(programs.exit_with(3), resources=ResourceRequest(cpu=1))
        impossible = spec(programs.exit_with(0), resources=ResourceRequest(memory=10**6))

        first, refused, last = backend.submit_many([small, impossible, small])

        assert isinstance(refused, SubmitError)
        assert "--mem=1000000M" in str(refused)
        assert first.id.partition("_")[0] == last.id.partition("_")[0]
        assert [status.exit_code for status in ends(backend, [first, last])] == [3, 3]


class TestQuestions:
    def test_nothing_is_asked_where_no_job_is(self, backend, spec, cluster):
        ends(backend, [backend.submit(spec(programs.exit_with(0)))])
        before = cluster.requests().get("REQUEST_JOB_INFO", 0)

        # what does not happen has no event
        threading.Event().wait(5)

        assert cluster.requests().get("REQUEST_JOB_INFO", 0) == before

    def test_jobs_that_run_are_asked_for_every_third_second_by_all_threads_together(
        self, backend, spec, cluster
    ):
        job = backend.submit(spec(programs.sleep_forever()))
        until(backend, job, JobState.RUNNING)
        before = cluster.requests()["REQUEST_JOB_INFO"]
        began = time.monotonic()

        for _ in range(200):
            backend.status([job])
        took = time.monotonic() - began

        assert cluster.requests()["REQUEST_JOB_INFO"] - before <= took + 2
        backend.kill(job)


class TestWaiting:
    def test_a_job_that_waits_says_why_and_leaves_the_queue_when_it_is_told_to(self, backend, spec):
        everything = ResourceRequest(cpu=32)
        running = backend.submit_many([spec(programs.sleep_forever(), resources=everything)] * 4)
        waiting.until(lambda: any("Resources" in one.message for one in backend.status(running)))
        waits = next(
            job
            for job, status in zip(running, backend.status(running), strict=True)
            if status.state is JobState.PENDING and "Resources" in status.message
        )

        backend.terminate(waits, grace=1000.0)

        (status,) = ends(backend, [waits])
        assert status.state is JobState.FAILED
        assert status.exit_code == -15


class TestOthers:
    def test_a_run_that_is_over_is_swept_and_one_whose_jobs_run_is_not(
        self, opened, context, spec, runs, run_id
    ):
        submitter = opened(context)
        job = submitter.submit(spec(programs.sleep_forever(), detached=True))
        submitter.close()
        sweeper = opened(attrs.evolve(context, run_id=None, run_directory=None))

        assert run_id not in sweeper.sweep()
        sweeper.kill(job)
        waiting.until(lambda: sweeper.status([job])[0].state is JobState.FAILED)
        # its program, this one, lives; but nobody claims the folder any more
        dead = sweeper.sweep(dry_run=True)

        assert (runs / run_id).exists()
        assert set(dead) <= {run_id}
        sweeper.cleanup(run_id)
        assert not (runs / run_id).exists()
