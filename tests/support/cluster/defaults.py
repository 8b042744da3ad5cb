"""What the API server adds to objects that leave it out."""

from __future__ import annotations

import base64
import random
from typing import Any

from .kinds import Resource
from .quantities import canonical
from .store import Object

__all__ = ["fill", "quality", "suffix"]

#: what generated names end with: no vowels, so no words
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_TOLERATED = ("not-ready", "unreachable")
TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def suffix() -> str:
    """Five characters, as ``generateName`` adds them."""
    return "".join(random.choices(_LETTERS, k=5))


def fill(resource: Resource, thing: Object) -> None:
    """Put the defaults of its kind in an object."""
    filler = _FILLERS.get(resource.plural)
    if filler is not None:
        filler(thing)


def quality(spec: Object) -> str:
    """The quality of service that a pod's resources earn it."""
    guaranteed, any_set = True, False
    for container in (*spec.get("containers", ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            any_set |= name in limits or name in requests
            guaranteed &= name in limits and requests.get(name) == limits[name]
    if not any_set:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def pod_spec(spec: Object) -> None:
    """Defaults of a pod's specification, also as a template has it."""
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        _container(container)
    for volume in spec.get("volumes") or ():
        _volume(volume)
    if spec.get("hostNetwork"):
        for container in spec.get("containers") or ():
            for port in container.get("ports") or ():
                port.setdefault("hostPort", port["containerPort"])
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    if "serviceAccountName" not in spec and spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")


def _pod(thing: Object) -> None:
    spec = thing.setdefault("spec", {})
    pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]


def _container(container: Object) -> None:
    image = container.get("image") or ""
    tag = image.rpartition("/")[2].partition("@")[0].partition(":")[2]
    fresh = "@" not in image and tag in {"", "latest"}
    container.setdefault("imagePullPolicy", "Always" if fresh else "IfNotPresent")
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    resources = container.get("resources")
    if resources is None:
        resources = container["resources"] = {}
    for part in ("limits", "requests"):
        for name, value in (resources.get(part) or {}).items():
            resources[part][name] = canonical(value)
    for name, value in (resources.get("limits") or {}).items():
        resources.setdefault("requests", {}).setdefault(name, value)
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")
        resource = (variable.get("valueFrom") or {}).get("resourceFieldRef")
        if resource is not None:
            resource.setdefault("divisor", "0")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container.get(name)
        if probe is not None:
            probe.setdefault("timeoutSeconds", 1)
            probe.setdefault("periodSeconds", 10)
            probe.setdefault("successThreshold", 1)
            probe.setdefault("failureThreshold", 3)
            if probe.get("httpGet"):
                probe["httpGet"].setdefault("path", "/")
                probe["httpGet"].setdefault("scheme", "HTTP")


def _volume(volume: Object) -> None:
    sources = [key for key in volume if key != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for kind in ("secret", "configMap", "downwardAPI", "projected"):
        if isinstance(volume.get(kind), dict):
            volume[kind].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    empty = volume.get("emptyDir")
    if isinstance(empty, dict) and empty.get("sizeLimit") is not None:
        empty["sizeLimit"] = canonical(empty["sizeLimit"])
    parts: list[Any] = (volume.get("projected") or {}).get("sources") or []
    items = list((volume.get("downwardAPI") or {}).get("items") or ())
    for part in parts:
        if "serviceAccountToken" in part:
            part["serviceAccountToken"].setdefault("expirationSeconds", 3600)
        items += (part.get("downwardAPI") or {}).get("items") or ()
    for item in items:
        if item.get("fieldRef"):
            item["fieldRef"].setdefault("apiVersion", "v1")


def tolerations(spec: Object) -> None:
    """What every pod tolerates for five minutes."""
    there = spec.setdefault("tolerations", [])
    for word in _TOLERATED:
        key = f"node.kubernetes.io/{word}"
        if not any(
            item.get("key", key) == key and item.get("effect") in {None, "", "NoExecute"}
            for item in there
        ):
            there.append(
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            )


def token_volume(spec: Object) -> None:
    """The service account's token, certificate and namespace, for containers that mount no own."""
    stem = "kube-api-access-"
    there = [v["name"] for v in spec.get("volumes") or () if v.get("name", "").startswith(stem)]
    # a copied specification brings its volume along
    name = there[0] if there else f"{stem}{suffix()}"
    used = False
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        mounts = container.setdefault("volumeMounts", [])
        if any(mount.get("mountPath") == TOKEN_PATH for mount in mounts):
            continue
        mounts.append({"name": name, "readOnly": True, "mountPath": TOKEN_PATH})
        used = True
    if used and not there:
        reference = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
        sources = [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": reference}]}},
        ]
        volume = {"name": name, "projected": {"sources": sources, "defaultMode": 420}}
        spec.setdefault("volumes", []).append(volume)


def _secret(thing: Object) -> None:
    thing.setdefault("type", "Opaque")
    texts = thing.pop("stringData", None) or {}
    for key, text in texts.items():
        thing.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _claim(thing: Object) -> None:
    spec = thing.setdefault("spec", {})
    spec.setdefault("volumeMode", "Filesystem")
    thing.setdefault("status", {}).setdefault("phase", "Pending")


def _namespace(thing: Object) -> None:
    thing["spec"] = {"finalizers": ["kubernetes"]}
    thing["status"] = {"phase": "Active"}
    labels = thing["metadata"].setdefault("labels", {})
    if "name" in thing["metadata"]:
        labels["kubernetes.io/metadata.name"] = thing["metadata"]["name"]


def _node(thing: Object) -> None:
    thing.setdefault("spec", {})
    status = thing.setdefault("status", {})
    status.setdefault("allocatable", dict(status.get("capacity") or {}))


def _job(thing: Object) -> None:
    spec = thing.setdefault("spec", {})
    for name, value in (("parallelism", 1), ("completions", 1), ("backoffLimit", 6)):
        spec.setdefault(name, value)
    pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))
    thing.setdefault("status", {})


def _template(thing: Object) -> None:
    spec = thing.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    pod_spec(spec.setdefault("template", {}).setdefault("spec", {}))
    thing.setdefault("status", {})


def _quota(thing: Object) -> None:
    for name, value in ((thing.get("spec") or {}).get("hard") or {}).items():
        thing["spec"]["hard"][name] = canonical(value)
    thing.setdefault("status", {})


def _limits(thing: Object) -> None:
    for item in (thing.get("spec") or {}).get("limits") or ():
        for part in ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio"):
            for name, value in (item.get(part) or {}).items():
                item[part][name] = canonical(value)
        if item.get("type") == "Container":
            for name, value in (item.get("max") or {}).items():
                item.setdefault("default", {}).setdefault(name, value)
            for name, value in (item.get("default") or {}).items():
                item.setdefault("defaultRequest", {}).setdefault(name, value)


def _priority(thing: Object) -> None:
    thing.setdefault("preemptionPolicy", "PreemptLowerPriority")


_FILLERS = {
    "deployments": _template,
    "jobs": _job,
    "limitranges": _limits,
    "namespaces": _namespace,
    "nodes": _node,
    "persistentvolumeclaims": _claim,
    "pods": _pod,
    "priorityclasses": _priority,
    "replicasets": _template,
    "resourcequotas": _quota,
    "secrets": _secret,
    "statefulsets": _template,
}
