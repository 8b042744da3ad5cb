"""What an update may not change."""

from __future__ import annotations

from .kinds import PODS, Resource
from .refusals import Cause, Refused
from .store import Object, clone

__all__ = ["check_update"]


def check_update(resource: Resource, new: Object, old: Object) -> None:
    """Refuse a change of what is immutable."""
    if resource is PODS:
        _pod(resource, new, old)


def _pod(resource: Resource, new: Object, old: Object) -> None:
    allowed = clone(new["spec"])
    before = old["spec"]
    if len(allowed.get("containers") or ()) == len(before["containers"]):
        for mine, there in zip(allowed["containers"], before["containers"], strict=True):
            mine["image"] = there["image"]
    for name in ("activeDeadlineSeconds", "terminationGracePeriodSeconds"):
        allowed.pop(name, None)
        if name in before:
            allowed[name] = before[name]
    added = allowed.get("tolerations") or []
    if all(item in added for item in before.get("tolerations") or ()):
        allowed["tolerations"] = before.get("tolerations")
    if allowed != before and {k: v for k, v in allowed.items() if v} != {
        k: v for k, v in before.items() if v
    }:
        why = (
            "pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
            "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to "
            "be set to 1 if it was previously negative)"
        )
        raise Refused.invalid(resource, old["metadata"]["name"], [Cause.forbidden("spec", why)])
