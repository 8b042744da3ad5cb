"""Commands for jobs that are there: they select, list, end, show, enter and copy."""

import json
import signal
import threading

import pytest

import owners
from distributions import Answers
from fiber._agent import rundir
from fiber._ring.mpi.agent import SOCKET
from fiber.cli.jobs import find_job, list_jobs
from fiber.exceptions import BackendUnavailableError, FiberError, UnknownJobError
from fiber.model import BackendInfo, Job, JobState, JobStatus, Reason, ReasonKind
from fiber.testing import FakeBackend, programs


@pytest.fixture
def ready(submit, platform):
    """Submit a job that prints when it is ready, and wait for that."""

    def started(argv=None, **fields):
        job = submit(argv, **fields)
        assert next(platform.find(job).lines(None, follow=True)) == "ready"
        return job

    return started


@pytest.fixture
def ended(submit, platform):
    """Submit a job and wait for its end."""

    def done(argv, **fields):
        job = submit(argv, **fields)
        assert platform.find(job).ended.wait(30)
        return job

    return done


class TestFinding:
    @pytest.mark.parametrize(
        "word, jobs",
        [
            ("ab", [("ab12", "job"), ("ac34", "job")]),
            ("ab12", [("ab12", "job"), ("ac34", "job")]),
            # a whole id is never ambiguous
            ("ab", [("ab", "job"), ("ab12", "job"), ("x", "ab")]),
            ("train", [("ab12", "train"), ("cd34", "train-2")]),
        ],
        ids=["beginning", "id", "id that others begin with", "name"],
    )
    def test_a_word_means_one_job(self, word, jobs):
        found = [Job(id=ident, name=name, run_id="0", backend="fake") for ident, name in jobs]

        assert find_job(found, word) is found[0]

    @pytest.mark.parametrize(
        "word, names, error, told",
        [
            ("ab", {"ab12": "one", "ab34": "two"}, FiberError, r"2 jobs: ab12 \(one\), ab34 \(two\); give more"),
            ("a", {f"a{n:02}": "job" for n in range(25)}, FiberError, r"25 jobs: a00 .* a09 \(job\) and 15 more"),
            ("zz", {"ab12": "job"}, UnknownJobError, "'zz'; 'fiber ps -a' lists"),
        ],
        ids=["ambiguous", "many", "none"],
    )  # fmt: skip
    def test_another_word_is_an_error_with_the_candidates(self, word, names, error, told):
        jobs = [Job(id=i, name=n, run_id="0", backend="fake") for i, n in names.items()]

        with pytest.raises(error, match=told):
            find_job(jobs, word)

    @pytest.mark.parametrize("command", [("logs",), ("kill",)], ids=["logs", "kill"])
    def test_a_job_that_may_be_where_nobody_can_be_asked_is_not_called_unknown(
        self, fiber, backend, submit, monkeypatch, command
    ):
        submit()

        def status(self, jobs):
            if jobs[0].id == "elsewhere":
                raise BackendUnavailableError("host beta cannot be asked: it is down")
            return known(self, jobs)

        known = type(backend).status
        monkeypatch.setattr(type(backend), "status", status)

        told = fiber.fails(*command, "elsewhere")

        assert "host beta cannot be asked: it is down" in told
        assert "no job is" not in told


class TestListing:
    def test_a_job_that_is_removed_meanwhile_is_left_out(self, backend, submit, monkeypatch):
        gone, there = submit(run_id="00000001"), submit(run_id="00000002")
        listed = backend.list()
        monkeypatch.setattr(backend, "list", lambda _: listed)
        backend.cleanup("00000001")

        assert [item.job for item in list_jobs(backend)] == [there]
        assert gone in listed


