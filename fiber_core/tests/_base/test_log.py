"""Loggers of a program that has not imported ``logging``, and of one that has."""

import sys

import pytest

from commands import ran

LOGGING = """
import sys
from fiber._base.log import lazy_logger

log = lazy_logger()
assert "logging" not in sys.modules
{setup}
log.debug("fiber: unseen %s", 1)
log.info("fiber: unseen")
log.warning("fiber: %s of %d", "one", 2)
log.error("fiber: 100%")
print("logging" in sys.modules)
"""


@pytest.mark.parametrize("setup", ["", "import logging"])
def test_what_is_logged_is_the_same_with_and_without_the_module(setup):
    done = ran([sys.executable, "-c", LOGGING.replace("{setup}", setup)], check=True)

    assert done.stdout == f"{bool(setup)}\n"
    assert done.stderr == "fiber: one of 2\nfiber: 100%\n"


def test_an_error_is_shown_with_where_it_comes_from():
    program = LOGGING.split("log.debug", maxsplit=1)[0].replace("{setup}", "") + (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    log.warning('fiber: it failed', exc_info=True)\n"
    )

    done = ran([sys.executable, "-c", program], check=True)

    assert done.stderr.startswith("fiber: it failed\nTraceback")
    assert "ZeroDivisionError" in done.stderr
