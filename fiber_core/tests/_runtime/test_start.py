"""A program that is about to start processes has them made ready while it reads its settings."""

import pytest

import fiber
from fiber._agent.supervisor import start
from fiber._runtime import runtime
from fiber._runtime.start import ready_runtime


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


def test_it_is_started_at_once_and_ended_where_it_was_not_taken(begun):
    current = ready_runtime(lambda _: begun.append("judged"))
    assert begun == ["start", "judged", "end"]
    assert current is runtime.current()


def test_the_second_time_there_is_nothing_to_find_out(begun):
    ready_runtime(lambda _: None)
    del begun[:]
    ready_runtime(lambda _: None)
    assert begun == []


def test_where_a_backend_is_named_nothing_is_started_before_it_is_asked(begun, monkeypatch):
    monkeypatch.setenv("FIBER_BACKEND", "local")
    ready_runtime(lambda _: None)
    assert begun == []


def test_what_makes_no_sense_leaves_nothing(begun):
    with pytest.raises(ValueError, match="at least 1"):
        fiber.Pool(0)
    assert begun == ["start", "end"]
    assert runtime.current()._backend is None
