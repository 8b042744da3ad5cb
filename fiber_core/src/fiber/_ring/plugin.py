"""Plugin of the core's own frameworks, through the hook that third parties use.

Outside of :mod:`fiber._ring.frameworks`, which a program without rings does not import.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fiber.hookspecs import hookimpl

if TYPE_CHECKING:
    from fiber._ring.framework import RingFramework


@hookimpl
def fiber_ring_frameworks() -> Iterable[RingFramework]:
    """Return the core's frameworks."""
    from fiber._ring.frameworks import built_in

    return built_in()
