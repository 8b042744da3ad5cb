"""Whether an object is valid, in the words of the API server's validation."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from .formats import label_problems, name_problems
from .kinds import PODS, Resource
from .podvalidation import pod_problems
from .refusals import Cause, Refused
from .store import Object

__all__ = ["check"]

_ANNOTATIONS = 262_144
_SECRET = 1_048_576
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_KEY_TEXT = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',"
    "  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
#: names of these may hold more than other names
_FREE = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")


def check(resource: Resource, thing: Object, *, new: bool = False) -> None:
    """Refuse an object that is not valid."""
    causes = list(_meta(resource, thing["metadata"]))
    if resource is PODS:
        causes += pod_problems(thing, new=new)
    elif resource.plural in {"secrets", "configmaps"}:
        causes += _data(resource, thing)
    elif resource.plural == "leases":
        causes += _lease(thing.get("spec") or {})
    if causes:
        raise Refused.invalid(resource, thing["metadata"].get("name", ""), causes)


def _meta(resource: Resource, meta: Object) -> Iterator[Cause]:
    name = meta.get("name", "")
    if meta.get("generateName") and resource.plural not in _FREE:
        # the end of it comes later, so it may end with what a name may not
        stem = meta["generateName"]
        for why in name_problems(stem[:-1] + "a" if stem[-1] in "-." else stem):
            yield Cause.invalid("metadata.generateName", stem, why)
    if not name:
        yield Cause.required("metadata.name", "name or generateName is required")
    elif resource.plural not in _FREE:
        for why in name_problems(name):
            yield Cause.invalid("metadata.name", name, why)
    yield from label_problems(meta.get("labels") or {}, "metadata.labels")
    notes = meta.get("annotations") or {}
    for key in notes:
        yield from label_problems({key.lower(): ""}, "metadata.annotations")
    if sum(len(key.encode()) + len(value.encode()) for key, value in notes.items()) > _ANNOTATIONS:
        text = f"may not be more than {_ANNOTATIONS} bytes"
        yield Cause.too_long("metadata.annotations", text)
    for number, finalizer in enumerate(meta.get("finalizers") or ()):
        if "/" not in finalizer and finalizer not in {"foregroundDeletion", "orphan", "kubernetes"}:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            yield Cause.invalid(f"metadata.finalizers[{number}]", finalizer, why)
    yield from _owners(meta)


def _owners(meta: Object) -> Iterator[Cause]:
    controllers = []
    for number, owner in enumerate(meta.get("ownerReferences") or ()):
        place = "metadata.ownerReferences"
        for name, text in (
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ):
            if not owner.get(name):
                field = f"{place}.{name}" if name != "apiVersion" else f"{place}.apiVersion"
                yield Cause.invalid(field, "", text)
        if owner.get("controller"):
            controllers.append((number, owner))
    if len(controllers) > 1:
        why = 'Only one reference can have Controller set to true. Found "true" in references for '
        names = " and ".join(f"{o['kind']}/{o['name']}" for _, o in controllers)
        yield Cause("FieldValueInvalid", "metadata.ownerReferences", f"Invalid value: {why}{names}")


def _data(resource: Resource, thing: Object) -> Iterator[Cause]:
    size = 0
    for part in ("data", "binaryData"):
        for key, value in (thing.get(part) or {}).items():
            if not _KEY.fullmatch(key):
                yield Cause.invalid(f"{part}[{key}]", key, _KEY_TEXT)
            encoded = resource.plural == "secrets" or part == "binaryData"
            size += len(base64.b64decode(value)) if encoded else len(value.encode())
    if size > _SECRET:
        field = "data" if resource.plural == "secrets" else "[]"
        yield Cause.too_long(field, f"may not be more than {_SECRET} bytes")


def _lease(spec: Object) -> Iterator[Cause]:
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        yield Cause.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        why = "must be greater than or equal to 0"
        yield Cause.invalid("spec.leaseTransitions", spec["leaseTransitions"], why)
