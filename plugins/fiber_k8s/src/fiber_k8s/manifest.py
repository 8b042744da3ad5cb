"""Which pod does what a spec asks for; pure."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import attrs

from fiber.backend_parts import first
from fiber.model import JobSpec, ResourceRequest, Volume
from fiber_k8s.config import K8sConfig
from fiber_k8s.gangs import Gang
from fiber_k8s.inheritance import RUN_VOLUME, Inherited, inherit
from fiber_k8s.names import CONTAINER, PREFIX, label_value, unique_name
from fiber_k8s.surroundings import MARK
from fiber_k8s.template import merge_beneath

__all__ = ["CONTAINER", "KEY", "PRIVATE", "Around", "manifest"]

#: where the run's key is
KEY = "/var/run/secrets/fiber/key"
#: where a job's private bytes are that are not sealed
PRIVATE = "/var/run/secrets/fiber/private"
#: files of a Secret belong to root, and the program may not be
_READABLE = 0o444
#: what the Pod Security Standard "restricted" wants of a container
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
#: runs our first process where there is a Python for it, else the program itself
_WRAPPER = (
    'python=$0; source=$1; shift; if command -v "$python" >/dev/null 2>&1; then '
    'exec "$python" -I -S -c "$source" /dev/termination-log program -1 "$@"; fi; '
    'printf "fiber: bare\\n" 2>/dev/null >/dev/termination-log; exec "$@"'
)


@attrs.frozen(kw_only=True)
class Around:
    """What a pod is put into."""

    #: the parent's own pod, as the API has it; None outside a cluster
    parent: Mapping[str, Any] | None = None
    #: the container of that pod that the program runs in; None where that is not known
    container: str | None = None
    #: what owns it: the run's Lease, as an owner reference; None for what outlives its starter
    owner: Mapping[str, Any] | None = None
    #: name of the Secret with the run's key; None where nothing is private
    secret: str | None = None
    #: the job's private bytes, sealed with that key
    sealed: str | None = attrs.field(default=None, repr=False)
    #: True where the job has a Secret of its own, with its private bytes as they are
    own_secret: bool = False
    #: the cluster's words for kinds of devices, ``{"gpu": "nvidia.com/gpu"}``
    device_classes: Mapping[str, str] = attrs.field(factory=dict)
    #: the user's pod template
    template: Mapping[str, Any] | None = None
    #: the group that it starts with
    gang: Gang | None = None
    #: whose job it is
    user: str = ""
    #: what its first process is told besides
    env: Mapping[str, str] = attrs.field(factory=dict)


def manifest(spec: JobSpec, config: K8sConfig, around: Around) -> dict[str, Any]:
    """The body of the call that creates a job's pod.

    Args:
        spec: the job.
        config: settings.
        around: what it is put into.

    Raises:
        SubmitError: the parent's pod has no container of the configured name.
    """
    inherited = inherit(around.parent, config.container, around.container)
    metadata = _metadata(spec, config, around)
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": _spec(spec, config, around, inherited, metadata["name"]),
    }
    if around.gang is not None:
        around.gang.mark(pod, ((around.template or {}).get("spec") or {}).get("schedulerName"))
    return pod if around.template is None else merge_beneath(pod, around.template)


def _metadata(spec: JobSpec, config: K8sConfig, around: Around) -> dict[str, Any]:
    labels = dict(pair.split("=", 1) for pair in config.labels)
    told = {
        "run": spec.run_id,
        "kind": "program" if spec.entry is None else "process",
        "detached": str(spec.detached).lower(),
        "user": around.user,
        **spec.labels,
    }
    for key, text in told.items():
        value = label_value(text)
        if value:
            labels[PREFIX + (label_value(key) or "label")] = value
    labels["app.kubernetes.io/managed-by"] = "fiber"
    metadata: dict[str, Any] = {
        # a program that was started by hand is told from processes at a glance
        "name": unique_name(spec.name if spec.entry is not None else f"fiber-{spec.name}"),
        "labels": labels,
        "annotations": {
            **dict(pair.split("=", 1) for pair in config.annotations),
            f"{PREFIX}name": spec.name,
            f"{PREFIX}argv": json.dumps(spec.argv),
            "kubectl.kubernetes.io/default-container": CONTAINER,
        },
    }
    if around.owner is not None:
        metadata["ownerReferences"] = [dict(around.owner)]
    return metadata


def _spec(
    spec: JobSpec, config: K8sConfig, around: Around, inherited: Inherited, name: str
) -> dict[str, Any]:
    volumes, mounts = _storage(spec, around, inherited, name)
    found = {
        **inherited.spec,
        "restartPolicy": "Never",
        # a Service called fiber would set FIBER_PORT and the like
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": config.grace,
        "containers": [_container(spec, config, around, inherited, mounts)],
    }
    if inherited.init:
        found["initContainers"] = [dict(one) for one in inherited.init]
    if volumes:
        found["volumes"] = volumes
    if config.service_account is not None:
        found["serviceAccountName"] = config.service_account
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


def _container(
    spec: JobSpec,
    config: K8sConfig,
    around: Around,
    inherited: Inherited,
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    image = spec.image or inherited.container.get("image")
    container: dict[str, Any] = {
        **inherited.container,
        "name": CONTAINER,
        "command": [_literal(word) for word in _command(spec, config)],
        "env": _environment(spec, config, around, inherited),
    }
    if image is not None:
        container["image"] = image
    if spec.image not in {None, inherited.container.get("image")}:
        # the policy was about the other image
        container.pop("imagePullPolicy", None)
    if config.security == "restricted":
        container["securityContext"] = {**_RESTRICTED, **container.get("securityContext", {})}
    if config.pull is not None:
        container["imagePullPolicy"] = config.pull
    if spec.cwd is not None:
        container["workingDir"] = spec.cwd
    if mounts:
        container["volumeMounts"] = mounts
    wanted = _resources(spec.resources, config, around.device_classes)
    if wanted:
        container["resources"] = wanted
    return container


def _command(spec: JobSpec, config: K8sConfig) -> list[str]:
    """The first process: the core's supervisor, or the one that minds a program."""
    if spec.entry is not None:
        return [config.python, *spec.argv[1:]]
    return ["/bin/sh", "-c", _WRAPPER, config.python, first.text(), *spec.argv]


