"""Containers are asked to end, and killed when they do not; what is gone has ended."""

import contextlib

import pytest

from fiber.exceptions import BackendUnavailableError, UnknownJobError
from fiber_docker.graces import Graces


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
def test_it_is_said_who_may_not_have_ended_but_not_of_those_that_are_gone(error, warnings, caplog):
    graces = Graces(Gone(error))
    with contextlib.closing(graces):
        graces.begin("a", 1.0)
    said = [one.message for one in caplog.records if "may not have been ended" in one.message]
    assert len(said) == warnings
