"""The fields and types of objects, read from the models of the official client."""

from __future__ import annotations

import functools
import re
from typing import Any

import attrs

from .kinds import CUSTOM, Resource
from .quantities import parse
from .store import Object

__all__ = ["Complaints", "complaints"]

_QUANTITIES = frozenset(
    {
        "allocatable",
        "capacity",
        "default",
        "defaultRequest",
        "divisor",
        "hard",
        "limits",
        "max",
        "maxLimitRequestRatio",
        "min",
        "overhead",
        "requests",
        "sizeLimit",
        "used",
    }
)
_NUMBERS = {"int": "int64", "float": "float64"}
#: what groups of pods have, by the group of their kind
_GROUPS = {
    "scheduling.x-k8s.io": ("minMember", "minResources", "scheduleTimeoutSeconds"),
    "scheduling.volcano.sh": (
        "minMember",
        "minTaskMember",
        "minResources",
        "priorityClassName",
        "queue",
    ),
}
_FREE = ("object", "datetime", "date", "IntOrString")
#: fields of the API that the models name otherwise or lack
_MORE = {"V1ObjectMeta": ("clusterName",), "V1DeleteOptions": ()}


@attrs.define
class Complaints:
    """What is wrong with an object."""

    #: fields that its kind does not have; they are dropped from it
    unknown: list[str] = attrs.field(factory=list)
    #: values of another type
    wrong: list[str] = attrs.field(factory=list)


def complaints(resource: Resource, thing: Object) -> Complaints:
    """Hold an object against the schema of its kind; unknown fields are removed."""
    found = Complaints()
    if resource.kind == "PodGroup":
        spec = thing.get("spec") or {}
        for key in [key for key in spec if key not in _GROUPS[resource.group]]:
            found.unknown.append(f'unknown field "spec.{key}"')
            del spec[key]
        return found
    model = _model_of(resource)
    if model is not None:
        _object(model, thing, "", f"{resource.kind}", found)
    return found


def _model_of(resource: Resource) -> str | None:
    from kubernetes import client

    if resource.group in CUSTOM:
        # the client has kinds of that name in other groups
        return None
    version = resource.version[0].upper() + resource.version[1:]
    name = f"{version}{resource.kind}"
    # two groups have events; the core's are the ones with a prefix
    name = "CoreV1Event" if name == "V1Event" else name
    return name if hasattr(client, name) else None


@functools.cache
def _fields(model: str) -> dict[str, str]:
    from kubernetes import client

    kind: Any = getattr(client, model)
    return {kind.attribute_map[name]: type_ for name, type_ in kind.openapi_types.items()}


def _object(model: str, thing: Object, path: str, place: str, found: Complaints) -> None:
    fields = _fields(model)
    for key in list(thing):
        where = f"{path}.{key}" if path else key
        if key not in fields:
            if key not in _MORE.get(model, ()):
                found.unknown.append(f'unknown field "{where}"')
            del thing[key]
            continue
        if thing[key] is None:
            if key != "creationTimestamp":
                del thing[key]
            continue
        short = re.sub(r"^(Core)?V\d+((alpha|beta)\d+)?", "", model)
        _value(fields[key], thing[key], where, f"{short}.{_dotted(where)}", found)


def _value(kind: str, value: Any, where: str, place: str, found: Complaints) -> None:
    if match := re.fullmatch(r"[Ll]ist\[(.*)\]", kind):
        if not isinstance(value, list):
            found.wrong.append(_wrong(value, place, f"[]{_go(match[1])}"))
            return
        for number, item in enumerate(value):
            _value(match[1], item, f"{where}[{number}]", place, found)
    elif match := re.fullmatch(r"[Dd]ict[\[(]str, (.*)[\])]", kind):
        if not isinstance(value, dict):
            found.wrong.append(_wrong(value, place, f"map[string]{_go(match[1])}"))
            return
        for key, item in value.items():
            if _is_quantity(where):
                _quantity(item, found)
                continue
            _value(match[1], item, f"{where}.{key}", place, found)
    elif kind in {"str", "bytes"}:
        if _is_quantity(where):
            _quantity(value, found)
        elif not isinstance(value, str):
            found.wrong.append(_wrong(value, place, "string"))
        elif kind == "bytes" or place == "Secret.data":
            _base64(value, found)
    elif kind == "bool":
        if not isinstance(value, bool):
            found.wrong.append(_wrong(value, place, "bool"))
    elif kind in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            found.wrong.append(_wrong(value, place, _NUMBERS[kind]))
    elif kind not in _FREE and isinstance(value, dict):
        _object(kind, value, where, place, found)
    elif kind not in _FREE:
        found.wrong.append(_wrong(value, place, f"v1.{_go(kind)}"))


def _quantity(value: Any, found: Complaints) -> None:
    try:
        parse(value)
    except ValueError as error:
        found.wrong.append(str(error))


def _base64(value: str, found: Complaints) -> None:
    bad = re.search(r"[^A-Za-z0-9+/=\r\n]", value)
    if bad is not None:
        found.wrong.append(f"illegal base64 data at input byte {bad.start()}")


def _is_quantity(where: str) -> bool:
    return re.sub(r"\[\d+\]", "", where).rpartition(".")[2] in _QUANTITIES


def _wrong(value: Any, place: str, wanted: str) -> str:
    if isinstance(value, bool):
        told = "bool"
    elif isinstance(value, str):
        told = "string"
    elif isinstance(value, (int, float)):
        told = "number"
    else:
        told = "array" if isinstance(value, list) else "object"
    return f"json: cannot unmarshal {told} into Go struct field {place} of type {wanted}"


def _dotted(where: str) -> str:
    return re.sub(r"\[\d+\]", "", where)


def _go(kind: str) -> str:
    return {"str": "string", "object": "interface {}"}.get(kind, re.sub(r"^V\d+", "v1.", kind))
