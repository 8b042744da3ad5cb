"""The built-in frameworks of distributed training, offered through the hook that third parties use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fiber.hookspecs import hookimpl

if TYPE_CHECKING:
    from fiber._ring.framework import RingFramework


@hookimpl
def fiber_ring_frameworks() -> Iterable[RingFramework]:
    """The frameworks that the core knows."""
    from fiber._ring.frameworks import built_in

    return built_in()
