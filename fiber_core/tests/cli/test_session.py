"""A session chooses a backend as a program does, and leaves nothing of the runs it begins."""

import os
from pathlib import Path

import pytest

from fiber._agent import rundir
from fiber.cli.session import Session
from fiber.exceptions import (
    BackendUnavailableError,
    CapabilityError,
    ConfigError,
    UnknownBackendError,
)
from fiber.hookspecs import hookimpl
from fiber.model import JobSpec
from fiber.testing import programs

pytestmark = pytest.mark.usefixtures("fiber")


def spec(run, argv=("true",), **fields):
    return JobSpec(run_id=run.id, name="test", argv=argv, **fields)


class TestSettings:
    def test_the_default_backend_is_chosen(self):
        session = Session.load()

        assert session.info.name == "fake"
        assert session.config.backend is None

    def test_the_option_is_over_the_variable(self, monkeypatch):
        monkeypatch.setenv("FIBER_BACKEND", "nonsense")

        session = Session.load("fake")

        assert session.config.backend == "fake"
        assert str(session.config.origin("backend")) == "option --backend"

    def test_an_unknown_backend_is_an_error_with_its_origin(self, monkeypatch):
        with pytest.raises(UnknownBackendError, match="'nonsense' \\(option --backend\\)"):
            Session.load("nonsense")
        monkeypatch.setenv("FIBER_BACKEND", "nonsense")
        with pytest.raises(UnknownBackendError, match="environment FIBER_BACKEND"):
            Session.load()

    def test_settings_from_options_have_that_origin_and_are_passed_on(self):
        session = Session.load(options={"cpu": 2.0, "memory": None})

        assert str(session.config.origin("cpu")) == "option --cpu"
        assert not session.config.is_set("memory")
        assert session.config.to_environ() == {"FIBER_CPU": "2.0"}

    def test_a_wrong_setting_in_the_file_is_an_error(self):
        Path(".fiberconfig").write_text("memory = much\n")

        with pytest.raises(ConfigError, match=r"\.fiberconfig:1"):
            Session.load()

    def test_what_is_not_declared_is_refused_in_a_sentence(self):
        session = Session.load()

        session.require("logs", "x")
        with pytest.raises(CapabilityError, match="-v nfs is not supported by fake"):
            session.require("volumes", "-v nfs")


class TestRuns:
    def test_nothing_is_left_of_a_run(self, platform):
        with Session.load().begin_run() as run:
            folder = rundir.run_root() / run.id
            assert rundir.describe(folder)["pid"] == os.getpid()
            assert rundir.describe(folder)["backend"] == "fake"
            run.backend.submit(spec(run, programs.sleep_forever()))

        assert not folder.exists()
        assert platform.jobs() == []

    def test_a_detached_run_stays_with_its_jobs(self, platform):
        with Session.load().begin_run(detached=True) as run:
            run.backend.submit(spec(run, programs.sleep_forever(), detached=True))

        assert rundir.describe(rundir.run_root() / run.id)["detached"] is True
        assert [job.run_id for job in platform.jobs()] == [run.id]

    def test_nothing_is_left_of_a_detached_run_that_failed(self, platform):
        with pytest.raises(ZeroDivisionError), Session.load().begin_run(detached=True) as run:
            run.backend.submit(spec(run, programs.sleep_forever(), detached=True))
            raise ZeroDivisionError

        assert not (rundir.run_root() / run.id).exists()
        assert platform.jobs() == []

    def test_the_first_error_is_reported_where_the_run_cannot_be_removed(self, platform):
        session = Session.load()
        with pytest.raises(BackendUnavailableError, match="first"), session.begin_run():
            platform.available = False
            raise BackendUnavailableError("first")
        platform.available = True

    def test_a_submission_goes_through_the_hook(self, fiber):
        class Labels:
            @hookimpl(wrapper=True)
            def fiber_submit_job(self, backend, spec):
                seen.append(spec.name)
                return (yield)

        seen = []
        fiber.extra.append(Labels())
        session = Session.load()

        with session.begin_run() as run:
            job = session.submit(run.backend, spec(run))

        assert seen == ["test"]
        assert job.run_id == run.id

    def test_a_backend_to_look_is_in_no_run(self):
        with Session.load().open_backend() as backend:
            assert list(backend.list()) == []

        assert list(rundir.runs()) == []