class TestPs:
    def test_a_running_job_is_one_line(self, fiber, submit, platform):
        job = submit(name="wait")
        assert platform.wait_for(lambda: platform.find(job).status.processes, 30)
        (process,) = platform.find(job).status.processes

        header, line = fiber.lines("ps")

        assert header == "RUN\tJOB\tNAME\tSTATE\tPID\tHOST\tAGE\tPROGRAM"
        run, ident, name, state, pid, host, age, program = line.split("\t")
        assert (run, ident, name, state) == ("00000001", job.id, "wait", "running")
        assert (pid, host) == (str(process.pid), "fake-host")
        assert age.endswith("s")
        # a program of several lines is one cell
        assert program.startswith(job.argv[0])

    def test_ended_jobs_are_listed_when_asked_for_with_the_reason(
        self, fiber, ended, submit, platform
    ):
        for code in (0, 7):
            ended(programs.exit_with(code))
        lost = submit()
        platform.lose(lost, Reason(ReasonKind.EVICTED), "the node is drained")
        assert platform.find(lost).ended.wait(30)

        found = fiber("ps", "--all")
        states = [line.split("\t")[3] for line in found.stdout.splitlines()[1:]]

        assert len(fiber.lines("ps")) == 1
        assert states == ["succeeded", "failed EXIT(7)", "failed EVICTED"]
        assert (
            json.loads(fiber("ps", "-a", "--json").stdout)[-1]["message"] == "the node is drained"
        )

    def test_why_jobs_wait_or_could_not_run_is_a_line_for_each_cause_in_the_platforms_words(
        self, fiber, submit, monkeypatch
    ):
        full = JobStatus(state=JobState.PENDING, message="0/2 nodes:\n2 Insufficient cpu")
        failed = {"state": JobState.FAILED, "exit_code": 1}
        image = JobStatus(reason=Reason(ReasonKind.IMAGE), message="no such image", **failed)
        other = JobStatus(reason=Reason(ReasonKind.EXIT, 1), message="its code was 1", **failed)
        placed = JobStatus(state=JobState.PENDING, message="runs the prolog", is_starting=True)
        statuses = {submit().id: one for one in (full, image, other, placed, full)}
        monkeypatch.setattr(
            FakeBackend, "status", lambda _, jobs: [statuses[job.id] for job in jobs]
        )

        found = fiber("ps", "-a")
        states = [line.split("\t")[3] for line in found.stdout.splitlines()[1:]]

        first, second, _, fourth, _ = statuses
        assert states == ["pending", "failed IMAGE", "failed EXIT(1)", "starting", "pending"]
        assert found.stderr.splitlines() == [
            f"fiber: {first} and 1 more wait: 0/2 nodes: 2 Insufficient cpu",
            f"fiber: {second} failed: no such image",
            f"fiber: {fourth} is starting: runs the prolog",
        ]


class TestKill:
    @pytest.mark.parametrize(
        "argv, words, code",
        [
            (programs.exit_on_sigterm(9), (), 9),
            (programs.ignore_sigterm(), ("--grace", "0.1"), -signal.SIGKILL),
            (programs.exit_on_sigterm(9), ("--now",), -signal.SIGKILL),
        ],
        ids=["as it wants", "after the grace", "at once"],
    )
    def test_a_job_ends(self, fiber, platform, ready, argv, words, code):
        job = ready(argv)

        assert fiber.lines("kill", *words, job.id) == [f"Ended job: {job.id}"]
        assert platform.find(job).status.exit_code == code

    def test_several_jobs_of_several_runs_end(self, fiber, ready):
        jobs = [ready(run_id=run, name=f"job-{run}") for run in ("00000001", "00000002")]

        lines = fiber.lines("kill", *(job.name for job in jobs))

        assert sorted(lines) == [f"Ended job: {job.id}" for job in jobs]

    def test_all_jobs_of_a_run_end_and_no_others(self, fiber, platform, ready):
        jobs = [ready(run_id=run) for run in ("aa000001", "aa000001", "ab000001")]

        fiber.lines("kill", "--run", "aa")

        ends = [platform.find(job).status.exit_code is not None for job in jobs]
        assert ends == [True, True, False]

    def test_an_ended_job_is_reported_as_such(self, fiber, platform, ended):
        job = ended(programs.exit_with(3))

        assert fiber.lines("kill", job.id) == [f"Ended before: {job.id}"]
        assert platform.find(job).status.exit_code == 3

    @pytest.mark.parametrize(
        "words, code, told",
        [
            (("one", "zz"), 1, "no job is 'zz'"),
            (("one", "twin"), 1, "(twin), "),
            (("--run", "cc"), 1, "no run is 'cc'"),
            (("--run", "a"), 1, "2 runs: aa000001, ab000001"),
            ((), 2, "name the jobs to end"),
            (("--run", "aa", "one"), 2, "name the jobs to end"),
        ],
    )
    def test_nothing_ends_where_a_word_is_wrong(self, fiber, platform, ready, words, code, told):
        named = (("one", "aa000001"), ("twin", "ab000001"), ("twin", "ab000001"))
        jobs = [ready(name=name, run_id=run) for name, run in named]

        assert told in fiber.fails("kill", *words, code=code)
        assert [platform.find(job).status.exit_code for job in jobs] == [None] * 3

    def test_a_job_that_does_not_end_is_an_error_with_its_id(self, fiber, ready, monkeypatch):
        monkeypatch.setenv("FIBER_TIME_SCALE", "0.004")
        graces = []
        monkeypatch.setattr(FakeBackend, "terminate", lambda *_, grace: graces.append(grace))
        job = ready()

        told = fiber.fails("kill", "--grace", "0.01", job.id)

        assert told == f"fiber: still there 0.13 s after they were asked to end: {job.id}\n"
        assert graces == [0.01]

    @pytest.mark.parametrize("forgets", [False, True], ids=["ended", "forgotten"])
    def test_a_job_of_which_no_event_comes_has_ended_once_it_is_gone(
        self, fiber, platform, ready, monkeypatch, forgets
    ):
        job, closed, asked = ready(), threading.Event(), FakeBackend.kill

        def events(*_):
            closed.wait(30)
            return iter(())

        def kill(backend, job):
            asked(backend, job)
            if forgets:
                platform.end([job], forget=True)

        # a job's process takes its time to end
        monkeypatch.setenv("FIBER_TIME_SCALE", "0.03")
        monkeypatch.setattr(FakeBackend, "events", events)
        monkeypatch.setattr(FakeBackend, "kill", kill)

        assert fiber.lines("kill", "--now", job.id) == [f"Ended job: {job.id}"]
        if not forgets:
            assert platform.find(job).status.exit_code == -signal.SIGKILL
        closed.set()


