"""Fields that a job's pod inherits from its parent's pod; pure.

A parent's object cannot be copied as a whole: some fields are the API server's and refused in a
creation, some would run a program twice, and by some labels the parent's controller would adopt and
kill the child. So the inherited fields are listed here, and no others are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from fiber.exceptions import SubmitError
from fiber_k8s.names import CONTAINER

__all__ = ["RUN_VOLUME", "Inherited", "inherit"]

#: the volume with a run's key; not inherited, each job gets its own
RUN_VOLUME = "fiber-run"

#: inherited fields of the pod's spec: placement, accounts, network; not identity, owners, labels,
#: deadline, host name, node, gates, claims of devices, nor what admission computes (priority,
#: overhead, preemptionPolicy)
_POD = (
    *("affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "hostAliases"),
    *("hostIPC", "hostNetwork", "hostPID", "hostUsers", "imagePullSecrets", "nodeSelector", "os"),
    *("priorityClassName", "runtimeClassName", "schedulerName", "securityContext"),
    *("serviceAccountName", "tolerations"),
)
#: inherited fields of the container: not the command, resources, ports, probes and hooks
_CONTAINER = (
    *("envFrom", "image", "imagePullPolicy", "securityContext", "volumeDevices", "workingDir"),
)
#: prefix of the volume with the service account's token, which admission adds to every pod
_TOKEN = "kube-api-access-"  # noqa: S105 - a name
#: annotation with the container that kubectl uses by default
_DEFAULT = "kubectl.kubernetes.io/default-container"
#: variables of one process or its pod; not inherited
_OWN = frozenset({"FIBER_BOOTSTRAP", "FIBER_GRACE", "FIBER_REACH"})


@attrs.frozen(kw_only=True)
class Inherited:
    """Inherited parts of a pod."""

    #: fields of its spec, without containers and volumes
    spec: dict[str, Any] = attrs.field(factory=dict)
    #: fields of its container, without variables and mounts
    container: dict[str, Any] = attrs.field(factory=dict)
    #: its variables, in their order
    env: tuple[dict[str, Any], ...] = ()
    #: its volumes
    volumes: tuple[dict[str, Any], ...] = ()
    #: its mounts
    mounts: tuple[dict[str, Any], ...] = ()
    #: init containers that fill what is mounted
    init: tuple[dict[str, Any], ...] = ()


def inherit(
    parent: Mapping[str, Any] | None, container: str | None = None, own_name: str | None = None
) -> Inherited:
    """Return the inherited parts of a parent's pod.

    Args:
        parent: the pod as the API returned it; None outside of a cluster.
        container: name of the container to inherit from, as set by the user.
        own_name: without that, the container that the program runs in, where known.

    Raises:
        SubmitError: it has no such container.
    """
    if parent is None:
        return Inherited()
    spec = parent["spec"]
    own = _container(parent, container, own_name)
    volumes = [one for one in spec.get("volumes") or () if not _is_added_anew(one["name"])]
    kept = {one["name"] for one in volumes}
    mounts = [one for one in own.get("volumeMounts") or () if one["name"] in kept]
    init = _filling_init_containers(spec, volumes, mounts)
    used = {one["name"] for one in mounts}
    used |= {one["name"] for one in own.get("volumeDevices") or ()}
    used |= {one["name"] for each in init for one in each.get("volumeMounts") or ()}
    return Inherited(
        spec={key: spec[key] for key in _POD if spec.get(key) not in (None, [], {})},
        container={key: own[key] for key in _CONTAINER if own.get(key) not in (None, [], {})},
        env=tuple(_variable(one, own["name"]) for one in own.get("env") or () if _is_shared(one)),
        # without volumes that only other containers use, mostly sidecars
        volumes=tuple(one for one in volumes if one["name"] in used),
        mounts=tuple(mounts),
        init=tuple(init),
    )


def _container(
    parent: Mapping[str, Any], named: str | None, own_name: str | None
) -> dict[str, Any]:
    """Return the container that the program runs in.

    It need not be the first: service meshes put their proxies in front.
    """
    containers: list[dict[str, Any]] = parent["spec"]["containers"]
    found = {one["name"]: one for one in containers}
    if named is not None:
        if named in found:
            return found[named]
        pod = parent["metadata"].get("name")
        msg = f"pod {pod} has no container {named!r}, it has {', '.join(found)}; see FIBER_K8S_CONTAINER"
        raise SubmitError(msg)
    annotations = parent["metadata"].get("annotations") or {}
    for name in (own_name, CONTAINER, annotations.get(_DEFAULT)):
        if name in found:
            return found[name]
    return containers[0]


def _filling_init_containers(
    spec: Mapping[str, Any], volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the init containers that fill an emptyDir which the inherited container mounts.

    Others prepare the parent's pod alone, and sidecars are injected into each pod anew.
    """
    empty = {one["name"] for one in volumes if "emptyDir" in one}
    filled = empty & {one["name"] for one in mounts}
    found = []
    for one in spec.get("initContainers") or ():
        if one.get("restartPolicy") == "Always":
            continue
        theirs = [m for m in one.get("volumeMounts") or () if not _is_added_anew(m["name"])]
        if filled & {mount["name"] for mount in theirs}:
            found.append({**one, "volumeMounts": theirs})
    return found


def _is_added_anew(volume: str) -> bool:
    return volume.startswith(_TOKEN) or volume == RUN_VOLUME


def _is_shared(variable: Mapping[str, Any]) -> bool:
    return variable["name"] not in _OWN


def _variable(variable: dict[str, Any], container: str) -> dict[str, Any]:
    """Return a variable; a reference to resources is made to the child's own container."""
    reference = (variable.get("valueFrom") or {}).get("resourceFieldRef")
    if reference is None or reference.get("containerName", container) != container:
        return variable
    kept = {key: value for key, value in reference.items() if key != "containerName"}
    return {**variable, "valueFrom": {"resourceFieldRef": kept}}
