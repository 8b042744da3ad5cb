"""Spans of tasks for OpenTelemetry: the caller's context goes with a call, and each task is a span in it.

Names and attributes follow OpenTelemetry's conventions for messaging: a worker processes a message of
the function that is called. Imported only where the setting ``otel`` is on. Which exporter spans go to,
if any, is the affair of whoever sets up OpenTelemetry's SDK in a worker: the API alone makes none.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from multiprocessing import current_process
from typing import TYPE_CHECKING, Any

from fiber._tasks.call import name_of
from fiber.exceptions import ConfigError

if TYPE_CHECKING:
    from fiber._tasks.protocol import Tasks

log = logging.getLogger("fiber")

#: most bytes of a context; the W3C's own limits add up to about half of it
_MOST = 2**14
#: of the W3C's trace context, which is kept where the rest is too long
_FIELDS = ("traceparent", "tracestate")


def require() -> None:
    """Check that the API is there.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import opentelemetry.propagate  # noqa: F401 - is it there?
    except ImportError as error:
        msg = "setting 'otel' needs OpenTelemetry's API: pip install 'fiber-core[otel]'"
        raise ConfigError(msg) from error


def context_of_caller() -> bytes:
    """The current context of this thread, as it goes with a call; never empty."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    found = json.dumps(carrier).encode()
    if len(found) <= _MOST:
        return found
    log.debug("fiber: a context of %d bytes goes without its baggage", len(found))
    return json.dumps({key: carrier[key] for key in _FIELDS if key in carrier}).encode()


def in_spans(
    call: Callable[[Any], Any], items: Sequence[Any], function: Any, tasks: Tasks
) -> tuple[Callable[[Any], Any], Sequence[Any]]:
    """Run each task of an entry in a span of its own.

    Args:
        call: calls the function with one item.
        items: of the entry.
        function: the function itself.
        tasks: head of the entry.

    Returns:
        What is called with what in their place; both as they are where there is no OpenTelemetry.
    """
    try:
        from opentelemetry import context, propagate, trace
    except ImportError:
        log.debug("fiber: tasks have no spans here: OpenTelemetry is not installed in this worker")
        return call, items
    parent = propagate.extract(json.loads(tasks.context))
    tracer = trace.get_tracer("fiber")
    name = name_of(function)
    attributes: dict[str, str | int] = {
        "messaging.system": "fiber",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": name,
        "messaging.client.id": current_process().name,
        "code.function.name": f"{getattr(function, '__module__', None) or ''}.{name}".lstrip("."),
        "process.pid": os.getpid(),
    }

    def in_span(numbered: tuple[int, Any]) -> Any:
        number, item = numbered
        # with its baggage; a span alone would not bring that
        token = context.attach(parent)
        try:
            with tracer.start_as_current_span(
                f"process {name}",
                kind=trace.SpanKind.CONSUMER,
                attributes={**attributes, "messaging.message.id": f"{tasks.call}-{number}"},
            ) as span:
                try:
                    return call(item)
                except BaseException as error:
                    span.set_attribute("error.type", type(error).__qualname__)
                    raise
        finally:
            context.detach(token)

    return in_span, list(enumerate(items, tasks.start))
