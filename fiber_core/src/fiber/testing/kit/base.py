"""What the kits share: levels, what is measured, and tests overridden with a reason or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from fiber.testing.levels import LEVELS

__all__ = ["RECORD", "Facts", "Kit", "level_of"]

#: name of the property by which a test's facts reach the results
RECORD = "fiber_kit"

#: what is known of a test: its level, its subject and what was measured
Facts = dict[str, Any]


class Kit:
    """Base of the kits."""

    #: the kit's name in results; a kit sets it
    kit_name: str = ""
    #: level of the tests that a class of the kit defines
    level: int = 1
    #: the levels to run; a backend that is being written begins with the first ones
    levels: Collection[int] = tuple(LEVELS)

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse to override a test of the kit without saying why.

        Raises:
            TypeError: a test is overridden by one that is not marked ``xfail`` with a reason.
        """
        super().__init_subclass__(**arguments)
        if cls.__module__.startswith("fiber.testing."):
            return
        for name, value in vars(cls).items():
            inherited = any(name in vars(base) for base in cls.__mro__[1:])
            if name.startswith("test") and inherited and not _says_why(value):
                msg = (
                    f"{cls.__name__}.{name} overrides a test of the conformance kit; mark it with "
                    f"pytest.mark.xfail(reason=...) and say why the kit cannot pass"
                )
                raise TypeError(msg)

    @pytest.fixture(autouse=True)
    def facts(self, request: pytest.FixtureRequest) -> Facts:
        """What the results tell of this test; skips those of levels that are not to be run."""
        name = getattr(request.node, "originalname", request.node.name)
        level = level_of(type(self), name)
        facts: Facts = {"kit": self.kit_name, "level": level}
        request.node.user_properties.append((RECORD, facts))
        if level is not None and level not in self.levels:
            pytest.skip(f"{type(self).__name__} runs levels {sorted(self.levels)} only")
        return facts

    @pytest.fixture
    def measure(self, facts: Facts) -> Callable[[str, float], None]:
        """Note a number in the results: ``measure("seconds to notice", 0.02)``."""

        def note(what: str, number: float) -> None:
            facts.setdefault("measured", {})[what] = round(number, 4)

        return note


def level_of(cls: type, name: str) -> int | None:
    """The level of a test of the kit; None for a test that is the subclass's own."""
    found = None
    for base in cls.__mro__:
        if name in vars(base) and base.__module__.startswith("fiber.testing."):
            found = vars(base).get("level", getattr(base, "level", None))
    return found


def _says_why(test: Any) -> bool:
    marks = getattr(test, "pytestmark", ())
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
