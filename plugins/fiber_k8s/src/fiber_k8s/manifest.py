"""Body of a job's pod, from its spec, the settings the parent's pod and the user's template; pure but for reading that.

A parent's object cannot be copied as a whole: some fields are the API server's and refused in a
creation, some would run a program twice, and by some labels the parent's controller would adopt and
kill the child. So the inherited fields are listed here, and no others are. The fields of the user's
template are defaults of each pod.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from fiber.backend_parts import first
from fiber.backend_parts.containers import UNNEEDED_CAPABILITIES, is_reduced
from fiber.exceptions import SubmitError
from fiber.model import JobSpec, ResourceRequest, Volume
from fiber_k8s.config import K8sConfig
from fiber_k8s.in_pod import JOB_VARIABLE
from fiber_k8s.names import CONTAINER, PREFIX, label_value, unique_name
from fiber_k8s.pod_group import PodGroup

_KINDS = ("Pod", "PodTemplate")
#: merge keys of lists, as of strategic merge patches
_KEYS = {
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "ports": "containerPort",
}
#: lists that are concatenated
_JOINED = frozenset({"tolerations", "envFrom", "topologySpreadConstraints"})


def read_template(path: str) -> dict[str, Any]:
    """Read a file with a Pod.

    Raises:
        SubmitError: it cannot be read, or holds something else; the text names the setting.
    """
    import yaml

    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        msg = f"the pod template {path} (FIBER_K8S_POD_TEMPLATE) cannot be read: {error}"
        raise SubmitError(msg) from error
    if isinstance(found, dict) and "template" in found and "spec" not in found:
        found = found["template"]
    if not isinstance(found, dict) or found.get("kind", _KINDS[0]) not in _KINDS:
        msg = (
            f"the pod template {path} (FIBER_K8S_POD_TEMPLATE) is no Pod: it needs the fields "
            f"metadata or spec of one"
        )
        raise SubmitError(msg)
    return {key: found[key] for key in ("metadata", "spec") if isinstance(found.get(key), dict)}


def merge_template(pod: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod with a template's fields as defaults.

    Args:
        pod: takes precedence; it has one container.
        template: its container of the same name, or else its first, is merged with that one.

    Raises:
        SubmitError: a list or mapping of a Pod is something else in the template.
    """
    try:
        return _merge_pod(pod, template)
    except (AttributeError, TypeError, ValueError) as error:
        msg = f"the pod template (FIBER_K8S_POD_TEMPLATE) has what no Pod has: {error}"
        raise SubmitError(msg) from error


