"""Declaration of value classes: attrs' names, which are attrs itself for type checkers only.

At run time they come from :mod:`fiber._base.light_values`, so that attrs is not imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attrs import NOTHING, asdict, define, evolve, field, frozen
    from attrs import Attribute as AnyField
    from attrs.validators import and_, ge, gt, le, optional

    Field = AnyField[Any]
else:
    from fiber._base.light_values import (
        NOTHING,
        Field,
        and_,
        asdict,
        define,
        evolve,
        field,
        frozen,
        ge,
        gt,
        le,
        optional,
    )

__all__ = [
    "NOTHING",
    "Field",
    "and_",
    "asdict",
    "define",
    "evolve",
    "field",
    "frozen",
    "ge",
    "gt",
    "le",
    "optional",
]