def _environment(
    spec: JobSpec, config: K8sConfig, around: Around, inherited: Inherited
) -> list[dict[str, Any]]:
    own = {**spec.env, **around.env, MARK: "job"}
    if spec.entry is not None:
        own["FIBER_GRACE"] = str(config.grace)
    if around.own_secret:
        own["FIBER_BOOTSTRAP"] = f"file:{PRIVATE}"
    elif around.sealed is not None:
        own["FIBER_BOOTSTRAP"] = f"sealed:{KEY}:{around.sealed}"
    gone = own.keys() | spec.unset_env
    kept = [dict(one) for one in inherited.env if one["name"] not in gone]
    return [*kept, *({"name": name, "value": _literal(text)} for name, text in own.items())]


def _storage(
    spec: JobSpec, around: Around, inherited: Inherited, name: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    paths = {volume.path for volume in spec.volumes}
    mounts = [dict(one) for one in inherited.mounts if one["mountPath"] not in paths]
    volumes = [dict(one) for one in inherited.volumes]
    taken = {one["name"] for one in volumes}
    # a parent that was started with volumes has some of these names
    free = (name for number in itertools.count() if (name := f"fiber-{number}") not in taken)
    for volume, volume_name in zip(spec.volumes, free, strict=False):
        volumes.append({"name": volume_name, **_source(volume)})
        mount: dict[str, Any] = {"name": volume_name, "mountPath": volume.path}
        mounts.append({**mount, "readOnly": True} if volume.read_only else mount)
    secret_name = name if around.own_secret else around.secret
    if secret_name is not None:
        secret = {"secretName": secret_name, "defaultMode": _READABLE}
        volumes.append({"name": RUN_VOLUME, "secret": secret})
        folder = os.path.dirname(KEY)  # noqa: PTH120 - a path of the pod's, not of this host
        mounts.append({"name": RUN_VOLUME, "mountPath": folder, "readOnly": True})
    return volumes, mounts


def _source(volume: Volume) -> dict[str, Any]:
    """A claim by its name, or a folder of the node."""
    if PurePosixPath(volume.source).is_absolute():
        return {"hostPath": {"path": volume.source}}
    claim: dict[str, Any] = {"claimName": volume.source}
    if volume.read_only:
        claim["readOnly"] = True
    return {"persistentVolumeClaim": claim}


def _resources(
    wanted: ResourceRequest, config: K8sConfig, classes: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    requests: dict[str, str] = {}
    if wanted.cpu is not None:
        requests["cpu"] = f"{max(1, round(wanted.cpu * 1000))}m"
    if wanted.memory is not None:
        requests["memory"] = f"{wanted.memory}Mi"
    limited = {"all": {"cpu", "memory"}, "memory": {"memory"}, "none": set[str]()}[config.limits]
    limits = {key: text for key, text in requests.items() if key in limited}
    for kind, count in wanted.devices.items():
        if count:
            # such resources cannot be shared: both numbers are the same
            requests[classes[kind]] = limits[classes[kind]] = str(count)
    found = {"requests": requests, "limits": limits}
    return {key: amounts for key, amounts in found.items() if amounts}


def _literal(text: str) -> str:
    """A text as it is: the cluster replaces ``$(NAME)`` in commands and variables."""
    return text.replace("$", "$$")
