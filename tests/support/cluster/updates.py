"""What an update may not change."""

from __future__ import annotations

from collections.abc import Iterator

from .kinds import PODS, Resource
from .refusals import Cause, Refused
from .store import Object, clone

__all__ = ["check_update"]

_POD = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)
_IMMUTABLE = "field is immutable when `immutable` is set"
_CLAIM = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for "
    "bound claims"
)


def check_update(resource: Resource, new: Object, old: Object, subresource: str = "") -> None:
    """Refuse a change of what is immutable."""
    causes: list[Cause] = []
    if resource is PODS:
        causes = list(_pod(new["spec"], old["spec"], subresource))
    elif resource.plural in {"secrets", "configmaps"}:
        causes = list(_data(new, old))
    elif resource.plural in {"rolebindings", "clusterrolebindings"}:
        if new.get("roleRef") != old.get("roleRef"):
            causes = [Cause.invalid("roleRef", "", "cannot change roleRef")]
    elif resource.plural == "persistentvolumeclaims":
        kept = {k: v for k, v in new["spec"].items() if k != "resources"}
        if kept != {k: v for k, v in old["spec"].items() if k != "resources"}:
            causes = [Cause.forbidden("spec", _CLAIM)]
    if causes:
        raise Refused.invalid(resource, old["metadata"]["name"], causes)


def _pod(new: Object, old: Object, subresource: str) -> Iterator[Cause]:
    allowed = clone(new)
    for part in ("containers", "initContainers"):
        mine, there = allowed.get(part) or [], old.get(part) or []
        if len(mine) == len(there):
            for container, before in zip(mine, there, strict=True):
                container["image"] = before["image"]
                if subresource == "resize":
                    container["resources"] = before["resources"]
    deadline, before = new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if before is not None and (deadline is None or deadline > before):
        why = "must be less than or equal to previous value"
        yield Cause.invalid("spec.activeDeadlineSeconds", deadline, why)
    allowed.pop("activeDeadlineSeconds", None)
    if before is not None:
        allowed["activeDeadlineSeconds"] = before
    if subresource == "ephemeralcontainers":
        allowed["ephemeralContainers"] = old.get("ephemeralContainers")
    tolerations, there = allowed.get("tolerations") or [], old.get("tolerations") or []
    if all(item in tolerations for item in there):
        allowed["tolerations"] = there
    if _told(allowed) != _told(old):
        yield Cause.forbidden("spec", _POD)


def _data(new: Object, old: Object) -> Iterator[Cause]:
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        yield Cause.forbidden("immutable", _IMMUTABLE)
    for part in ("data", "binaryData"):
        if (new.get(part) or {}) != (old.get(part) or {}):
            yield Cause.forbidden(part, _IMMUTABLE)


def _told(spec: Object) -> Object:
    return {name: value for name, value in spec.items() if value not in (None, [], {}, "")}
