"""What the API server adds to new objects, and refuses of them."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from .objects import (
    ACCOUNTS,
    CLAIMS,
    NAMESPACES,
    PODS,
    SECRETS,
    Object,
    Refused,
    Resource,
    Store,
)

__all__ = ["complete"]

_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
#: keeps Kueue's pods until their whole group has ended
KUEUE_MANAGED = "kueue.x-k8s.io/managed"
KUEUE_GATE = "kueue.x-k8s.io/admission"


def complete(store: Store, resource: Resource, thing: Object) -> None:
    """Complete a new object, or refuse it."""
    work = _WORK.get(resource)
    if work is not None:
        work(store, thing)


def _pod(store: Store, pod: Object) -> None:
    spec = pod["spec"]
    pod["metadata"]["generation"] = 1
    pod["status"] = {"phase": "Pending"}
    for container in spec["containers"]:
        image = container.get("image", "").rpartition("/")[2]
        policy = "Always" if image.partition(":")[2] in {"", "latest"} else "IfNotPresent"
        container.setdefault("imagePullPolicy", policy)
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        resources = container.setdefault("resources", {})
        for name, value in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, value)
    for volume in spec.get("volumes") or ():
        for kind in ("secret", "configMap", "projected"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", 0o644)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    _account(store, pod)
    _tolerations(spec)
    labels = pod["metadata"].get("labels") or {}
    if "kueue.x-k8s.io/queue-name" in labels:
        # by a webhook of Kueue's
        labels[KUEUE_MANAGED] = "true"
        pod["metadata"]["finalizers"] = [KUEUE_MANAGED]
        spec["schedulingGates"] = [{"name": KUEUE_GATE}]


def _account(store: Store, pod: Object) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    if store.get(ACCOUNTS, meta["namespace"], name) is None:
        where = f"{meta['namespace']}/{name}"
        why = f'error looking up service account {where}: serviceaccount "{name}" not found'
        raise Refused.forbidden(PODS, meta["name"], why)
    if spec.get("automountServiceAccountToken", True):
        _token_volume(spec)


def _token_volume(spec: Object) -> None:
    """Add the service account's token for containers that mount none."""
    stem = "kube-api-access-"
    there = [one["name"] for one in spec.get("volumes") or () if one["name"].startswith(stem)]
    # a copied specification brings its volume along
    name = there[0] if there else f"{stem}{secrets.token_hex(3)[:5]}"
    used = False
    for container in spec["containers"]:
        mounts = container.setdefault("volumeMounts", [])
        if not any(mount["mountPath"] == _TOKEN_PATH for mount in mounts):
            mounts.append({"name": name, "readOnly": True, "mountPath": _TOKEN_PATH})
            used = True
    if used and not there:
        reference = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
        items = [{"key": "ca.crt", "path": "ca.crt"}]
        sources = [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": items}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": reference}]}},
        ]
        volume = {"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}
        spec.setdefault("volumes", []).append(volume)


def _tolerations(spec: Object) -> None:
    """Have a pod tolerate a lost node for five minutes."""
    there = spec.setdefault("tolerations", [])
    for word in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{word}"
        if not any(one.get("key") == key for one in there):
            rest = {"effect": "NoExecute", "tolerationSeconds": 300}
            there.append({"key": key, "operator": "Exists", **rest})


def _secret(_: Store, thing: Object) -> None:
    thing.setdefault("type", "Opaque")
    for key, text in (thing.pop("stringData", None) or {}).items():
        thing.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def _claim(_: Store, thing: Object) -> None:
    thing["status"] = {"phase": "Bound", "accessModes": thing["spec"]["accessModes"]}


def _namespace(_: Store, thing: Object) -> None:
    thing["status"] = {"phase": "Active"}


_WORK: dict[Resource, Callable[[Store, Object], None]] = {
    PODS: _pod,
    SECRETS: _secret,
    CLAIMS: _claim,
    NAMESPACES: _namespace,
}
