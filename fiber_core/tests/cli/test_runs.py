"""``fiber top`` for runs whose programs are jobs on other hosts."""

import contextlib
import json
import os
import sys
import time

import attrs
import pytest

import fiber as mp
from fiber._agent import rundir
from fiber._agent.job import MODULE
from fiber._plugins import manager
from fiber.cli import dashboard, runs
from fiber.cli.runs import JobAsker, JobConnection, RemoteRuns
from fiber.cli.session import Session
from fiber.exceptions import FiberError
from fiber.model import Timing
from fiber.testing import programs
from pool_tasks import square
from waiting import PATIENCE, until

HERE = [sys.executable, "-m", "fiber.cli.main", "top", "--answer"]


@pytest.fixture(autouse=True)
def far(capable):
    """Jobs of the fake backend are on other hosts."""
    capable(same_host=False)


@pytest.fixture
def elsewhere(run_root, monkeypatch):
    """Another host, with a run whose pool has done five tasks; returns the environment there."""
    with mp.Pool(1) as pool:
        pool.map(square, range(5))
        there = dict(os.environ)
        here = run_root / "here"
        here.mkdir(mode=0o700)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(here))
        yield there
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(run_root))
    pool.join()


@pytest.fixture
def program(fiber, submit, elsewhere, monkeypatch):
    """A job of a run of this host, which is a program and is on the other host, beside a worker there."""
    directory = rundir.create("0000000b", "fake", detached=True)
    job = submit(run_id="0000000b")
    submit([*programs.sleep_forever(), MODULE], run_id="0000000b")
    monkeypatch.setattr(runs, "_environ", lambda session: elsewhere)
    yield job
    rundir.remove(directory)


@pytest.fixture
def way(monkeypatch):
    """Have jobs reached by other words; returns the jobs that were reached."""
    reached = []

    def reach_by(words):
        monkeypatch.setattr(runs, "_command", lambda session, job: reached.append(job.id) or words)
        return reached

    return reach_by


def test_a_job_answers_again_and_again_for_the_runs_of_its_host_until_it_is_let_go(elsewhere):
    asker = JobAsker("0000000b", "job-1", HERE, elsewhere)
    asker.ask()
    asker.wait(time.monotonic() + PATIENCE)
    (first,) = asker.answers
    asker.ask()
    until(lambda: asker.answers[0].when > first.when)

    assert first.status["pools"][0]["done"] == 5
    assert (first.outer, first.description["job"]) == ("0000000b", "job-1")
    assert not asker.trouble
    asker.close()
    assert asker._command._process.returncode is not None


@pytest.mark.parametrize(
    "outers, meant",
    [({"a": "0000000b", "b": "", "c": "0000000c"}, ["a"]), ({"b": "", "c": "0000000c"}, ["b"])],
)
def test_other_programs_on_the_host_of_a_job_are_not_of_its_run(outers, meant):
    found = [{"run": run, "outer": outer, "status": None} for run, outer in outers.items()]
    words = [sys.executable, "-c", f"input(); print({json.dumps(found)!r}, flush=True); input()"]
    asker = JobAsker("0000000b", "job-1", words, os.environ)
    asker.ask()
    asker.wait(time.monotonic() + PATIENCE)

    assert [one.id for one in asker.answers] == meant
    asker.close()


def test_what_a_shell_prints_is_no_answer_and_why_a_command_ended_is_told():
    words = [sys.executable, "-c", "print('welcome'); raise SystemExit('no module named fiber')"]
    asker = JobAsker("0000000b", "job-1", words, os.environ)
    asker.ask()
    asker.wait(time.monotonic() + PATIENCE)
    until(lambda: asker.failure)

    assert asker.trouble == "job job-1 does not answer: no module named fiber"
    asker.close()


def test_a_list_of_something_else_is_told_as_an_answer_that_cannot_be_read():
    asker = JobAsker("0000000b", "job-1", [sys.executable, "-c", "print('[1]')"], os.environ)
    asker.ask()
    asker.wait(time.monotonic() + PATIENCE)

    assert not asker.answers
    asker.close()


