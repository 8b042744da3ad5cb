"""Reviews: what a caller asks of its own rights."""

from __future__ import annotations

from .authority import Authority, User
from .requests import Asked
from .store import Object

__all__ = ["review"]


def review(authority: Authority, user: User, asked: Asked, body: Object) -> Object:
    """Answer a review of the caller itself."""
    body.setdefault("metadata", {})
    spec = body.get("spec") or {}
    body["kind"], body["apiVersion"] = asked.resource.kind, asked.resource.api_version
    if asked.resource.plural == "selfsubjectaccessreviews":
        body["status"] = _access(authority, user, spec)
    elif asked.resource.plural == "selfsubjectrulesreviews":
        rules = [
            {key: rule[key] for key in ("verbs", "apiGroups", "resources") if key in rule}
            for rule in authority.rules(user, spec.get("namespace"))
        ]
        everybody = {
            "verbs": ["get"],
            "nonResourceURLs": ["/healthz", "/livez", "/readyz", "/version"],
        }
        body["status"] = {
            "resourceRules": rules,
            "nonResourceRules": [everybody],
            "incomplete": False,
        }
        body["spec"] = {}
    else:
        info: Object = {"username": user.name, "groups": sorted(user.groups)}
        if user.uid:
            info["uid"] = user.uid
        if user.extra:
            info["extra"] = user.extra
        body["status"] = {"userInfo": info}
    return body


def _access(authority: Authority, user: User, spec: Object) -> Object:
    told = spec.get("resourceAttributes")
    if told is None:
        path = (spec.get("nonResourceAttributes") or {}).get("path", "")
        return {"allowed": path in {"/version", "/healthz", "/livez", "/readyz"}}
    allowed = authority.allows(
        user,
        told.get("verb", ""),
        told.get("group", ""),
        told.get("resource", ""),
        told.get("subresource", ""),
        told.get("namespace") or None,
        told.get("name") or None,
    )
    return {"allowed": True, "reason": "RBAC: allowed"} if allowed else {"allowed": False}
