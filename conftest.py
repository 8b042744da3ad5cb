"""What holds for every test of every distribution: it leaves nothing behind, and has time."""

import pytest
from hypothesis import HealthCheck, settings

# whichever test is collected first, and whatever part of the kit it imports
pytest.register_assert_rewrite("fiber.testing.kit")

pytest_plugins = ["hygiene", "engines", "pythons"]

# that a machine is busy says nothing about what is tested
settings.register_profile(
    "unhurried", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")