def test_the_program_of_a_run_is_asked_where_its_job_is_and_its_workers_are_not(
    fiber, program, way
):
    reached = way(HERE)

    data = json.loads(fiber("top", "--json").stdout)
    shown = fiber("top", "--once")

    assert set(reached) == {program.id}
    outer, inner = data
    assert (outer["run"], outer["status"]) == ("0000000b", None)
    assert (inner["job"], inner["status"]["pools"][0]["done"]) == (program.id, 5)
    rows = [line.split("\t") for line in shown.stdout.splitlines()]
    assert next(row[2:6] for row in rows if row[0] == inner["run"]) == ["1/1", "0", "0", "5"]
    assert "0000000b" not in shown.stderr
    # either id is a word for it, and that of the job
    for word in ("0000000b", inner["run"], program.id):
        assert fiber("top", "--once", word).stdout.splitlines()[1].startswith(inner["run"])


def test_all_jobs_of_a_backend_are_asked_where_it_is_named(
    fiber, submit, elsewhere, way, monkeypatch
):
    monkeypatch.setattr(runs, "_environ", lambda session: elsewhere)
    job = submit(run_id="0000000c")
    way(HERE)

    (found,) = json.loads(fiber("top", "--json", "--backend", "fake").stdout)

    assert (found["job"], found["status"]["pools"][0]["done"]) == (job.id, 5)


def test_a_job_without_fiber_is_told_with_what_it_said(fiber, program, way):
    way([sys.executable, "-c", "raise SystemExit('No module named fiber')"])

    done = fiber("top", "--once")

    assert done.exit_code == 0
    told = f"0000000b: job {program.id} does not answer: No module named fiber"
    assert told in done.stderr
    assert told in fiber("top", "--json", program.id).stderr


def test_a_backend_that_runs_nothing_beside_a_job_is_told(fiber, program, capable):
    capable(exec=False, same_host=False)

    done = fiber("top", "--once")

    assert done.exit_code == 0
    assert "0000000b: fiber top of a run elsewhere is not supported by fake" in done.stderr


def test_the_programs_own_interpreter_is_asked(fiber, submit):
    session = Session.load("fake")
    for argv, python in [
        (["/opt/py/bin/python3.12", "a.py"], "/opt/py/bin/python3.12"),
        (["sh"], "python3"),
    ]:
        job = submit(argv=programs.sleep_forever())
        words = runs._command(session, attrs.evolve(job, argv=argv))
        at = words.index("--")
        assert words[at - 4 : at] == ["-i", "--backend", "fake", job.id]
        assert words[at + 1 :] == [python, "-m", "fiber.cli.main", "top", "--answer"]


def test_one_run_there_is_asked_whatever_its_status_socket_answers(elsewhere):
    (ident,) = (part.name for part in os.scandir(f"{elsewhere['XDG_RUNTIME_DIR']}/fiber"))
    connection = JobConnection(ident, HERE, elsewhere, PATIENCE)
    worker = connection.ask("status")["pools"][0]["workers"][0]

    assert connection.ask("timeline")["spans"] == []
    assert connection.ask("log", job=worker["job"]) == {"job": worker["job"], "lines": []}
    with pytest.raises(FiberError, match=f"run {ident} answers: no worker or process"):
        connection.ask("log", job="nothing")
    # it goes on after an error
    assert connection.ask("status")["run"] == ident
    connection.close()
    with pytest.raises(FiberError, match=f"the job that tells of run {ident} does not answer"):
        connection.ask("status")


@pytest.mark.parametrize(
    "program, patience, said",
    [
        ("print('welcome')", 60, "the command there ended with 0"),
        ("print('{')", 60, "Expecting property name"),
        ("input(); print('welcome', flush=True); input()", 0.5, "it takes too long"),
    ],
)
def test_a_command_that_does_not_answer_for_a_run_is_told(program, patience, said):
    connection = JobConnection("0000000a", [sys.executable, "-c", program], os.environ, patience)
    with pytest.raises(FiberError, match=said):
        connection.ask("status")
    connection.close()


def test_the_dashboard_has_a_run_whose_program_is_in_a_job(fiber, program, way):
    way(HERE)
    timing = Timing()
    remote = RemoteRuns(manager.load_plugins(), None, timing)
    with contextlib.closing(remote):
        (found,) = dashboard._Runs("0000000b", remote, timing)(waits=True)
        connection = found.connect()
        status = connection.ask("status")
        connection.close()

    assert status["run"] == found.id != "0000000b"
    assert status["pools"][0]["done"] == 5


def test_the_dashboard_says_why_a_job_does_not_tell_of_the_run_that_is_meant(fiber, program, way):
    way([sys.executable, "-c", "raise SystemExit('no module named fiber')"])

    done = fiber("dashboard", "0000000b")

    assert done.exit_code == 1
    assert f"run 0000000b cannot be shown: job {program.id} does not answer" in done.stderr
    assert "no module named fiber" in done.stderr
