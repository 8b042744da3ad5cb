"""Services that a test needs: absent ones skip on a laptop and fail where CI requires them."""

import importlib.util
import os

import pytest


def need(name: str, why_not: str | None) -> None:
    """Go on where a service is there, else skip, or fail where FIBER_REQUIRE names it.

    Args:
        name: what FIBER_REQUIRE calls it; that variable is a list with commas.
        why_not: what is missing; None or empty where nothing is.
    """
    if not why_not:
        return
    required = os.environ.get("FIBER_REQUIRE", "").replace(",", " ").split()
    if name in required:
        pytest.fail(f"{name} is required here: {why_not}", pytrace=False)
    pytest.skip(f"{name}: {why_not}")


def need_module(name: str) -> None:
    """Go on where a module can be imported; else as :func:`need`."""
    need(name, None if importlib.util.find_spec(name) else f"no module {name!r} is installed")


def need_in_jobs(name: str) -> None:
    """As :func:`need_module`, for what jobs import too: images of the tests' own hold little."""
    need_module(name)
    lacks = os.environ.get("FIBER_IMAGE") and not os.environ.get("FIBER_TEST_SITE")
    need(name, "jobs run in an image without it; set FIBER_TEST_SITE=1" if lacks else None)
