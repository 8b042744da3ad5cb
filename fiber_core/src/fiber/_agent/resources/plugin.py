"""Plugin of the built-in resource providers, by the hook that third parties use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from fiber.hookspecs import hookimpl

if TYPE_CHECKING:
    from fiber.abc import ResourceProvider


@hookimpl
def fiber_resource_providers() -> Iterable[ResourceProvider]:
    """Offer NVIDIA GPUs, kind ``gpu``."""
    from fiber._agent.resources.nvidia import NvidiaProvider

    return (NvidiaProvider(),)
