"""What a runtime does before the first process starts, and how its parts are closed."""

import contextlib
import os
import traceback

import pytest

import fiber
from fiber._agent.supervisor import start
from fiber._plugins.manager import load_plugins
from fiber._runtime import runtime
from fiber._runtime.runtime import Runtime
from fiber._runtime.start import ready_runtime
from fiber.exceptions import BackendError, BackendUnavailableError, ConfigError, SubmitError
from fiber.executor import Executor
from fiber.hookspecs import hookimpl
from fiber.model import JobSpec
from fiber.testing import FakeBackend


@pytest.fixture
def begun(monkeypatch):
    calls = []
    monkeypatch.setattr(start, "prestart", lambda: calls.append("start"))
    monkeypatch.setattr(start, "discard_prestarted", lambda: calls.append("end"))
    monkeypatch.delenv("FIBER_BACKEND", raising=False)
    monkeypatch.setattr(runtime, "_current", None)
    monkeypatch.setattr(runtime, "_arguments", {})
    yield calls
    if runtime.started() is not None:
        runtime.current().close()


def test_a_process_is_made_ready_at_once_and_ended_where_it_was_not_taken(begun):
    current = ready_runtime(lambda _: begun.append("judged"))
    assert begun == ["start", "judged", "end"]
    assert current is runtime.current()
    # the second time there is nothing to find out
    ready_runtime(lambda _: None)
    assert begun == ["start", "judged", "end"]


def test_the_first_process_of_a_program_has_one_started_ahead_of_it(begun):
    for _ in range(2):
        process = fiber.Process(target=os.getpid)
        process.start()
        process.join()
        assert process.exitcode == 0

    assert begun == ["start", "end"]


def test_where_a_backend_is_named_nothing_is_started_before_it_is_asked(begun, monkeypatch):
    monkeypatch.setenv("FIBER_BACKEND", "local")
    ready_runtime(lambda _: None)
    assert begun == []


def test_what_makes_no_sense_leaves_nothing(begun):
    with pytest.raises(ValueError, match="at least 1"):
        fiber.Pool(0)
    assert begun == ["start", "end"]
    assert runtime.current()._backend is None


class TestErrorsOfAUser:
    @pytest.fixture(autouse=True)
    def engine_that_is_away(self, begun, monkeypatch):
        def ask_the_engine(_):
            try:
                raise FileNotFoundError("docker.sock")
            except OSError as error:
                raise BackendUnavailableError("the engine is away; start it") from error

        monkeypatch.setattr(runtime, "_load_backend", ask_the_engine)

    @pytest.fixture(params=["process", "pool", "executor", "manager", "cpu_count"])
    def text(self, request):
        """What such a program prints at its end."""
        calls = {
            "process": lambda: fiber.Process(target=print).start(),
            "pool": lambda: fiber.Pool(1),
            "executor": lambda: Executor(1).submit(print),
            "manager": fiber.Manager,
            "cpu_count": fiber.cpu_count,
        }
        with pytest.raises(BackendUnavailableError) as caught:
            calls[request.param]()
        return "".join(traceback.format_exception(caught.type, caught.value, caught.tb))

    def test_are_told_without_inner_frames_and_causes(self, text):
        assert text.endswith("BackendUnavailableError: the engine is away; start it\n")
        assert text.count("Traceback") == 1
        assert "ask_the_engine" not in text

    @pytest.fixture
    def debug(self, begun, monkeypatch):
        monkeypatch.setenv("FIBER_DEBUG", "yes")
        monkeypatch.setattr(runtime, "configure_logging", lambda _: None)

    def test_are_told_in_full_to_who_debugs(self, debug, text):
        assert text.count("Traceback") == 2
        assert "ask_the_engine" in text

    def test_in_settings_are_told_without_inner_frames_as_well(self, monkeypatch):
        monkeypatch.setenv("FIBER_LEASE", "soon")
        with pytest.raises(ConfigError, match="FIBER_LEASE") as caught:
            fiber.Queue()
        assert "_config" not in "".join(traceback.format_tb(caught.tb))


class Part:
    def __init__(self, error=None):
        self.error, self.closed = error, False

    def close(self):
        self.closed = True
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    "error, told",
    [
        (BackendUnavailableError("it is gone"), "which ends by itself within 3 s: it is gone"),
        (BackendError("log in again"), "the platform refuses to end what this program still runs"),
        (KeyboardInterrupt(), "interrupted at the end of the program"),
        (ValueError("broken"), ""),
    ],
)
def test_all_parts_are_closed_and_an_interrupt_or_a_platform_that_is_away_is_a_line(
    error, told, caplog
):
    made = Runtime.of_master({"backend": "local"})
    parts = [Part(), Part(error), Part()]
    for part in parts:
        made.own(part)
    with contextlib.nullcontext() if told else pytest.raises(ValueError, match="broken"):
        made._finalizer()
    assert len(caplog.messages) == bool(told)
    assert told in caplog.text
    assert made.closed
    assert all(part.closed for part in parts)


class TestManyJobs:
    """Jobs come in one call where the backend has one, and no plugin sees each of them."""

    class Many(FakeBackend):
        answers = 2

        def submit_many(self, specs):
            return [SubmitError("no") for _ in range(self.answers)]

    class Auditor:
        @hookimpl
        def fiber_submit_job(self, spec):
            return None

    @pytest.fixture
    def master(self, begun, monkeypatch):
        current = runtime.current()
        monkeypatch.setattr(current, "_backend", self.Many())
        return current

    def test_a_plugin_that_sees_each_job_has_them_come_one_by_one(self, master, monkeypatch):
        assert master.takes_many
        monkeypatch.setattr(master, "_plugins", load_plugins(extra=[self.Auditor()]))
        assert not master.takes_many

    def test_a_backend_without_a_call_for_many_is_not_asked_for_many(self, master, monkeypatch):
        monkeypatch.setattr(master, "_backend", FakeBackend())
        assert not master.takes_many

    def test_a_backend_that_leaves_jobs_out_is_named(self, master):
        spec = JobSpec(run_id=master.run_id, name="n", argv=("true",))
        assert len(master.submit_many([spec, spec])) == 2
        with pytest.raises(BackendError, match="answered 2 of 3 specs"):
            master.submit_many([spec] * 3)
