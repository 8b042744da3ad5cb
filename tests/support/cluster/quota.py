"""Resource quotas and limit ranges: what a namespace may use, and what its containers get."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from .kinds import LIMIT_RANGES, PODS, QUOTAS, Resource
from .quantities import canonical, parse
from .refusals import Refused
from .store import Object, Store, clone

__all__ = ["apply_limits", "charge", "recount", "usage"]

_STANDARD = ("cpu", "memory", "ephemeral-storage")


def usage(pod: Object) -> dict[str, Fraction]:
    """What a pod counts for, by the names that quotas have."""
    used = {"pods": Fraction(1), "count/pods": Fraction(1)}
    for container in pod["spec"].get("containers") or ():
        resources = container.get("resources") or {}
        for part in ("requests", "limits"):
            for name, value in (resources.get(part) or {}).items():
                number = parse(value)
                keys = [f"{part}.{name}"]
                if part == "requests" and name in _STANDARD:
                    keys.append(name)
                for key in keys:
                    used[key] = used.get(key, Fraction(0)) + number
    return used


def charge(store: Store, resource: Resource, thing: Object) -> Callable[[], None]:
    """Refuse an object that a quota has no room for; the answer writes what it uses."""
    namespace = thing["metadata"].get("namespace")
    quotas = store.list(QUOTAS, namespace) if namespace else []
    if not quotas:
        return lambda: None
    name = thing["metadata"].get("name", "")
    if resource is PODS:
        wants = usage(thing)
    else:
        wants = {f"count/{resource.qualified}": Fraction(1), resource.plural: Fraction(1)}
    for quota in quotas:
        hard = {key: parse(value) for key, value in (quota["spec"].get("hard") or {}).items()}
        if resource is PODS:
            _specified(hard, thing, quota)
        used = _used(store, namespace, hard)
        over = [key for key in sorted(hard) if key in wants and used[key] + wants[key] > hard[key]]
        if over:
            told = ", ".join
            asked = told(f"{key}={_text(wants[key])}" for key in over)
            there = told(f"{key}={_text(used[key])}" for key in over)
            limit = told(f"{key}={_text(hard[key])}" for key in over)
            why = (
                f"exceeded quota: {quota['metadata']['name']}, requested: {asked}, used: {there}, "
                f"limited: {limit}"
            )
            raise Refused.forbidden(resource, name, why)
    return lambda: recount(store, namespace)


def recount(store: Store, namespace: str | None) -> None:
    """Write into quotas what is used."""
    for quota in store.list(QUOTAS, namespace):
        hard = quota["spec"].get("hard") or {}
        used = _used(store, quota["metadata"]["namespace"], hard)
        new = clone(quota)
        new["status"] = {
            "hard": dict(hard),
            "used": {key: _text(used[key]) for key in sorted(hard)},
        }
        store.update(QUOTAS, new)


def apply_limits(store: Store, pod: Object) -> None:
    """Write the defaults of limit ranges into a pod, and refuse what they forbid."""
    meta, spec = pod["metadata"], pod["spec"]
    for limits in store.list(LIMIT_RANGES, meta["namespace"]):
        for item in limits["spec"].get("limits") or ():
            if item["type"] == "Container":
                _default(meta, spec, item)
    complaints = []
    for limits in store.list(LIMIT_RANGES, meta["namespace"]):
        for item in limits["spec"].get("limits") or ():
            if item["type"] == "Container":
                for container in spec.get("containers") or ():
                    resources = container.get("resources") or {}
                    complaints += _complaints(item, resources, "Container")
            elif item["type"] == "Pod":
                complaints += _complaints(item, _whole(spec), "Pod")
    if complaints:
        text = complaints[0] if len(complaints) == 1 else f"[{', '.join(complaints)}]"
        raise Refused.forbidden(PODS, meta.get("name", ""), text)


def _default(meta: Object, spec: Object, item: Object) -> None:
    told = []
    for container in spec.get("containers") or ():
        resources = container.setdefault("resources", {})
        for part, key in (("limits", "default"), ("requests", "defaultRequest")):
            names = []
            for name, value in sorted((item.get(key) or {}).items()):
                if name not in (resources.get(part) or {}):
                    resources.setdefault(part, {})[name] = value
                    names.append(name)
            if names:
                word = "request" if part == "requests" else "limit"
                told.append((word, names, container["name"]))
    if told:
        told.sort(key=lambda item: item[0] != "request")
        text = "; ".join(f"{', '.join(n)} {w} for container {c}" for w, n, c in told)
        notes = meta.setdefault("annotations", {})
        notes["kubernetes.io/limit-ranger"] = f"LimitRanger plugin set: {text}"


def _whole(spec: Object) -> Object:
    """The resources of all containers together."""
    whole: Object = {}
    for container in spec.get("containers") or ():
        for part, values in (container.get("resources") or {}).items():
            for name, value in values.items() if isinstance(values, dict) else ():
                there = whole.setdefault(part, {})
                there[name] = (
                    value if name not in there else _text(parse(there[name]) + parse(value))
                )
    return whole


def _complaints(item: Object, resources: Object, what: str) -> list[str]:
    found = []
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for name, least in (item.get("min") or {}).items():
        if name not in requests:
            found.append(f"minimum {name} usage per {what} is {least}.  No request is specified")
        elif parse(requests[name]) < parse(least):
            found.append(
                f"minimum {name} usage per {what} is {least}, but request is {requests[name]}"
            )
    for name, most in (item.get("max") or {}).items():
        if name not in limits:
            found.append(f"maximum {name} usage per {what} is {most}.  No limit is specified")
        elif parse(limits[name]) > parse(most):
            found.append(f"maximum {name} usage per {what} is {most}, but limit is {limits[name]}")
    return found


def _specified(hard: dict[str, Fraction], pod: Object, quota: Object) -> None:
    missing: dict[str, list[str]] = {}
    for container in pod["spec"].get("containers") or ():
        resources = container.get("resources") or {}
        for key in sorted(hard):
            part, _, name = key.rpartition(".")
            if key in _STANDARD:
                part, name = "requests", key
            counted = name in _STANDARD and part in {"requests", "limits"}
            if counted and name not in (resources.get(part) or {}):
                missing.setdefault(key, []).append(container["name"])
    if missing:
        text = "; ".join(f"{key} for: {','.join(names)}" for key, names in missing.items())
        why = f"failed quota: {quota['metadata']['name']}: must specify {text}"
        raise Refused.forbidden(PODS, pod["metadata"].get("name", ""), why)


def _used(store: Store, namespace: str | None, hard: Object) -> dict[str, Fraction]:
    used = dict.fromkeys(hard, Fraction(0))
    for resource in store.resources():
        for thing in store.list(resource, namespace):
            if resource is PODS:
                if thing["status"].get("phase") in {"Succeeded", "Failed"}:
                    if "count/pods" in used:
                        used["count/pods"] += 1
                    continue
                counts = usage(thing)
            else:
                counts = {
                    f"count/{resource.qualified}": Fraction(1),
                    resource.plural: Fraction(1),
                }
            for key, value in counts.items():
                if key in used:
                    used[key] += value
    return used


def _text(number: Fraction) -> str:
    if number.denominator == 1:
        binary = canonical(f"{int(number)}")
        for power, unit in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
            if number and int(number) % (1 << power) == 0:
                return f"{int(number) >> power}{unit}"
        return binary
    return canonical(f"{int(number * 1000)}m")
