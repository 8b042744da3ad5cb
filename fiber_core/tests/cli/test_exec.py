"""A program beside a job gets its words as they are, and its exit code is the command's."""

import attrs
import pytest

from fiber.model import JobSpec
from fiber.testing import FakeBackend, fakes, programs


@pytest.fixture
def job(platform):
    backend = FakeBackend(platform=platform)
    spec = JobSpec(run_id="00000001", name="long", argv=programs.sleep_forever())
    made = backend.submit(spec)
    yield made
    backend.kill(made)
    assert platform.find(made).ended.wait(30)
    backend.close()


@pytest.mark.parametrize("dashes", [(), ("--",)])
def test_words_are_kept_and_the_code_is_returned(fiber, job, dashes):
    words = programs.expect_args("two words", "", "-x", "--y=1", 'it\'s "$HOME"')

    assert fiber("exec", job.id, *dashes, *words).exit_code == 0
    assert fiber("exec", "long", *dashes, *programs.exit_with(7)).exit_code == 7


def test_a_program_has_to_be_named(fiber, job):
    assert "name the program" in fiber.fails("exec", job.id, "--", code=2)


def test_an_unknown_job_is_an_error(fiber, job):
    assert "no job is 'zz'" in fiber.fails("exec", "zz", "true")


def test_it_is_refused_where_there_is_none(fiber, job, monkeypatch):
    declared = attrs.evolve(fakes.CAPABILITIES, exec=False)
    monkeypatch.setattr(fakes, "CAPABILITIES", declared)

    assert "is not supported by fake (capability 'exec')" in fiber.fails("exec", job.id, "true")
