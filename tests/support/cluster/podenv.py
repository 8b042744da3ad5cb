"""The environment of a container: values, references to fields, secrets and config maps."""

from __future__ import annotations

import base64
import re

from .kinds import CONFIG_MAPS, SECRETS
from .quantities import parse
from .runtime import StartRefused
from .store import Object, Store

__all__ = ["environment", "field"]

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_CONFIG = "CreateContainerConfigError"


def environment(
    store: Store, pod: Object, container: Object, ip: str, host_ip: str
) -> dict[str, str]:
    """Names and values; StartRefused where a reference leads nowhere."""
    namespace = pod["metadata"]["namespace"]
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        for key, value in _all_of(store, namespace, source).items():
            found[prefix + key] = value
    for variable in container.get("env") or ():
        source = variable.get("valueFrom")
        if source is None:
            found[variable["name"]] = expand(variable.get("value") or "", found)
            continue
        value = _valued(store, pod, container, source, ip, host_ip)
        if value is not None:
            found[variable["name"]] = value
    return found


def expand(text: str, known: dict[str, str]) -> str:
    """Replace ``$(NAME)`` by what is known; what is not stays."""

    def value(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return known.get(match[1], match[0])

    return _REFERENCE.sub(value, text)


def field(pod: Object, path: str, ip: str, host_ip: str) -> str:
    """A field of a pod, as the downward API gives it."""
    meta, spec = pod["metadata"], pod["spec"]
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path)
    if match is not None:
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        pairs = sorted((meta.get(path.partition(".")[2]) or {}).items())
        return "\n".join(f'{key}="{value}"' for key, value in pairs)
    known = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": host_ip,
        "status.hostIPs": host_ip,
        "status.podIP": ip,
        "status.podIPs": ip,
    }
    return str(known[path])


def resource(container: Object, reference: Object, pod: Object) -> str:
    """A request or limit of a container, as the downward API gives it."""
    named = reference.get("containerName")
    if named:
        container = next(c for c in pod["spec"]["containers"] if c["name"] == named)
    part, _, name = reference["resource"].partition(".")
    value = ((container.get("resources") or {}).get(part) or {}).get(name, "0")
    divisor = parse(reference.get("divisor") or "0") or parse("1")
    return str(-(-parse(value) // divisor))


def _valued(
    store: Store, pod: Object, container: Object, source: Object, ip: str, host_ip: str
) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"], ip, host_ip)
    if "resourceFieldRef" in source:
        return resource(container, source["resourceFieldRef"], pod)
    kind = "secret" if "secretKeyRef" in source else "configMap"
    reference = source[f"{kind}KeyRef"]
    namespace, name, key = pod["metadata"]["namespace"], reference["name"], reference["key"]
    kept = SECRETS if kind == "secret" else CONFIG_MAPS
    there = store.get(kept, namespace, name)
    optional = reference.get("optional", False)
    if there is None:
        if optional:
            return None
        raise StartRefused(_CONFIG, f'{kept.plural[:-1]} "{name}" not found')
    data = there.get("data") or {}
    if key not in data:
        if optional:
            return None
        title = "Secret" if kind == "secret" else "ConfigMap"
        raise StartRefused(_CONFIG, f"couldn't find key {key} in {title} {namespace}/{name}")
    return base64.b64decode(data[key]).decode() if kind == "secret" else str(data[key])


def _all_of(store: Store, namespace: str, source: Object) -> dict[str, str]:
    kind = "secretRef" if "secretRef" in source else "configMapRef"
    kept = SECRETS if kind == "secretRef" else CONFIG_MAPS
    name = source[kind]["name"]
    there = store.get(kept, namespace, name)
    if there is None:
        if source[kind].get("optional"):
            return {}
        raise StartRefused(_CONFIG, f'{kept.plural[:-1]} "{name}" not found')
    data = there.get("data") or {}
    if kept is SECRETS:
        return {key: base64.b64decode(value).decode() for key, value in data.items()}
    return dict(data)
