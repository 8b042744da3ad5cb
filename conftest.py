"""What holds for every test of every distribution: it leaves nothing behind, and has time."""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# whichever test is collected first, and whatever it imports: what fails there tells why, too
_SUPPORT = Path(__file__).parent / "tests" / "support"
pytest.register_assert_rewrite("fiber.testing.kit", *(path.stem for path in _SUPPORT.glob("*.py")))

pytest_plugins = ["hygiene", "engines", "pythons", "progress_of_tests", "timeouts"]

# that a machine is busy says nothing about what is tested
settings.register_profile(
    "unhurried", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    """Set how files are dealt out."""
    # xdist begins files as they are collected, not those with the most tests: what takes longest is
    # first in testpaths, and begun last it would keep one process busy while the others are idle
    config.option.loadscopereorder = False


@pytest.fixture
def tenth_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durations of the test's run at a tenth, for tests that sit one of them out."""
    monkeypatch.setenv("FIBER_TIME_SCALE", "0.1")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave what was collected out of garbage collections."""
    # thousands of tests are there until the end: a full collection, which many of them ask for,
    # need not go through them each time
    gc.collect()
    gc.freeze()
