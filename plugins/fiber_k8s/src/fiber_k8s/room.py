"""How much room there is for jobs, as far as a program may know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fiber.abc import ResourceProvider
from fiber.launch.cpus import cpu_count, memory_total
from fiber.model import Capacity
from fiber_k8s.client import ApiError, Client
from fiber_k8s.quantities import read_quantity

__all__ = ["Room"]


class Room:
    """What nodes have, where they may be asked for; else what this container has.

    Args:
        client: the cluster.
        providers: of devices, by kind.
    """

    def __init__(self, client: Client, providers: Mapping[str, ResourceProvider]) -> None:
        self._client = client
        self._kinds = {kind: one.device_class for kind, one in providers.items()}
        #: True once the cluster has said that nodes are none of our business
        self._refused = False

    def capacity(self) -> Capacity:
        """The program's own container's CPUs and memory, the cluster's outside; its devices.

        A program in a pod has as many workers by default as it has CPUs itself, as on one machine.

        Raises:
            BackendUnavailableError: the cluster cannot be asked, and nothing is known without.
        """
        totals = self._totals()
        devices = {
            kind: int(totals[name]) for kind, name in self._kinds.items() if totals.get(name)
        }
        if self._client.connection.inside is not None:
            return Capacity(cpus=float(cpu_count()), memory=memory_total(), devices=devices)
        return Capacity(
            cpus=totals.get("cpu"),
            memory=int(totals["memory"]) >> 20 if "memory" in totals else None,
            devices=devices,
        )

    def _totals(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for node in self._nodes():
            if (node.get("spec") or {}).get("unschedulable"):
                continue
            for name, text in ((node.get("status") or {}).get("allocatable") or {}).items():
                totals[name] = totals.get(name, 0.0) + read_quantity(text)
        return totals

    def _nodes(self) -> Sequence[Mapping[str, Any]]:
        if self._refused:
            return ()
        try:
            return self._client.call("GET", "/api/v1/nodes", "list nodes").get("items") or ()
        except ApiError:
            # that is a right of its own, which few programs have
            self._refused = True
            return ()
