"""What the API server says of itself: version, groups, resources and health."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .kinds import RESOURCES, Resource

__all__ = ["discovered"]

_VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2026-06-01T00:00:00Z",
    "goVersion": "go1.26",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovered(path: str, absent: Collection[str] = ()) -> Any:
    """The answer to a path that is about no object; a text, a body, or None.

    Args:
        path: of the request.
        absent: groups that are not installed.
    """
    if path in {"/healthz", "/livez", "/readyz"}:
        return "ok"
    if path == "/version":
        return dict(_VERSION)
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        groups = [_group(name) for name in _groups(absent) if name]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    words = path.strip("/").split("/")
    if words[:1] == ["apis"] and len(words) == 2 and words[1] in _groups(absent):
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(words[1])}
    if words == ["api", "v1"] or (words[:1] == ["apis"] and len(words) == 3):
        group, version = ("", "v1") if words[0] == "api" else (words[1], words[2])
        found = [item for item in RESOURCES if (item.group, item.version) == (group, version)]
        if found and group not in absent:
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": found[0].api_version,
                "resources": [entry for item in found for entry in _entries(item)],
            }
    return None


def _groups(absent: Collection[str]) -> list[str]:
    return list(dict.fromkeys(item.group for item in RESOURCES if item.group not in absent))


def _group(name: str) -> dict[str, Any]:
    found = dict.fromkeys(item.version for item in RESOURCES if item.group == name)
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in found]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _entries(item: Resource) -> list[dict[str, Any]]:
    told = {
        "name": item.plural,
        "singularName": item.kind.lower(),
        "namespaced": item.namespaced,
        "kind": item.kind,
        "verbs": _VERBS,
    }
    parts = [
        {**told, "name": f"{item.plural}/{part}", "singularName": "", "verbs": ["get", "create"]}
        for part in sorted(item.subresources)
    ]
    return [told, *parts]
