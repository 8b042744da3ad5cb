"""Messages and exit codes of failures."""

import io

import pytest

from fiber.cli.errors import Failure, after_signal, is_true
from fiber.exceptions import ConfigError, FiberError


def test_a_failure_prints_its_error_to_the_given_file():
    file = io.StringIO()

    Failure(FiberError("no room")).show(file)

    assert file.getvalue() == "fiber: no room\n"


def test_a_failure_ends_with_1_with_2_for_settings_or_with_its_own_code():
    codes = [
        Failure(FiberError("x")).exit_code,
        Failure(ConfigError("x")).exit_code,
        Failure(FiberError("x"), 127).exit_code,
    ]

    assert codes == [1, 2, 127]


def test_after_a_signal_the_exit_code_is_that_of_shells():
    assert after_signal(15) == 143


@pytest.mark.parametrize("text,meant", [("true", True), ("1", True), ("off", False), ("", False)])
def test_a_variable_means_yes_or_no(text, meant):
    assert is_true(text) is meant


def test_a_variable_that_means_neither_is_no_yes():
    assert is_true("perhaps") is False
