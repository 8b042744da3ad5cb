"""Frameworks of distributed training that a ring prepares: the core's and those of plugins.

A framework is a :class:`RingFramework`. It turns the view of a member into the environment
variables, files and servers with which its own initialization works as it stands. Frameworks are found by name through the hook ``fiber_ring_frameworks``; the core's come
through the same hook (:mod:`fiber._ring`).

Invariants:

* Importing a framework's module never imports the framework itself: that happens in its methods,
  in the members.
* ``environ`` and ``preferences`` are pure functions; servers, files and process groups belong to
  ``host``, ``enter`` and ``leave``, and are released by ``RingView.on_leave``.
* Servers listen on loopback where the framework allows, and else at a port that the system chose
  or that is reserved for the member.

Methods run on the thread of the member's function, but for ``changed``; servers have threads of
their own in the process of rank 0. Called by :mod:`fiber._ring.ring` and :mod:`fiber._ring.member`;
calls :mod:`fiber._ring.forwarding`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fiber.exceptions import FiberError, PluginClashError

if TYPE_CHECKING:
    from fiber._ring.view import RingView


class RingFramework(abc.ABC):
    """Framework of distributed training; plugins offer others through the hook ``fiber_ring_frameworks``.

    Its methods are called in the members, in this order: :meth:`host` in that of rank 0,
    :meth:`environ` and :meth:`preferences` in all, :meth:`enter` in all, the user's initializer and
    function, :meth:`leave` in all; :meth:`changed` while the function runs. Instances must be
    picklable.
    """

    #: what users write: ``Ring(…, framework="torch")``
    name: str
    #: servers that ask nobody for a key and can listen on no loopback; with any, a ring runs only
    #: with ``open_ports=True``
    open_servers: str = ""

    def host(self, ring: RingView) -> Mapping[str, Any]:
        """Open servers that all members need, in the process of rank 0, before any user code.

        A server listens at a port of the system's choice and returns it here, so that no two rings
        choose the same one; ``ring.on_leave`` closes it.

        Args:
            ring: the ring, with all members.

        Returns:
            facts for all members, such as that port; values must be picklable.
        """
        return {}

    @abc.abstractmethod
    def environ(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the member's rank and the others' addresses as variables; a pure function.

        Args:
            ring: the view of one member.
            facts: the result of :meth:`host`.
        """

    def preferences(self, ring: RingView) -> Mapping[str, str]:
        """Return variables that are set unless the user has set them; a pure function."""
        return {}

    def enter(self, ring: RingView, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Prepare whatever variables cannot express, before the user's initializer.

        Returns:
            variables that are known only now, such as the paths of files that it wrote.
        """
        return {}

    def changed(self, ring: RingView) -> None:  # noqa: B027 - few need it
        """Handle a change of members while the function runs, on another thread than the function's.

        Only a ring with ``elastic="live"`` calls it, once for each change.
        """

    def leave(self, ring: RingView) -> None:  # noqa: B027 - few need it
        """Undo :meth:`enter` once the function has returned."""


def common_environ(ring: RingView) -> dict[str, str]:
    """Variables of every member, whatever the framework."""
    me, first = ring.me, ring.members[0]
    return {
        "RANK": str(ring.rank),
        "WORLD_SIZE": str(ring.size),
        "LOCAL_RANK": str(me.local_rank),
        "LOCAL_WORLD_SIZE": str(me.local_size),
        "GROUP_RANK": str(me.node),
        "NODE_RANK": str(me.node),
        "MASTER_ADDR": first.ip,
        "MASTER_PORT": str(first.port),
        "FIBER_RING_NAME": ring.name,
        "FIBER_RING_ROUND": str(ring.round),
        "FIBER_RING_RESTARTS": str(ring.restarts),
    }


def default_environ(ring: RingView) -> dict[str, str]:
    """Variables of every member that are set unless the user has set them."""
    me = ring.me
    found = {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, _cpus() // me.local_size)),
    }
    if me.interface:
        found["GLOO_SOCKET_IFNAME"] = me.interface
        # NCCL takes a name for a prefix unless "=" precedes it
        found["NCCL_SOCKET_IFNAME"] = f"={me.interface}"
    return found


def _cpus() -> int:
    from fiber._base.cgroups import cpu_count

    return cpu_count()


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
