"""Checks of ``fiber doctor k8s``, in order; the last ones from inside a pod."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fiber.abc import ResourceProvider
from fiber.exceptions import BackendError, FiberError
from fiber.model import Check
from fiber_k8s.capacity import totals
from fiber_k8s.client import ApiError, Client
from fiber_k8s.config import K8sConfig
from fiber_k8s.doctor import pod_checks
from fiber_k8s.doctor.access_review import allowed_rights, rights_checks
from fiber_k8s.rbac import RULES, gang_rules, rights

if TYPE_CHECKING:
    from fiber.abc import Backend

__all__ = ["run_checks"]

#: by which clocks may differ: certificates of a run are valid from five minutes before
_MAX_SKEW = dt.timedelta(minutes=4)
#: API groups of gang schedulers, by the setting ``gang``
_GANG_KINDS = {
    "kueue": "kueue.x-k8s.io",
    "volcano": "scheduling.volcano.sh",
    "scheduler-plugins": "scheduling.x-k8s.io",
}


def run_checks(
    backend: Backend,
    client: Client,
    config: K8sConfig,
    providers: Mapping[str, ResourceProvider],
    run_id: str,
    image: str | None,
) -> Iterator[Check]:
    """Check a cluster, one thing after the other; nothing is left of it."""
    try:
        connection = client.connection
        version = client.call("GET", "/version", "tell its version").get("gitVersion")
    except FiberError as error:
        fix = "see whether `kubectl cluster-info` works; set KUBECONFIG or FIBER_K8S_CONTEXT"
        yield Check(name="cluster", ok=False, detail=str(error), fix=fix)
        return
    where = f"namespace {client.namespace}"
    detail = f"{version} at {connection.host}, by {connection.origin}, {where}"
    yield Check(name="cluster", ok=True, detail=detail)
    yield _clock(client)
    try:
        allowed = allowed_rights(client, rights((*RULES, *gang_rules(config.gang))))
    except BackendError as error:
        fix = "see whether `kubectl auth can-i create pods` answers"
        yield Check(name="rights", ok=False, detail=str(error), fix=fix)
        return
    in_pod = connection.own_pod is not None
    account = _own_account(client) if in_pod else None
    subject = "this pod may" if in_pod else "you may"
    yield from rights_checks(allowed, subject, client.namespace, account, gang=config.gang)
    yield from _gangs(client, config.gang)
    yield from _claims(client)
    yield from _devices(client, providers)
    needed = [right for right, yes in allowed.items() if right.rule.needed and not yes]
    if needed:
        # what follows would fail for that reason
        return
    yield from pod_checks.run_checks(backend, client, config, run_id, image)


def _clock(client: Client) -> Check:
    apart = client.now() - time.time()
    ahead = "ahead of" if apart > 0 else "behind"
    return Check(
        name="clock",
        ok=dt.timedelta(seconds=abs(apart)) < _MAX_SKEW,
        detail=f"the cluster's is {abs(apart):.0f} s {ahead} ours" if apart else "as the cluster's",
        fix="set this host's clock, best by NTP: certificates of a run are not valid elsewhere",
    )


def _own_account(client: Client) -> str:
    own_pod = client.connection.own_pod
    assert own_pod is not None
    try:
        pod = client.call(
            "GET",
            f"/api/v1/namespaces/{own_pod.namespace}/pods/{own_pod.name}",
            "read the program's own pod",
        )
    except ApiError:
        return "default"
    return str(pod["spec"].get("serviceAccountName") or "default")


def _gangs(client: Client, gang: str) -> Iterator[Check]:
    """Yield whether the gang scheduler's objects exist; nothing without a gang scheduler."""
    kinds = _GANG_KINDS.get(gang)
    if kinds is None:
        return
    try:
        client.call("GET", f"/apis/{kinds}", f"tell whether {gang} is installed")
    except ApiError as error:
        if error.status != 404:
            yield Check(name="groups", ok=True, detail=f"not known: {error}")
            return
        detail = f"the cluster has no {kinds}: {gang} is not installed there"
        fix = f"have {gang} installed, or unset FIBER_K8S_GANG: members are then created together"
        yield Check(name="groups", ok=False, detail=detail, fix=fix)
        return
    yield Check(name="groups", ok=True, detail=f"scheduled by {gang}, {kinds} is there")


def _claims(client: Client) -> Iterator[Check]:
    """Yield a check of the persistent volume claims, which ``-v`` may name."""
    path = client.path("persistentvolumeclaims")
    try:
        found = client.call("GET", path, "list claims").get("items") or ()
    except ApiError as error:
        yield Check(name="claims", ok=True, detail=f"not known: {error}")
        return
    lost = []
    phases = []
    for claim in found:
        name = claim["metadata"]["name"]
        phase = str((claim.get("status") or {}).get("phase") or "Pending")
        phases.append(f"{name} {phase.lower()}")
        if phase == "Lost":
            lost.append(name)
    waits = any(one.endswith(" pending") for one in phases)
    more = "; one that is pending may be bound by the first pod that uses it" if waits else ""
    yield Check(
        name="claims",
        ok=not lost,
        detail=(", ".join(phases) or "none in this namespace") + more,
        fix=f"kubectl describe pvc {' '.join(lost)}",
    )


def _devices(client: Client, providers: Mapping[str, ResourceProvider]) -> Iterator[Check]:
    """Yield checks of the nodes' capacity, and of their devices by kind; never failing ones."""
    try:
        nodes = client.call("GET", "/api/v1/nodes", "list nodes").get("items") or ()
    except ApiError:
        detail = "not known: nodes may not be listed (fiber k8s rbac --nodes lets them be)"
        yield Check(name="nodes", ok=True, detail=detail)
        return
    sums = totals(nodes)
    room = (
        f"{sums.get('cpu', 0):g} CPUs, {int(sums.get('memory', 0)) >> 20} MB of memory allocatable"
    )
    yield Check(name="nodes", ok=bool(nodes), detail=f"{len(nodes)}: {room}", fix="add a node")
    for kind, provider in sorted(providers.items()):
        count = sums.get(provider.device_class)
        detail = (
            f"{count:g} {provider.device_class} allocatable"
            if count is not None
            else f"no node offers {provider.device_class}; where one has such devices, its device "
            "plugin is not installed"
        )
        yield Check(name=f"{kind} devices", ok=True, detail=detail)
