"""Frameworks of distributed training that a ring prepares: the core's and those of plugins.

A framework is a :class:`~fiber._ring.framework.RingFramework`. It turns the view of a member into
the environment variables, files and servers with which the framework's own initialization works as
it stands. Frameworks are found by name through the hook ``fiber_ring_frameworks``; the core's come
through the same hook (:mod:`fiber._ring.plugin`).

Invariants:

* Importing a framework's module never imports the framework itself: that happens in its methods,
  in the members.
* ``environ`` and ``preferences`` are pure functions; servers, files and process groups belong to
  ``host``, ``enter`` and ``leave``, and are released by ``RingView.on_leave``.
* Servers listen on loopback where the framework allows, and else at a port that the system chose
  or that is reserved for the member.

Methods run on the thread of the member's function, but for ``changed``; servers have threads of
their own in the process of rank 0. Called by :mod:`fiber._ring.ring` and :mod:`fiber._ring.member`; calls
:mod:`fiber._ring.forwarding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fiber._ring.framework import RingFramework
from fiber.exceptions import FiberError, PluginClashError

__all__ = ["built_in", "find_framework", "frameworks"]


def built_in() -> list[RingFramework]:
    """Return the core's frameworks."""
    from fiber._ring.frameworks.horovod import Horovod
    from fiber._ring.frameworks.hosts import MPI, DeepSpeed
    from fiber._ring.frameworks.jax import Jax
    from fiber._ring.frameworks.torch import Torch
    from fiber._ring.frameworks.variables import MXNet, TensorFlow, XGBoost

    return [DeepSpeed(), Horovod(), Jax(), MPI(), MXNet(), TensorFlow(), Torch(), XGBoost()]


def frameworks() -> Mapping[str, RingFramework]:
    """Return all installed frameworks, by name.

    Raises:
        PluginClashError: two distributions offer the same name.
    """
    from fiber._runtime import runtime

    found: dict[str, RingFramework] = {}
    sources: dict[str, Any] = {}
    plugins = runtime.current().plugins
    for source, offered in plugins.call_each("fiber_ring_frameworks"):
        for one in offered:
            if not isinstance(one, RingFramework):
                error = FiberError(
                    f"fiber_ring_frameworks must return RingFramework objects, got {one!r}"
                )
                plugins.mark_broken(source, "fiber_ring_frameworks", error)
                continue
            if one.name in found:
                msg = f"{sources[one.name]} and {source} both offer the framework {one.name!r}"
                raise PluginClashError(msg)
            found[one.name], sources[one.name] = one, source
    return MappingProxyType(found)


def find_framework(framework: Any) -> RingFramework | None:
    """Return a framework by name; None and frameworks are returned as they are.

    Raises:
        FiberError: no framework of that name is installed; the text has the names of all.
        TypeError: ``framework`` is of another type.
    """
    if framework is None or isinstance(framework, RingFramework):
        return framework
    if not isinstance(framework, str):
        msg = f"framework must be a name or a RingFramework, got {framework!r}"
        raise TypeError(msg)
    known = frameworks()
    if framework not in known:
        names = ", ".join(sorted(known))
        msg = f"no framework {framework!r} is installed for rings; installed are {names}"
        raise FiberError(msg)
    return known[framework]
