"""How much room there is for jobs, as far as a program may know."""

from __future__ import annotations

from collections.abc import Mapping

from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError
from fiber.launch.cpus import cpu_count, memory_total
from fiber.model import Capacity
from fiber_k8s.client import Client
from fiber_k8s.quantities import read_quantity

__all__ = ["capacity"]


def capacity(client: Client, providers: Mapping[str, ResourceProvider]) -> Capacity:
    """The program's own container's CPUs and memory, the cluster's outside; its devices.

    A program in a pod has as many workers by default as it has CPUs itself, as on one machine.
    """
    totals: dict[str, float] = {}
    try:
        nodes = client.call("GET", "/api/v1/nodes", "list nodes").get("items") or ()
    except BackendError:
        # that is a right of its own, which few programs have
        nodes = ()
    for node in nodes:
        if (node.get("spec") or {}).get("unschedulable"):
            continue
        for name, text in ((node.get("status") or {}).get("allocatable") or {}).items():
            totals[name] = totals.get(name, 0.0) + read_quantity(text)
    kinds = {kind: one.device_class for kind, one in providers.items()}
    devices = {kind: int(totals[name]) for kind, name in kinds.items() if totals.get(name)}
    if client.connection.inside is not None:
        return Capacity(cpus=float(cpu_count()), memory=memory_total(), devices=devices)
    return Capacity(
        cpus=totals.get("cpu"),
        memory=int(totals["memory"]) >> 20 if "memory" in totals else None,
        devices=devices,
    )
