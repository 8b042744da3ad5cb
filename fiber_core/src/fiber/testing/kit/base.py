"""What the kits share: a test is overridden with a reason or not at all."""

from __future__ import annotations

from typing import Any

__all__ = ["Kit"]


class Kit:
    """Base of the kits."""

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


def _says_why(test: Any) -> bool:
    marks = getattr(test, "pytestmark", ())
    return any(mark.name == "xfail" and mark.kwargs.get("reason") for mark in marks)