class TestExec:
    @pytest.fixture(autouse=True)
    def job(self, submit):
        return submit(name="long")

    @pytest.mark.parametrize("dashes", [(), ("--",)])
    def test_words_are_kept_and_the_code_is_returned(self, fiber, job, dashes):
        words = programs.expect_args("two words", "", "-x", "--y=1", 'it\'s "$HOME"')

        assert fiber("exec", job.id, *dashes, *words).exit_code == 0
        assert fiber("exec", "long", *dashes, *programs.exit_with(7)).exit_code == 7

    @pytest.mark.parametrize("before", [(), ("-x",), ("-o", "A=b", "-q"), ("-l", "me", "--")])
    def test_rsh_joins_words_for_a_shell_and_ignores_its_options(self, fiber, capfd, before):
        done = fiber("rsh", *before, "me@long", 'x="a  b";', "echo", '"$x"', "--", "-p; exit 7")

        assert done.exit_code == 7
        assert capfd.readouterr().out == "a  b -- -p\n"

    @pytest.mark.parametrize(
        "words, code, told",
        [
            (("exec", "long", "--"), 2, "name the program"),
            (("exec", "zz", "true"), 1, "no job is 'zz'"),
            (("rsh",), 2, "no host is named"),
            (("rsh", "long"), 2, "no command is named for host 'long'"),
            (("rsh", "zz", "true"), 1, "no job is 'zz'"),
        ],
    )
    def test_a_job_and_a_program_have_to_be_named(self, fiber, words, code, told):
        assert told in fiber.fails(*words, code=code)


def test_within_a_run_of_mpirun_the_host_of_rsh_is_a_member(fiber, monkeypatch, tmp_path):
    monkeypatch.setenv(SOCKET, str(tmp_path / "door"))

    # the agent writes to the process's own streams, as what it runs does
    assert fiber("rsh", "member-0", "true").exit_code == 255


def test_source_and_target_of_a_copy_are_passed_on(fiber, monkeypatch, capable):
    told = []
    capable(copy=True)
    monkeypatch.setattr(FakeBackend, "copy", lambda _, src, dst: told.append((src, dst)))

    assert fiber.lines("cp", "a b", "data:c") == fiber.lines("cp", "-r", "a b", "data:c") == []
    assert told == [("a b", "data:c")] * 2


def test_a_copy_that_is_asked_to_end_removes_what_it_made(fiber, monkeypatch, capable):
    told = []

    def copy(*_):
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            told.append("removed")

    capable(copy=True)
    monkeypatch.setattr(FakeBackend, "copy", copy)

    assert fiber("cp", "a", "data:b").exit_code == 143
    assert told == ["removed"]


