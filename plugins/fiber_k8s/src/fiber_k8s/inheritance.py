"""What a child has of its parent's pod; pure.

A parent's object cannot be copied whole: some of it the cluster wrote and refuses to be told, some
would run again or twice, some has the child adopted and killed by the parent's own controller. So
what is inherited is named here, and nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from fiber.exceptions import SubmitError
from fiber_k8s.names import CONTAINER

__all__ = ["RUN_VOLUME", "Inherited", "inherit"]

#: the volume with a run's key, which each job gets anew
RUN_VOLUME = "fiber-run"

#: of the pod: where it may run, as whom, with what it sees; not its identity, owners, labels,
#: deadline, host name, node, gates, claims of devices, nor what admission computes (priority,
#: overhead, preemptionPolicy)
_POD = (
    *("affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "hostAliases"),
    *("hostIPC", "hostNetwork", "hostPID", "hostUsers", "imagePullSecrets", "nodeSelector", "os"),
    *("priorityClassName", "runtimeClassName", "schedulerName", "securityContext"),
    *("serviceAccountName", "tolerations"),
)
#: of its container: not what runs, its resources, ports, probes and hooks
_CONTAINER = (
    *("envFrom", "image", "imagePullPolicy", "securityContext", "volumeDevices", "workingDir"),
)
#: the volume with the service account's token, which is added to every pod anew
_TOKEN = "kube-api-access-"  # noqa: S105 - a name
#: names the container that others mean where they name none
_DEFAULT = "kubectl.kubernetes.io/default-container"
#: variables that belong to one process, or to the pod that it is in
_OWN = frozenset({"FIBER_BOOTSTRAP", "FIBER_GRACE", "FIBER_REACH"})


@attrs.frozen(kw_only=True)
class Inherited:
    """Parts of a pod."""

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
    """The parts of a parent's pod that its children have too.

    Args:
        parent: the pod as the API has it; None where there is none.
        container: which of its containers was named; it has to be there.
        own_name: else which one the program runs in, as far as that is known.

    Raises:
        SubmitError: it has no such container.
    """
    if parent is None:
        return Inherited()
    spec = parent["spec"]
    own = _container(parent, container, own_name)
    volumes = [one for one in spec.get("volumes") or () if not _is_given_anew(one["name"])]
    kept = {one["name"] for one in volumes}
    mounts = [one for one in own.get("volumeMounts") or () if one["name"] in kept]
    init = _filling(spec, volumes, mounts)
    used = {one["name"] for one in mounts}
    used |= {one["name"] for one in own.get("volumeDevices") or ()}
    used |= {one["name"] for each in init for one in each.get("volumeMounts") or ()}
    return Inherited(
        spec={key: spec[key] for key in _POD if spec.get(key) not in (None, [], {})},
        container={key: own[key] for key in _CONTAINER if own.get(key) not in (None, [], {})},
        env=tuple(_variable(one, own["name"]) for one in own.get("env") or () if _is_shared(one)),
        # those of other containers alone, of sidecars mostly, are theirs
        volumes=tuple(one for one in volumes if one["name"] in used),
        mounts=tuple(mounts),
        init=tuple(init),
    )


def _container(
    parent: Mapping[str, Any], named: str | None, own_name: str | None
) -> dict[str, Any]:
    """The container that the program runs in.

    The first is often another: meshes put their proxies in front of all.
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


def _filling(
    spec: Mapping[str, Any], volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Init containers that write what our container reads: into a volume that begins empty.

    Others prepare the parent's pod alone, and sidecars are put into each pod by whoever wants them.
    """
    empty = {one["name"] for one in volumes if "emptyDir" in one}
    wanted = empty & {one["name"] for one in mounts}
    found = []
    for one in spec.get("initContainers") or ():
        if one.get("restartPolicy") == "Always":
            continue
        theirs = [m for m in one.get("volumeMounts") or () if not _is_given_anew(m["name"])]
        if wanted & {mount["name"] for mount in theirs}:
            found.append({**one, "volumeMounts": theirs})
    return found


def _is_given_anew(volume: str) -> bool:
    return volume.startswith(_TOKEN) or volume == RUN_VOLUME


def _is_shared(variable: Mapping[str, Any]) -> bool:
    return variable["name"] not in _OWN


def _variable(variable: dict[str, Any], container: str) -> dict[str, Any]:
    """A variable, where it tells of resources of the child's own container."""
    reference = (variable.get("valueFrom") or {}).get("resourceFieldRef")
    if reference is None or reference.get("containerName", container) != container:
        return variable
    kept = {key: value for key, value in reference.items() if key != "containerName"}
    return {**variable, "valueFrom": {"resourceFieldRef": kept}}
