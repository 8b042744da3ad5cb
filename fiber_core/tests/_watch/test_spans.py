"""Spans of OpenTelemetry: each task is one whose parent is its caller's, and nobody else pays."""

import json
import os
import sys

import pytest

import fiber
import require
from fiber._base import values
from fiber._runtime import runtime
from fiber._tasks.protocol import Tasks
from fiber._watch import spans
from fiber.exceptions import ConfigError
from pool_tasks import fail_at, square
from waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("shared_runtime")

#: the exporter of this process
EXPORTED = []


def install():
    """Set up the SDK of this process, once, with an exporter in memory."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    if not EXPORTED:
        provider = TracerProvider()
        EXPORTED.append(InMemorySpanExporter())
        provider.add_span_processor(SimpleSpanProcessor(EXPORTED[0]))
        trace.set_tracer_provider(provider)
    EXPORTED[0].clear()
    return trace.get_tracer("test")


def exported(*_):
    """Spans of this process that have ended, as a worker sends them back."""
    return [json.loads(span.to_json()) for span in EXPORTED[0].get_finished_spans()]


def baggage(name):
    from opentelemetry import baggage

    return baggage.get_baggage(name)


@pytest.fixture
def tracer():
    require.need_in_jobs("opentelemetry")
    pytest.importorskip("opentelemetry.sdk.trace")
    return install()


@pytest.fixture
def pool(monkeypatch, tracer):
    current = runtime.current()
    monkeypatch.setattr(current, "config", values.evolve(current.config, otel=True))
    with fiber.Pool(1, initializer=install) as pool:
        yield pool
    pool.join()


def hexadecimal(span):
    context = span.get_span_context()
    return f"0x{context.trace_id:032x}", f"0x{context.span_id:016x}"


@pytest.mark.parametrize(
    "call, count",
    [
        (lambda pool: pool.map(square, range(3)), 3),
        (lambda pool: pool.map(square, range(5), chunksize=2), 5),
        (lambda pool: list(pool.imap(square, [1, 2])), 2),
        (lambda pool: pool.starmap(square, [(2,)]), 1),
        (lambda pool: pool.apply(square, (), {"x": 2}), 1),
    ],
    ids=["map", "chunks", "imap", "starmap", "apply"],
)
def test_each_task_is_a_span_in_its_callers(pool, tracer, call, count):
    with tracer.start_as_current_span("caller") as caller:
        call(pool)
    found = [span for span in pool.apply(exported) if span["name"] == "process square"]

    trace, parent = hexadecimal(caller)
    assert len(found) == count
    assert {(span["context"]["trace_id"], span["parent_id"]) for span in found} == {(trace, parent)}
    ids = [span["attributes"]["messaging.message.id"] for span in found]
    number = ids[0].partition("-")[0]
    assert ids == [f"{number}-{index}" for index in range(count)]
    one = found[0]
    assert one["kind"] == "SpanKind.CONSUMER"
    assert one["attributes"]["messaging.system"] == "fiber"
    assert one["attributes"]["messaging.operation.type"] == "process"
    assert one["attributes"]["messaging.destination.name"] == "square"
    assert one["attributes"]["code.function.name"] == "pool_tasks.square"
    assert one["attributes"]["process.pid"] != os.getpid()


def test_tasks_that_are_given_one_by_one_have_their_own_callers(pool, tracer):
    results, parents = [], []
    for _ in range(3):
        with tracer.start_as_current_span("caller") as caller:
            results.append(pool.apply_async(square, (3,)))
            parents.append(hexadecimal(caller)[1])
    assert [result.get(PATIENCE) for result in results] == [9, 9, 9]

    found = [span for span in pool.apply(exported) if span["name"] == "process square"]

    assert [span["parent_id"] for span in found] == parents


def test_a_task_that_fails_tells_its_error_and_a_task_without_a_caller_is_a_root(pool):
    with pytest.raises(ValueError, match="bad 1"):
        pool.starmap(fail_at, [(1, 1)])

    (found,) = [span for span in pool.apply(exported) if span["name"] == "process fail_at"]

    assert found["parent_id"] is None
    assert found["status"]["status_code"] == "ERROR"
    assert found["attributes"]["error.type"] == "ValueError"
    assert [event["name"] for event in found["events"]] == ["exception"]


def test_baggage_goes_with_a_task_unless_it_is_too_long(pool, tracer):
    from opentelemetry import baggage as module
    from opentelemetry import context

    for value, expected in [("42", "42"), ("4" * spans._MOST, None)]:
        token = context.attach(module.set_baggage("answer", value))
        assert pool.apply(baggage, ("answer",)) == expected
        context.detach(token)


def test_an_executor_has_them_too(monkeypatch, tracer):
    current = runtime.current()
    monkeypatch.setattr(current, "config", values.evolve(current.config, otel=True))
    with fiber.Executor(1, initializer=install) as executor:
        with tracer.start_as_current_span("caller") as caller:
            executor.submit(square, 2).result(PATIENCE)
        found = executor.submit(exported).result(PATIENCE)

    assert [span["parent_id"] for span in found] == [hexadecimal(caller)[1]]


def test_where_the_setting_is_off_no_context_goes_with_a_task(tracer, monkeypatch):
    monkeypatch.setattr(
        spans, "context_of_caller", lambda: pytest.fail("the context was asked for")
    )
    with fiber.Pool(1, initializer=install) as pool:
        with tracer.start_as_current_span("caller"):
            assert pool.map(square, range(3)) == [0, 1, 4]
        assert pool.apply(exported) == []
    pool.join()


def test_without_the_api_the_setting_says_what_to_install_and_a_worker_runs_as_it_is(monkeypatch):
    for name in ("opentelemetry", "opentelemetry.propagate", "opentelemetry.trace"):
        monkeypatch.setitem(sys.modules, name, None)
    current = runtime.current()
    monkeypatch.setattr(current, "config", values.evolve(current.config, otel=True))

    with pytest.raises(ConfigError, match=r"pip install 'fiber-core\[otel\]'"):
        fiber.Pool(1)
    head = Tasks(1, 1, 0, 1, 1, 0, bytes(16), context=b"{}")
    assert spans.in_spans(abs, [-1], abs, head) == (abs, [-1])
