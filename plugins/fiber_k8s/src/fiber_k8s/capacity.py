"""How much room there is for jobs, as far as a program may know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fiber._agent.cgroups import cpu_count, memory_total
from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError
from fiber.model import Capacity
from fiber_k8s.client import ApiError, Client
from fiber_k8s.nodes import allocatable, requested, totals
from fiber_k8s.pacing import Patience

__all__ = ["Room"]

#: seconds for which an answer does for those that wait: they may be many, and all ask
_FRESH = 30.0


class Room:
    """What nodes have, where they may be asked for; else what this container has.

    Args:
        client: the cluster.
        providers: of devices, by kind.
    """

    def __init__(self, client: Client, providers: Mapping[str, ResourceProvider]) -> None:
        self._client = client
        self._kinds = {kind: one.device_class for kind, one in providers.items()}
        self._lock = threading.Lock()
        self._found: Sequence[Mapping[str, Any]] = ()
        self._asked: float | None = None
        #: True once the cluster has said that nodes are none of our business
        self._refused = False

    def capacity(self) -> Capacity:
        """The program's own container's CPUs and memory, the cluster's outside; its devices.

        A program in a pod has as many workers by default as it has CPUs itself, as on one machine.

        Raises:
            BackendUnavailableError: the cluster cannot be asked, and nothing is known without.
        """
        inside = self._client.connection.inside
        # a program may begin with this, while the cluster is away
        sums = totals(self._nodes(0.0, Patience("list nodes").lasts))
        devices = {kind: int(sums[name]) for kind, name in self._kinds.items() if sums.get(name)}
        if inside is not None:
            return Capacity(cpus=float(cpu_count()), memory=memory_total(), devices=devices)
        return Capacity(
            cpus=sums.get("cpu"),
            memory=int(sums["memory"]) >> 20 if "memory" in sums else None,
            devices=devices,
        )

    def may_hold(self, pod: Mapping[str, Any]) -> bool | None:
        """Whether a node has all that a pod asks for, were it alone there; None if nobody knows.

        Raises:
            BackendUnavailableError: the cluster cannot be asked.
        """
        wanted = requested(pod)
        nodes = self._nodes(_FRESH)
        if not nodes:
            return None
        return any(
            all(has.get(name, 0.0) >= amount for name, amount in wanted.items())
            for has in map(allocatable, nodes)
        )

    def _nodes(
        self, age: float, again: Callable[[BackendError], bool] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """The nodes, as they were at most so many seconds ago; none where they may not be listed."""
        with self._lock:
            now = time.monotonic()
            if not self._refused and (self._asked is None or now - self._asked > age):
                try:
                    answer = self._client.call("GET", "/api/v1/nodes", "list nodes", again=again)
                except ApiError:
                    # that is a right of its own, which few programs have
                    self._refused = True
                else:
                    self._found, self._asked = answer.get("items") or (), now
            return self._found
