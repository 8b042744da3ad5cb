"""Containers get SIGTERM, then SIGKILL; a container that is gone has ended."""

import contextlib

import pytest

from fiber.exceptions import BackendUnavailableError, UnknownJobError
from fiber_docker.termination import Terminator


class Gone:
    """An engine that knows of no container."""

    def __init__(self, error):
        self.error = error

    def inspect(self, container):
        raise self.error


@pytest.mark.parametrize(
    "error, warnings",
    [(UnknownJobError("no such job"), 0), (BackendUnavailableError("no engine"), 1)],
)
def test_a_job_that_may_not_have_ended_is_logged_and_one_that_is_gone_is_not(
    error, warnings, caplog
):
    terminator = Terminator(Gone(error), handler_check=0.05)
    with contextlib.closing(terminator):
        terminator.terminate("a", 1.0)
    messages = [one.message for one in caplog.records if "may not have been ended" in one.message]
    assert len(messages) == warnings
