"""A worker whose pool is played by the test."""

import threading

import pytest

from fiber._tasks.worker import Worker
from fiber._wire.frames import Kind
from fiber.model import Timing
from tasks_world import TARGET, FakeLink


@pytest.fixture
def link(store):
    """The pool's end of a worker that has asked for work; ``store`` is the test module's."""
    link = FakeLink()
    worker = Worker(link, TARGET, lambda: pytest.fail("it dialled again"), store, timing=Timing())
    thread = threading.Thread(target=worker.run)
    thread.start()
    link.next(Kind.ASK)
    yield link
    link.deliver(Kind.RETIRE)
    thread.join(20)
    assert not thread.is_alive()
    link.release()
