"""Parts of a runtime are closed, whatever happens to the others."""

import pytest

from fiber._runtime.runtime import Runtime
from fiber.exceptions import BackendUnavailableError


class Part:
    def __init__(self, error=None):
        self.error, self.closed = error, False

    def close(self):
        self.closed = True
        if self.error is not None:
            raise self.error


@pytest.fixture
def runtime():
    runtime = Runtime.of_master({"backend": "local"})
    yield runtime
    runtime.close()


def test_a_platform_that_cannot_be_asked_at_the_end_is_a_line_and_no_error(runtime, caplog):
    first, away, last = Part(), Part(BackendUnavailableError("the engine is gone")), Part()
    for part in (first, away, last):
        runtime.own(part)
    runtime.close()
    assert first.closed
    assert last.closed
    assert runtime.closed
    (message,) = caplog.messages
    assert message.endswith("which ends by itself within 3 s: the engine is gone")


def test_another_error_is_one_and_all_the_rest_is_closed(runtime):
    first, broken = Part(), Part(ValueError("broken"))
    runtime.own(first)
    runtime.own(broken)
    with pytest.raises(ValueError, match="broken"):
        runtime.close()
    assert first.closed
    assert runtime.closed
