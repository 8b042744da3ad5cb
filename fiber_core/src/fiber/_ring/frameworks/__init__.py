"""The frameworks that rings prepare for: those of the core, and those that plugins offer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fiber._ring.framework import RingFramework
from fiber.exceptions import FiberError, PluginClashError

__all__ = ["built_in", "find_framework", "frameworks"]


def built_in() -> list[RingFramework]:
    """Those of the core."""
    from fiber._ring.frameworks.dmlc import MXNet, XGBoost
    from fiber._ring.frameworks.horovod import Horovod
    from fiber._ring.frameworks.hosts import MPI, DeepSpeed
    from fiber._ring.frameworks.jax import Jax
    from fiber._ring.frameworks.tensorflow import TensorFlow
    from fiber._ring.frameworks.torch import Torch

    return [DeepSpeed(), Horovod(), Jax(), MPI(), MXNet(), TensorFlow(), Torch(), XGBoost()]


def frameworks() -> Mapping[str, RingFramework]:
    """Those that can be asked for, by name.

    Raises:
        PluginClashError: two distributions offer the same name.
    """
    from fiber._runtime import runtime

    found: dict[str, RingFramework] = {}
    sources: dict[str, Any] = {}
    plugins = runtime.current().plugins
    for source, offered in plugins.answers("fiber_ring_frameworks"):
        for one in offered:
            if not isinstance(one, RingFramework):
                error = FiberError(
                    f"fiber_ring_frameworks must return RingFramework objects, got {one!r}"
                )
                plugins.report(source, "fiber_ring_frameworks", error)
                continue
            if one.name in found:
                msg = f"{sources[one.name]} and {source} both offer the framework {one.name!r}"
                raise PluginClashError(msg)
            found[one.name], sources[one.name] = one, source
    return MappingProxyType(found)


def find_framework(wanted: Any) -> RingFramework | None:
    """A framework by name.

    Raises:
        FiberError: nobody offers it; the text has those that are.
        TypeError: no name.
    """
    if wanted is None or isinstance(wanted, RingFramework):
        return wanted
    if not isinstance(wanted, str):
        msg = f"framework must be a name or a RingFramework, got {wanted!r}"
        raise TypeError(msg)
    known = frameworks()
    if wanted not in known:
        names = ", ".join(sorted(known))
        msg = f"no framework {wanted!r} is installed for rings; installed are {names}"
        raise FiberError(msg)
    return known[wanted]
