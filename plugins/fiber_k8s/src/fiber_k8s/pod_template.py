"""Pod template of the user: its fields are defaults of each pod; pure but for reading the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fiber.exceptions import SubmitError

__all__ = ["merge_template", "read_template"]

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
