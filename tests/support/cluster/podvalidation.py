"""Whether a pod's specification is valid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .formats import dns_label_problems, label_problems, variable_problems
from .quantities import parse
from .refusals import Cause
from .store import Object

__all__ = ["pod_problems"]

_STANDARD = ("cpu", "memory", "ephemeral-storage")
_NOT_NEGATIVE = "must be greater than or equal to 0"
_PULLS = ("Always", "IfNotPresent", "Never")
_RESTARTS = ("Always", "OnFailure", "Never")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_MOST = 2_147_483_647


def pod_problems(pod: Object, *, new: bool) -> Iterator[Cause]:
    """All that is wrong.

    Args:
        pod: the object.
        new: whether it is about to be created.
    """
    spec = pod["spec"]
    if new and spec.get("ephemeralContainers"):
        yield Cause.forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        why = "cannot be set until all schedulingGates have been cleared"
        yield Cause.forbidden("spec.nodeName", why)
    volumes = list(spec.get("volumes") or ())
    yield from _volumes(volumes)
    names = {volume.get("name") for volume in volumes}
    if not spec.get("containers"):
        yield Cause.required("spec.containers")
    yield from _containers(spec.get("containers") or (), "spec.containers", names)
    yield from _containers(spec.get("initContainers") or (), "spec.initContainers", names)
    if spec.get("restartPolicy") not in _RESTARTS:
        yield Cause.unsupported("spec.restartPolicy", spec.get("restartPolicy"), _RESTARTS)
    yield from label_problems(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    yield from _tolerations(spec.get("tolerations") or ())
    for name in ("hostname", "subdomain"):
        if spec.get(name):
            for why in dns_label_problems(spec[name]):
                yield Cause.invalid(f"spec.{name}", spec[name], why)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= _MOST:
        why = f"must be between 1 and {_MOST}, inclusive"
        yield Cause.invalid("spec.activeDeadlineSeconds", deadline, why)
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if grace < 0:
        yield Cause.invalid("spec.terminationGracePeriodSeconds", grace, _NOT_NEGATIVE)


def _volumes(volumes: Sequence[Object]) -> Iterator[Cause]:
    seen: set[str] = set()
    for number, volume in enumerate(volumes):
        field, name = f"spec.volumes[{number}]", volume.get("name") or ""
        if not name:
            yield Cause.required(f"{field}.name")
        elif name in seen:
            yield Cause.duplicate(f"{field}.name", name)
        else:
            for why in dns_label_problems(name):
                yield Cause.invalid(f"{field}.name", name, why)
        seen.add(name)
        sources = sorted(key for key in volume if key != "name")
        for key in sources[1:]:
            text = "may not specify more than 1 volume type"
            yield Cause.forbidden(f"{field}.{key}", text)
        path = (volume.get("hostPath") or {}).get("path")
        if "hostPath" in volume and not path:
            yield Cause.required(f"{field}.hostPath.path")
        elif path is not None and ".." in path.split("/"):
            yield Cause.invalid(f"{field}.hostPath.path", path, "must not contain '..'")
        if "secret" in volume and not (volume["secret"] or {}).get("secretName"):
            yield Cause.required(f"{field}.secret.secretName")
        claim = volume.get("persistentVolumeClaim")
        if claim is not None and not claim.get("claimName"):
            yield Cause.required(f"{field}.persistentVolumeClaim.claimName")


def _containers(
    containers: Sequence[Object], place: str, volumes: set[str | None]
) -> Iterator[Cause]:
    seen: set[str] = set()
    for number, container in enumerate(containers):
        field, name = f"{place}[{number}]", container.get("name") or ""
        if not name:
            yield Cause.required(f"{field}.name")
        elif name in seen:
            yield Cause.duplicate(f"{field}.name", name)
        else:
            for why in dns_label_problems(name):
                yield Cause.invalid(f"{field}.name", name, why)
        seen.add(name)
        image = container.get("image") or ""
        if not image:
            yield Cause.required(f"{field}.image")
        elif image != image.strip():
            why = "must not have leading or trailing whitespace"
            yield Cause.invalid(f"{field}.image", image, why)
        for at, variable in enumerate(container.get("env") or ()):
            told = variable.get("name") or ""
            if not told:
                yield Cause.required(f"{field}.env[{at}].name")
                continue
            for why in variable_problems(told):
                yield Cause.invalid(f"{field}.env[{at}].name", told, why)
            yield from _source(variable, f"{field}.env[{at}].valueFrom")
        yield from _mounts(container, field, volumes)
        if container.get("imagePullPolicy") not in _PULLS:
            policy = container.get("imagePullPolicy")
            yield Cause.unsupported(f"{field}.imagePullPolicy", policy, _PULLS)
        yield from _resources(container.get("resources") or {}, f"{field}.resources")


def _source(variable: Object, field: str) -> Iterator[Cause]:
    source = variable.get("valueFrom")
    if source is None:
        return
    if variable.get("value"):
        yield Cause.invalid(field, "", "may not be specified when `value` is not empty")
    if not source:
        text = "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`"
        yield Cause("FieldValueInvalid", field, f'Invalid value: "": {text}')


def _mounts(container: Object, field: str, volumes: set[str | None]) -> Iterator[Cause]:
    seen: set[str] = set()
    for number, mount in enumerate(container.get("volumeMounts") or ()):
        place = f"{field}.volumeMounts[{number}]"
        name, path = mount.get("name") or "", mount.get("mountPath") or ""
        if not name:
            yield Cause.required(f"{place}.name")
        elif name not in volumes:
            yield Cause.not_found(f"{place}.name", name)
        if not path:
            yield Cause.required(f"{place}.mountPath")
        elif path in seen:
            yield Cause.invalid(f"{place}.mountPath", path, "must be unique")
        seen.add(path)
        sub = mount.get("subPath") or ""
        if sub.startswith("/"):
            yield Cause.invalid(f"{place}.subPath", sub, "must be a relative path")
        elif ".." in sub.split("/"):
            yield Cause.invalid(f"{place}.subPath", sub, "must not contain '..'")


def _resources(resources: Object, field: str) -> Iterator[Cause]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for part, values in (("limits", limits), ("requests", requests)):
        for name, value in values.items():
            place = f"{field}.{part}[{name}]"
            if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
                why = "must be a standard resource type or fully qualified"
                yield Cause.invalid(place, name, why)
                yield Cause.invalid(place, name, "must be a standard resource for containers")
            if parse(value) < 0:
                yield Cause.invalid(place, value, _NOT_NEGATIVE)
            if "/" in name and parse(value).denominator != 1:
                yield Cause.invalid(place, value, "must be an integer")
    for name, value in requests.items():
        if "/" in name and name not in limits:
            text = "Limit must be set for non overcommitable resources"
            yield Cause.required(f"{field}.limits", text)
        elif name in limits and "/" in name and parse(value) != parse(limits[name]):
            why = f"must be equal to {name} limit of {limits[name]}"
            yield Cause.invalid(f"{field}.requests", value, why)
        elif name in limits and parse(value) > parse(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield Cause.invalid(f"{field}.requests", value, why)


def _tolerations(tolerations: Sequence[Object]) -> Iterator[Cause]:
    for number, item in enumerate(tolerations):
        field, operator = f"spec.tolerations[{number}]", item.get("operator", "Equal")
        if operator not in {"Equal", "Exists"}:
            yield Cause.unsupported(f"{field}.operator", operator, ("Equal", "Exists"))
        elif operator == "Exists" and item.get("value"):
            why = "value must be empty when `operator` is 'Exists'"
            yield Cause.invalid(f"{field}.operator", item["value"], why)
        elif operator == "Equal" and not item.get("key"):
            why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
            yield Cause.invalid(f"{field}.operator", operator, why)
        if item.get("effect") and item["effect"] not in _EFFECTS:
            yield Cause.unsupported(f"{field}.effect", item["effect"], _EFFECTS)
