"""The patches of the API: JSON merge, strategic merge and JSON patch."""

from __future__ import annotations

from typing import Any

from .refusals import Refused
from .store import Object, clone

__all__ = ["apply"]

#: lists that a strategic merge joins by a key instead of replacing them
_KEYS: dict[str, tuple[str, ...]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "ephemeralContainers": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ownerReferences": ("uid",),
    "podIPs": ("ip",),
    "ports": ("containerPort", "port"),
    "taints": ("key",),
    "topologySpreadConstraints": ("topologyKey",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_SETS = ("finalizers",)


def apply(thing: Object, patch: Any, content_type: str) -> Object:
    """A copy of an object, patched."""
    if content_type == "application/json-patch+json":
        return _operations(clone(thing), patch)
    if not isinstance(patch, dict):
        raise Refused.bad_request("error decoding patch: json: cannot unmarshal")
    if content_type == "application/merge-patch+json":
        return _merged(clone(thing), patch)
    return _strategic(clone(thing), patch)


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = _merged(target.get(key), value)
    return target


def _strategic(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict) or patch.get("$patch") == "replace":
        target = {}
    for key, value in patch.items():
        if key.startswith("$"):
            if key.startswith("$deleteFromPrimitiveList/"):
                name = key.partition("/")[2]
                target[name] = [item for item in target.get(name, ()) if item not in value]
        elif value is None:
            target.pop(key, None)
        elif isinstance(value, list):
            target[key] = _joined(key, target.get(key) or [], value)
        else:
            target[key] = _strategic(target.get(key), value)
    return target


def _joined(name: str, target: list[Any], patch: list[Any]) -> list[Any]:
    if name in _SETS:
        return [*target, *(item for item in patch if item not in target)]
    keys = _KEYS.get(name)
    if keys is None or not all(isinstance(item, dict) for item in patch):
        return patch
    if {"$patch": "replace"} in patch:
        return [item for item in patch if item != {"$patch": "replace"}]
    for item in patch:
        key = next((key for key in keys if key in item), None)
        if key is None:
            message = f"map: {item} does not contain declared merge key: {keys[0]}"
            raise Refused(500, "", message)
        at = next((n for n, old in enumerate(target) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            target = [old for old in target if old.get(key) != item[key]]
        elif at is None:
            target.append(_strategic({}, item))
        else:
            target[at] = _strategic(target[at], item)
    return target


def _operations(target: Any, patch: Any) -> Any:
    if not isinstance(patch, list):
        raise Refused.bad_request("error decoding patch: json: cannot unmarshal")
    for step in patch:
        words = [word.replace("~1", "/").replace("~0", "~") for word in step["path"].split("/")[1:]]
        try:
            _operation(target, step, words)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {step}"
            raise Refused(422, "Invalid", message, {}) from error
    return target


def _operation(target: Any, step: dict[str, Any], words: list[str]) -> None:
    place = target
    for word in words[:-1]:
        place = place[int(word)] if isinstance(place, list) else place[word]
    last: Any = words[-1]
    if isinstance(place, list):
        last = len(place) if last == "-" else int(last)
    kind = step["op"]
    if kind == "test":
        if place[last] != step["value"]:
            msg = "testing value failed"
            raise ValueError(msg)
    elif kind == "remove":
        del place[last]
    elif kind == "add" and isinstance(place, list):
        place.insert(last, step["value"])
    else:
        if kind == "replace":
            place[last]  # what is not there cannot be replaced
        place[last] = step["value"]