@pytest.mark.parametrize(
    "words, capability, told",
    [
        (("logs", "x"), "logs", "fiber logs is not supported by fake"),
        (("logs", "-f", "x"), "follow_logs", "fiber logs --follow is not supported by fake"),
        (("exec", "x", "true"), "exec", "fiber exec is not supported by fake"),
        (("rsh", "x", "true"), "exec", "fiber rsh is not supported by fake"),
        (("rsh", "x", "true"), "exec", "within 'fiber mpirun' HOST is a member"),
        (("rsh", "x", "true"), "exec", "run the words here"),
        (("cp", "a", "data:b"), "copy", "is not supported by fake"),
    ],
)
def test_what_the_backend_cannot_do_is_refused(fiber, capable, words, capability, told):
    capable(**{capability: False})

    refused = fiber.fails(*words)

    assert told in refused
    assert f"(capability '{capability}')" in refused


def orphan(run_id, **changes):
    """A run whose program has died."""
    # not by rundir.create(), which sweeps the orphans before
    folder = rundir.run_root() / run_id
    folder.mkdir(mode=0o700)
    owners.owned_by(folder, owners.DEAD)
    description = {"backend": "fake", "pid": owners.DEAD.pid, **changes}
    (folder / "run.json").write_text(json.dumps(description))
    return folder


@pytest.mark.parametrize("detached", [False, True], ids=["attached", "being begun"])
def test_a_run_whose_program_lives_is_left_alone(fiber, ended, detached):
    folder = rundir.create("00000001", "fake", detached=detached)
    if not detached:
        ended(programs.exit_with(0))

    assert fiber.lines("gc") == []
    assert folder.exists()


@pytest.mark.parametrize("detached", [False, True])
def test_a_run_whose_program_cannot_be_checked_is_kept_and_reported(
    fiber, ended, platform, detached
):
    folder = orphan("00000001", detached=detached)
    ended(programs.exit_with(0), detached=detached)
    owners.owned_by(folder, owners.REMOTE)

    done = fiber("gc")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "run 00000001 is kept: nothing seen from here proves that its program, process 17 of far," in done.stderr  # fmt: skip
    assert folder.exists()
    assert len(platform.jobs()) == 1


def test_a_detached_run_is_removed_once_its_jobs_have_ended(fiber, submit, platform):
    folder = orphan("00000001", detached=True)
    job = submit(detached=True)

    assert fiber.lines("gc") == []

    platform.find(job).kill()
    assert platform.find(job).ended.wait(30)

    assert fiber.lines("gc") == ["Removed run: 00000001 (its jobs have ended)"]
    assert not folder.exists()
    assert platform.jobs() == []


def test_a_run_that_cannot_be_collected_is_kept_and_the_others_are_not(fiber):
    foreign, ours = orphan("00000001", backend="elsewhere"), orphan("00000002")

    done = fiber("gc")

    assert done.exit_code == 1
    told = "run 00000001 is kept: unknown backend 'elsewhere' (of this run, which process"
    assert told in done.stderr
    assert "--backend" not in done.stderr
    assert done.stdout.startswith("Removed run: 00000002")
    assert (foreign.exists(), ours.exists()) == (True, False)


def test_runs_of_one_backend_can_be_collected_alone(fiber, platform):
    offered = BackendInfo(name="other", load=lambda _: None)
    fiber.extra.append(Answers("fiber_backends", [offered]))
    other, ours = orphan("00000001", backend="other"), orphan("00000002")

    fiber.lines("gc", "--backend", "fake")

    assert (other.exists(), ours.exists()) == (True, False)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_run_goes_with_its_jobs_when_its_program_has_died_here_or_as_the_backend_tells(
    fiber, submit, platform, monkeypatch, dry_run
):
    def sweep(_, *, dry_run=False):
        calls.append(dry_run)
        return ["0000000f", "00000001"]

    calls = []
    monkeypatch.setattr(FakeBackend, "sweep", sweep)
    # one that began on this host is printed once
    folder = orphan("00000001")
    submit()

    lines = fiber.lines("gc", *(["--dry-run"] if dry_run else []))

    does = "Would remove" if dry_run else "Removed"
    assert sorted(lines) == [
        f"{does} run: 00000001 (its program, process {owners.DEAD.pid}, has died)",
        f"{does} run: 0000000f (whoever began it is gone)",
    ]
    assert calls == [dry_run]
    assert (folder.exists(), len(platform.jobs())) == (dry_run, dry_run)
