"""What backends that run containers have in common."""

import getpass
import os

import pytest

from fiber.backend_parts.containers import innermost, is_reduced, timestamp, user_name
from fiber.model import JobSpec


@pytest.mark.parametrize(
    "security, all_do, fibers_own_do",
    [("restricted", True, True), ("reduced", False, True), ("image", False, False)],
)
def test_a_setting_says_whose_container_does_without_privileges(security, all_do, fibers_own_do):
    program = JobSpec(run_id="0123abcd", name="job", argv=("program",))
    worker = JobSpec(run_id="0123abcd", name="job", argv=("python",), entry="worker")

    assert is_reduced(security, program) is all_do
    assert is_reduced(security, worker) is fibers_own_do


def test_the_systems_words_are_told_of_an_error_that_was_wrapped():
    first, wrapped, last = TimeoutError("no route"), OSError("connect"), ValueError("request")
    wrapped.__cause__, last.__context__ = first, wrapped

    assert innermost(last) == "no route"
    assert innermost(KeyError()) == "KeyError"


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T02:00:30.250000000+02:00", 30.25),
        ("1969-12-31T19:00:00-05:00", 0.0),
        (None, None),
        ("", None),
        ("1970-01-01", None),
    ],
)
def test_times_are_those_of_their_zones(text, seconds):
    assert timestamp(text) == seconds


def test_a_user_without_a_name_is_named_by_the_id(monkeypatch):
    def unnamed():
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unnamed)

    assert user_name.__wrapped__() == str(os.getuid())
