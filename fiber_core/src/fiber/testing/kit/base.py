"""Base class of the kits: levels, measurements, and the rule for overridden tests."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from fiber.testing.levels import LEVELS

__all__ = ["RECORD", "Facts", "Kit", "level_of"]

#: name of the property by which a test's facts reach the results
RECORD = "fiber_kit"

#: facts about a test for the results: its level, its subject, its measurements
Facts = dict[str, Any]


class Kit:
    """Base of the kits."""

    #: the kit's name in results; a kit sets it
    kit_name: str = ""
    #: level of the tests that a class of the kit defines
    level: int = 1
    #: levels to run; begin with the first ones while a backend is being written
    levels: Collection[int] = tuple(LEVELS)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse to override a test of the kit without a reason.

        Raises:
            TypeError: a test is overridden by one that is not marked ``xfail`` with a reason.
        """
        super().__init_subclass__(**arguments)
        if cls.__module__.startswith("fiber.testing."):
            return
        for name, value in vars(cls).items():
            inherited = any(name in vars(base) for base in cls.__mro__[1:])
            if name.startswith("test") and inherited and not _has_reason(value):
                msg = (
                    f"{cls.__name__}.{name} overrides a test of the conformance kit; mark it with "
                    f"pytest.mark.xfail(reason=...) and say why the kit cannot pass"
                )
                raise TypeError(msg)

    @pytest.fixture(autouse=True)
    def facts(self, request: pytest.FixtureRequest) -> Facts:
        """Facts about this test for the results; skips a test whose level is not to be run."""
        name = getattr(request.node, "originalname", request.node.name)
        level = level_of(type(self), name)
        facts: Facts = {"kit": self.kit_name, "level": level}
        request.node.user_properties.append((RECORD, facts))
        if level is not None and level not in self.levels:
            pytest.skip(f"{type(self).__name__} runs levels {sorted(self.levels)} only")
        return facts

    @pytest.fixture
    def measure(self, facts: Facts) -> Callable[[str, float], None]:
        """Function that records a number in the results: ``measure("seconds to notice", 0.02)``."""

        def record(quantity: str, number: float) -> None:
            facts.setdefault("measured", {})[quantity] = round(number, 4)

        return record


def level_of(cls: type, name: str) -> int | None:
    """Return the level of a test of the kit; None for a test of the subclass's own."""
    found = None
    for base in cls.__mro__:
        if name in vars(base) and base.__module__.startswith("fiber.testing."):
            found = vars(base).get("level", getattr(base, "level", None))
    return found


def _has_reason(test: Any) -> bool:
    marks = getattr(test, "pytestmark", ())
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
