"""Jobs of all runs are listed, for people and as JSON."""

import json
import time

import pytest

from fiber.model import JobSpec, Reason, ReasonKind
from fiber.testing import FakeBackend, programs


@pytest.fixture
def backend(platform):
    made = FakeBackend(platform=platform)
    yield made
    made.close()


def submit(backend, argv, run_id="00000001", name="job", **fields):
    return backend.submit(JobSpec(run_id=run_id, name=name, argv=argv, **fields))


def ended(platform, job):
    assert platform.find(job).ended.wait(30)


def columns(line):
    return line.split("\t")


def test_a_running_job_is_one_line(fiber, backend, platform):
    job = submit(backend, programs.sleep_forever(), name="wait")
    assert platform.wait_for(lambda: platform.find(job).status.processes, 30)
    (process,) = platform.find(job).status.processes

    header, line = fiber.lines("ps")

    assert columns(header) == ["RUN", "JOB", "NAME", "STATE", "PID", "HOST", "AGE", "PROGRAM"]
    run, ident, name, state, pid, host, age, program = columns(line)
    assert (run, ident, name, state) == ("00000001", job.id, "wait", "running")
    assert (pid, host) == (str(process.pid), "fake-host")
    assert age.endswith("s")
    # a program of several lines is one cell
    assert program.startswith(job.argv[0])


def test_ended_jobs_are_listed_when_asked_for_with_the_reason(fiber, backend, platform):
    well, badly = submit(backend, programs.exit_with(0)), submit(backend, programs.exit_with(7))
    ended(platform, well)
    ended(platform, badly)

    states = [columns(line)[3] for line in fiber.lines("ps", "--all")[1:]]

    assert len(fiber.lines("ps")) == 1
    assert states == ["succeeded", "failed EXIT(7)"]


def test_the_status_of_the_platform_is_shown(fiber, backend, platform):
    job = submit(backend, programs.sleep_forever())
    platform.lose(job, Reason(ReasonKind.EVICTED), "the node is drained")
    ended(platform, job)

    (data,) = json.loads(fiber("ps", "-a", "--json").stdout)

    assert (data["state"], data["reason"]) == ("failed", "EVICTED")
    assert data["message"] == "the node is drained"


def test_json_has_all_that_is_known(fiber, backend, platform):
    platform.hold()
    job = submit(backend, programs.exit_with(0), name="later", processes=2, entry="x:y")

    (data,) = json.loads(fiber("ps", "--json").stdout)

    assert time.time() - data.pop("submitted") < 60
    assert data == {
        "backend": "fake",
        "run": "00000001",
        "job": job.id,
        "name": "later",
        "state": "pending",
        "reason": None,
        "exit_code": None,
        "message": "",
        "host": "fake-host",
        "argv": list(job.argv),
        "processes": [],
    }


def test_a_platform_that_does_not_answer_is_an_error(fiber, platform):
    platform.available = False

    assert "does not answer" in fiber.fails("ps")