def _merge_pod(pod: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    beneath = {key: dict(template[key]) for key in ("metadata", "spec") if key in template}
    spec = beneath.get("spec", {})
    own = pod["spec"]["containers"][0]
    theirs = list(spec.pop("containers", None) or ())
    metadata = beneath.get("metadata", {})
    for key in ("name", "generateName", "namespace", "ownerReferences", "uid", "resourceVersion"):
        # identity and owners are Fiber's to set
        metadata.pop(key, None)
    matching = next((one for one in theirs if one.get("name") == own["name"]), None)
    if matching is None and theirs:
        matching = theirs[0]
    merged: dict[str, Any] = _merge(dict(pod), beneath)
    containers = [own if matching is None else _merge(own, {**matching, "name": own["name"]})]
    containers += [one for one in theirs if one is not matching]
    merged["spec"] = {**merged["spec"], "containers": containers}
    return merged


def _merge(upper: Any, lower: Any, key: str = "") -> Any:
    if isinstance(upper, Mapping) and isinstance(lower, Mapping):
        return {
            name: _merge(upper[name], lower[name], name)
            if name in upper and name in lower
            else upper.get(name, lower.get(name))
            for name in (*upper, *(one for one in lower if one not in upper))
        }
    if isinstance(upper, Sequence) and isinstance(lower, Sequence) and not isinstance(upper, str):
        if key in _KEYS:
            return _merge_named(upper, lower, _KEYS[key])
        if key in _JOINED:
            return [*upper, *(one for one in lower if one not in upper)]
    return upper


def _merge_named(upper: Sequence[Any], lower: Sequence[Any], field: str) -> list[Any]:
    names = {one.get(field) for one in upper}
    # the template's first: variables may refer to earlier ones
    return [*(one for one in lower if one.get(field) not in names), *upper]


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
    own = _inherited_container(parent, container, own_name)
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


def _inherited_container(
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


#: file with the run's key
KEY = "/var/run/secrets/fiber/key"
#: file with a job's private bytes, where they are not sealed
PRIVATE = "/var/run/secrets/fiber/private"
#: files of a Secret belong to root, and the program may not be
_READABLE = 0o444
#: security context of a container whose image may run as root
_REDUCED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    # no "add": OpenShift's constraints, and namespaces of the standard "restricted", refuse it
    "capabilities": {"drop": list(UNNEEDED_CAPABILITIES)},
    "seccompProfile": {"type": "RuntimeDefault"},
}
#: security context that the Pod Security Standard "restricted" demands of a container
_RESTRICTED: dict[str, Any] = {**_REDUCED, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
#: added capabilities with which the API refuses ``allowPrivilegeEscalation: false``
_ESCALATING = {"ALL", "SYS_ADMIN"}
#: runs the program under Fiber's first process where the image has a Python, else directly
_WRAPPER = (
    'python=$0; source=$1; shift; if command -v "$python" >/dev/null 2>&1; then '
    'exec "$python" -I -S -c "$source" /dev/termination-log program -1 "$@"; fi; '
    'printf "fiber: bare\\n" 2>/dev/null >/dev/termination-log; exec "$@"'
)


@attrs.frozen(kw_only=True)
class PodContext:
    """Everything besides spec and settings that a pod is made of."""

    #: the parent's own pod, as the API has it; None outside a cluster
    parent: Mapping[str, Any] | None = None
    #: the container of that pod that the program runs in; None where that is not known
    container: str | None = None
    #: owner reference to the run's Lease; None for detached jobs
    owner: Mapping[str, Any] | None = None
    #: name of the Secret with the run's key; None where nothing is private
    secret: str | None = None
    #: the job's private bytes, sealed with that key
    sealed: str | None = attrs.field(default=None, repr=False)
    #: True where the job has a Secret of its own, with its private bytes as they are
    own_secret: bool = False
    #: resource names of device kinds, ``{"gpu": "nvidia.com/gpu"}``
    device_classes: Mapping[str, str] = attrs.field(factory=dict)
    #: the user's pod template
    template: Mapping[str, Any] | None = None
    #: the pod group that it is a member of
    gang: PodGroup | None = None
    #: name of the user, for a label
    user: str = ""
    #: variables besides those of the spec
    env: Mapping[str, str] = attrs.field(factory=dict)


def manifest(spec: JobSpec, config: K8sConfig, context: PodContext) -> dict[str, Any]:
    """Return the body of a job's pod.

    Args:
        spec: the job.
        config: settings.
        context: everything else.

    Raises:
        SubmitError: the parent's pod has no container of the configured name.
    """
    inherited = inherit(context.parent, config.container, context.container)
    metadata = _metadata(spec, config, context)
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": _spec(spec, config, context, inherited, metadata["name"]),
    }
    if context.gang is not None:
        context.gang.mark(pod, ((context.template or {}).get("spec") or {}).get("schedulerName"))
    if context.template is not None:
        pod = merge_template(pod, context.template)
    if is_reduced(config.security, spec):
        container = pod["spec"]["containers"][0]
        pod_wide, own = pod["spec"].get("securityContext"), container.get("securityContext")
        container["securityContext"] = _secured(config, pod_wide or {}, own or {})
    return pod


def _secured(
    config: K8sConfig, pod_wide: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a container's own security context with the setting's fields beneath it.

    The pod's holds where the container's says nothing.
    """
    if own.get("privileged"):
        # all of the setting's fields contradict that, and the API refuses some
        return dict(own)
    effective = {**pod_wide, **own}
    is_restricted = config.security == "restricted" or _is_non_root(effective)
    found = dict(_RESTRICTED if is_restricted else _REDUCED)
    capabilities = own.get("capabilities") or {}
    added = {name.removeprefix("CAP_") for name in capabilities.get("add") or ()}
    if added & _ESCALATING:
        del found["allowPrivilegeEscalation"]
    if "seccompProfile" in pod_wide:
        del found["seccompProfile"]
    dropped = [name for name in found["capabilities"]["drop"] if not added & {name, "ALL"}]
    return {**found, **own, "capabilities": {"drop": dropped, **capabilities}}


def _is_non_root(security: Mapping[str, Any]) -> bool:
    """True where the container's user is known not to be root; the image's is not known."""
    return bool(security.get("runAsNonRoot") or security.get("runAsUser"))


def _metadata(spec: JobSpec, config: K8sConfig, context: PodContext) -> dict[str, Any]:
    labels = dict(pair.split("=", 1) for pair in config.labels)
    fiber_labels = {
        "run": spec.run_id,
        "kind": "program" if spec.entry is None else "process",
        "detached": str(spec.detached).lower(),
        "user": context.user,
        **spec.labels,
    }
    for key, text in fiber_labels.items():
        value = label_value(text)
        if value:
            labels[PREFIX + (label_value(key) or "label")] = value
    labels["app.kubernetes.io/managed-by"] = "fiber"
    metadata: dict[str, Any] = {
        # the prefix distinguishes programs that users started from processes of programs
        "name": unique_name(spec.name if spec.entry is not None else f"fiber-{spec.name}"),
        "labels": labels,
        "annotations": {
            **dict(pair.split("=", 1) for pair in config.annotations),
            f"{PREFIX}name": spec.name,
            f"{PREFIX}argv": json.dumps(spec.argv),
            "kubectl.kubernetes.io/default-container": CONTAINER,
        },
    }
    if context.owner is not None:
        metadata["ownerReferences"] = [dict(context.owner)]
    return metadata


def _spec(
    spec: JobSpec, config: K8sConfig, context: PodContext, inherited: Inherited, name: str
) -> dict[str, Any]:
    volumes, mounts = _storage(spec, context, inherited, name)
    found = {
        **inherited.spec,
        "restartPolicy": "Never",
        # a Service called fiber would set FIBER_PORT and the like
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": config.grace,
        "containers": [_container(spec, config, context, inherited, mounts)],
    }
    if spec.avoid_hosts:
        found["affinity"] = _away_from(spec.avoid_hosts, found.get("affinity") or {})
    if inherited.init:
        found["initContainers"] = [dict(one) for one in inherited.init]
    if volumes:
        found["volumes"] = volumes
    if config.service_account is not None:
        found["serviceAccountName"] = config.service_account
    if spec.entry is not None and not config.worker_token:
        # jobs of its own are submitted by the program, and the account may start pods
        found["automountServiceAccountToken"] = False
    if config.priority_class is not None:
        found["priorityClassName"] = config.priority_class
    if config.node_selector:
        chosen = dict(pair.split("=", 1) for pair in config.node_selector)
        found["nodeSelector"] = {**found.get("nodeSelector", {}), **chosen}
    if config.pull_secrets:
        known = found.get("imagePullSecrets", [])
        more = [{"name": name} for name in config.pull_secrets]
        found["imagePullSecrets"] = [*known, *(one for one in more if one not in known)]
    return found


def _away_from(nodes: Sequence[str], affinity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an affinity that prefers other nodes; alone in a cluster, they are used again."""
    of_nodes = affinity.get("nodeAffinity") or {}
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    # by its name, which a label may not have; the API takes one in each field
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in nodes]
    term = {"weight": 100, "preference": {"matchFields": fields}}
    return {**affinity, "nodeAffinity": {**of_nodes, key: [*of_nodes.get(key, ()), term]}}


def _container(
    spec: JobSpec,
    config: K8sConfig,
    context: PodContext,
    inherited: Inherited,
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    image = spec.image or inherited.container.get("image")
    container: dict[str, Any] = {
        **inherited.container,
        "name": CONTAINER,
        "command": [_literal(word) for word in _command(spec, config)],
        "env": _environment(spec, config, context, inherited),
    }
    if image is not None:
        container["image"] = image
    if spec.image not in {None, inherited.container.get("image")}:
        # the pull policy was for the parent's image
        container.pop("imagePullPolicy", None)
    if config.pull is not None:
        container["imagePullPolicy"] = config.pull
    if spec.cwd is not None:
        container["workingDir"] = spec.cwd
    if mounts:
        container["volumeMounts"] = mounts
    resources = _resources(spec.resources, config, context.device_classes)
    if resources:
        container["resources"] = resources
    return container


def _command(spec: JobSpec, config: K8sConfig) -> list[str]:
    """Return the container's command: the core's supervisor, or the first process of a program."""
    if spec.entry is not None:
        return [config.python, *spec.argv[1:]]
    return ["/bin/sh", "-c", _WRAPPER, config.python, first.text(), *spec.argv]


def _environment(
    spec: JobSpec, config: K8sConfig, context: PodContext, inherited: Inherited
) -> list[dict[str, Any]]:
    own = {**spec.env, **context.env, JOB_VARIABLE: "job"}
    if spec.entry is not None:
        own["FIBER_GRACE"] = str(config.grace)
    if context.own_secret:
        own["FIBER_BOOTSTRAP"] = f"file:{PRIVATE}"
    elif context.sealed is not None:
        own["FIBER_BOOTSTRAP"] = f"sealed:{KEY}:{context.sealed}"
    gone = own.keys() | spec.unset_env
    kept = [dict(one) for one in inherited.env if one["name"] not in gone]
    return [*kept, *({"name": name, "value": _literal(text)} for name, text in own.items())]


def _storage(
    spec: JobSpec, context: PodContext, inherited: Inherited, name: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    paths = {volume.path for volume in spec.volumes}
    mounts = [dict(one) for one in inherited.mounts if one["mountPath"] not in paths]
    volumes = [dict(one) for one in inherited.volumes]
    taken = {one["name"] for one in volumes}
    # a parent that is a job of Fiber has some of these names
    free = (name for number in itertools.count() if (name := f"fiber-{number}") not in taken)
    for volume, volume_name in zip(spec.volumes, free, strict=False):
        volumes.append({"name": volume_name, **_source(volume)})
        mount: dict[str, Any] = {"name": volume_name, "mountPath": volume.path}
        mounts.append({**mount, "readOnly": True} if volume.read_only else mount)
    secret_name = name if context.own_secret else context.secret
    if secret_name is not None:
        secret = {"secretName": secret_name, "defaultMode": _READABLE}
        volumes.append({"name": RUN_VOLUME, "secret": secret})
        folder = os.path.dirname(KEY)  # noqa: PTH120 - a path of the pod's, not of this host
        mounts.append({"name": RUN_VOLUME, "mountPath": folder, "readOnly": True})
    return volumes, mounts


def _source(volume: Volume) -> dict[str, Any]:
    """Return a volume source: a hostPath for an absolute path, else a claim by its name."""
    if PurePosixPath(volume.source).is_absolute():
        return {"hostPath": {"path": volume.source}}
    claim: dict[str, Any] = {"claimName": volume.source}
    if volume.read_only:
        claim["readOnly"] = True
    return {"persistentVolumeClaim": claim}


def _resources(
    asked: ResourceRequest, config: K8sConfig, classes: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    requests: dict[str, str] = {}
    if asked.cpu is not None:
        requests["cpu"] = f"{max(1, round(asked.cpu * 1000))}m"
    if asked.memory is not None:
        requests["memory"] = f"{asked.memory}Mi"
    limited = {"all": {"cpu", "memory"}, "memory": {"memory"}, "none": set[str]()}[config.limits]
    limits = {key: text for key, text in requests.items() if key in limited}
    for kind, count in asked.devices.items():
        if count:
            # extended resources cannot be overcommitted: limits equal requests
            requests[classes[kind]] = limits[classes[kind]] = str(count)
    found = {"requests": requests, "limits": limits}
    return {key: amounts for key, amounts in found.items() if amounts}


def _literal(text: str) -> str:
    """Escape a text: Kubernetes replaces ``$(NAME)`` in commands and variables."""
    return text.replace("$", "$$")
