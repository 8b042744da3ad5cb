"""What the API server adds to new objects, and refuses of them."""

import secrets

from .objects import ACCOUNTS, PODS, Object, Refused, Resource, Store

_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def complete(store: Store, resource: Resource, thing: Object) -> None:
    """Complete a new object, or refuse it."""
    if resource is PODS:
        _pod(store, thing)
    elif resource.plural == "persistentvolumeclaims":
        # its storage is there at once
        thing["status"] = {"phase": "Bound"}


def _pod(store: Store, pod: Object) -> None:
    spec = pod["spec"]
    pod["status"] = {"phase": "Pending"}
    for container in spec["containers"]:
        image = container.get("image", "").rpartition("/")[2]
        policy = "Always" if image.partition(":")[2] in {"", "latest"} else "IfNotPresent"
        container.setdefault("imagePullPolicy", policy)
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        resources = container.setdefault("resources", {})
        for name, value in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, value)
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    _account(store, pod)


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
    """Add the service account's token."""
    name = f"kube-api-access-{secrets.token_hex(3)[:5]}"
    for container in spec["containers"]:
        mount = {"name": name, "readOnly": True, "mountPath": _TOKEN_PATH}
        container.setdefault("volumeMounts", []).append(mount)
    sources = [
        {"serviceAccountToken": {"path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt"}},
        {"downwardAPI": {"items": [{"path": "namespace"}]}},
    ]
    volume = {"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}
    spec.setdefault("volumes", []).append(volume)
