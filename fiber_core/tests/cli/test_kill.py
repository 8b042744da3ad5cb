"""Jobs end as asked, and the command returns when they have."""

import signal
import threading

import pytest

from fiber.model import JobSpec
from fiber.testing import FakeBackend, programs


@pytest.fixture
def backend(platform):
    made = FakeBackend(platform=platform)
    yield made
    made.close()


@pytest.fixture
def start(backend, platform):
    """Start a job and wait until it is ready."""

    def started(argv=None, run_id="00000001", name="job"):
        spec = JobSpec(run_id=run_id, name=name, argv=argv or programs.sleep_forever())
        job = backend.submit(spec)
        if argv is None or "ready" in argv[-1] + "".join(argv):
            assert next(platform.find(job).lines(None, follow=True)) == "ready"
        return job

    return started


def code(platform, job):
    return platform.find(job).status.exit_code


def test_a_job_may_end_as_it_wants(fiber, platform, start):
    job = start(programs.exit_on_sigterm(9))

    assert fiber.lines("kill", job.id) == [f"Ended job: {job.id}"]
    assert code(platform, job) == 9


def test_it_is_killed_after_the_grace(fiber, platform, start):
    job = start(programs.ignore_sigterm())

    fiber.lines("kill", "--grace", "0.1", job.id)

    assert code(platform, job) == -signal.SIGKILL


def test_it_is_killed_at_once(fiber, platform, start):
    job = start(programs.exit_on_sigterm(9))

    fiber.lines("kill", "--now", job.id)

    assert code(platform, job) == -signal.SIGKILL


def test_several_jobs_of_several_runs_end(fiber, platform, start):
    jobs = [start(run_id=run, name=f"job-{run}") for run in ("00000001", "00000002")]

    lines = fiber.lines("kill", *(job.name for job in jobs))

    assert sorted(lines) == [f"Ended job: {job.id}" for job in jobs]


def test_all_jobs_of_a_run_end_and_no_others(fiber, platform, start):
    one, two, other = start(run_id="aa000001"), start(run_id="aa000001"), start(run_id="ab000001")

    fiber.lines("kill", "--run", "aa")

    assert None not in (code(platform, one), code(platform, two))
    assert code(platform, other) is None


def test_an_ended_job_is_reported_as_such(fiber, platform, start):
    job = start(programs.exit_with(3))
    assert platform.find(job).ended.wait(30)

    assert fiber.lines("kill", job.id) == [f"Ended before: {job.id}"]
    assert code(platform, job) == 3


def test_nothing_ends_where_one_word_is_wrong(fiber, platform, start):
    job = start()

    fiber.fails("kill", job.id, "zz")

    assert code(platform, job) is None


def test_an_ambiguous_word_lists_the_candidates(fiber, platform, start):
    jobs = [start(name="twin"), start(name="twin")]

    told = fiber.fails("kill", "twin")

    assert f"{jobs[0].id} (twin), {jobs[1].id} (twin)" in told


@pytest.mark.parametrize(
    "word,told", [("cc", "no run is 'cc'"), ("a", "2 runs: aa000001, ab000001")]
)
def test_a_run_must_be_one_run(fiber, start, word, told):
    start(run_id="aa000001")
    start(run_id="ab000001")

    assert told in fiber.fails("kill", "--run", word)


@pytest.mark.parametrize("words", [(), ("--run", "aa", "fake-1")])
def test_jobs_or_a_run_must_be_named(fiber, words):
    assert "name the jobs to end" in fiber.fails("kill", *words, code=2)


def test_a_job_that_does_not_end_is_an_error_with_its_id(fiber, start, monkeypatch):
    monkeypatch.setenv("FIBER_TIME_SCALE", "0.004")
    monkeypatch.setattr(FakeBackend, "terminate", lambda *_, **__: None)
    job = start()

    told = fiber.fails("kill", "--grace", "0", job.id)

    assert told == f"fiber: still there 0.12 s after they were asked to end: {job.id}\n"


class TestEventsThatDoNotTell:
    """Jobs that end before their run is watched have no event, and count as ended."""

    @pytest.fixture(autouse=True)
    def silent(self, monkeypatch):
        monkeypatch.setenv("FIBER_TIME_SCALE", "0.004")
        closed = threading.Event()

        def events(*_):
            closed.wait(30)
            return iter(())

        monkeypatch.setattr(FakeBackend, "events", events)
        yield
        closed.set()

    def test_a_job_that_is_gone_has_ended(self, fiber, platform, start):
        job = start()

        assert fiber.lines("kill", "--now", job.id) == [f"Ended job: {job.id}"]
        assert code(platform, job) == -signal.SIGKILL

    def test_one_that_is_not_known_any_more_has_ended_too(self, fiber, start, monkeypatch):
        job = start()
        asked = FakeBackend.kill

        def kill_and_forget(backend, job):
            asked(backend, job)
            backend.platform.end([job], forget=True)

        monkeypatch.setattr(FakeBackend, "kill", kill_and_forget)

        assert fiber.lines("kill", "--now", job.id) == [f"Ended job: {job.id}"]
