"""Output of a job: all, the tail, or followed."""

import attrs
import pytest

from fiber.model import JobSpec
from fiber.testing import FakeBackend, fakes, programs


@pytest.fixture
def job(platform):
    backend = FakeBackend(platform=platform)
    spec = JobSpec(run_id="00000001", name="count", argv=programs.print_lines(5))
    made = backend.submit(spec)
    assert platform.find(made).ended.wait(30)
    yield made
    backend.close()


def test_all_lines_come(fiber, job):
    assert fiber.lines("logs", job.id) == [f"line {n}" for n in range(5)]


def test_the_tail_is_the_last_lines(fiber, job):
    assert fiber.lines("logs", "--tail", "2", "count") == ["line 3", "line 4"]


def test_following_ends_with_the_job(fiber, platform):
    code = "echo one; sleep 0.2; echo two"
    (line,) = fiber.lines("run", "--name", "slow", "sh", "-c", code)

    assert fiber.lines("logs", "-f", "slow") == ["one", "two"]
    assert platform.jobs()[0].id in line


def test_an_unknown_job_is_an_error(fiber, job):
    assert fiber.fails("logs", "zz") == (
        "fiber: no job is 'zz'; 'fiber ps -a' lists those there are\n"
    )


@pytest.mark.parametrize("capability,words", [("logs", ()), ("follow_logs", ("-f",))])
def test_it_is_refused_where_there_are_no_logs(fiber, job, monkeypatch, capability, words):
    declared = attrs.evolve(fakes.CAPABILITIES, **{capability: False})
    monkeypatch.setattr(fakes, "CAPABILITIES", declared)

    assert f"is not supported by fake (capability '{capability}')" in fiber.fails(
        "logs", *words, job.id
    )
