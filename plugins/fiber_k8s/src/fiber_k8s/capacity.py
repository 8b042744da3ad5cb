"""Capacity for jobs, from the cluster's nodes where they may be listed: what nodes can allocate and pods request."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fiber._base.cgroups import cpu_count, memory_total
from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError
from fiber.model import Capacity
from fiber_k8s.client import ApiError, Client
from fiber_k8s.flow_control import RetryWindow


def allocatable(node: Mapping[str, Any]) -> dict[str, float]:
    """Return a node's allocatable resources by name: CPUs, bytes, or devices."""
    return _numbers((node.get("status") or {}).get("allocatable"))


def totals(nodes: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the allocatable resources of all schedulable nodes together, by name."""
    sums: dict[str, float] = {}
    for node in nodes:
        if not (node.get("spec") or {}).get("unschedulable"):
            for name, amount in allocatable(node).items():
                sums[name] = sums.get(name, 0.0) + amount
    return sums


def requested(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return the effective requests of a pod, by resource.

    The sum over its containers and sidecars or, where that is more, the largest init container's;
    see "Resource sharing within containers" in Kubernetes' documentation.
    """
    spec = pod.get("spec") or {}
    total: Counter[str] = Counter()
    for container in spec.get("containers") or ():
        total.update(_requested_by(container))
    for container in spec.get("initContainers") or ():
        if container.get("restartPolicy") == "Always":
            total.update(_requested_by(container))
    for container in spec.get("initContainers") or ():
        total |= Counter(_requested_by(container))
    total.update(_numbers(spec.get("overhead")))
    return dict(total)


def _requested_by(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    return _numbers({**(resources.get("limits") or {}), **(resources.get("requests") or {})})


def _numbers(amounts: Mapping[str, str | float] | None) -> dict[str, Any]:
    # importing the client is slow
    from kubernetes.utils import parse_quantity

    return {name: float(parse_quantity(text)) for name, text in (amounts or {}).items()}


class ClusterCapacity:
    """The nodes' allocatable resources, where they may be listed; thread-safe.

    Args:
        client: the cluster.
        providers: resource providers of devices, by kind.
    """

    def __init__(self, client: Client, providers: Mapping[str, ResourceProvider]) -> None:
        self._client = client
        self._kinds = {kind: one.device_class for kind, one in providers.items()}
        self._lock = threading.Lock()
        self._found: Sequence[Mapping[str, Any]] = ()
        self._asked: float | None = None
        #: True once the cluster refused to list nodes
        self._refused = False

    def capacity(self) -> Capacity:
        """Return CPUs and memory (MB) of the own container, outside of the nodes; their devices.

        In a pod they are the container's own, so that a program has by default as many workers as
        it has CPUs itself, as on one machine.

        Raises:
            BackendUnavailableError: the cluster cannot be reached.
        """
        own_pod = self._client.connection.own_pod
        # it may be a program's first call, while the cluster is not reachable
        sums = totals(self._nodes(0.0, RetryWindow("list nodes", self._client.core_timing).allows))
        devices = {kind: int(sums[name]) for kind, name in self._kinds.items() if sums.get(name)}
        if own_pod is not None:
            return Capacity(cpus=float(cpu_count()), memory=memory_total(), devices=devices)
        return Capacity(
            cpus=sums.get("cpu"),
            memory=int(sums["memory"]) >> 20 if "memory" in sums else None,
            devices=devices,
        )

    def may_fit(self, pod: Mapping[str, Any]) -> bool | None:
        """Return whether a pod's requests fit on some empty node; None where nodes are not known.

        Raises:
            BackendUnavailableError: the cluster cannot be reached.
        """
        requests = requested(pod)
        nodes = self._nodes(self._client.timing.nodes)
        if not nodes:
            return None
        return any(
            all(has.get(name, 0.0) >= amount for name, amount in requests.items())
            for has in map(allocatable, nodes)
        )

    def _nodes(
        self, age: float, again: Callable[[BackendError], bool] | None = None
    ) -> Sequence[Mapping[str, Any]]:
        """Return the nodes, at most ``age`` seconds old; none where they may not be listed."""
        with self._lock:
            now = time.monotonic()
            if not self._refused and (self._asked is None or now - self._asked > age):
                try:
                    answer = self._client.call("GET", "/api/v1/nodes", "list nodes", again=again)
                except ApiError:
                    # a right of the whole cluster, which few programs have
                    self._refused = True
                else:
                    self._found, self._asked = answer.get("items") or (), now
            return self._found
