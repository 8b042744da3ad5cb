"""What an HTTP request asks of the API server: verb, resource, namespace, name, subresource."""

from __future__ import annotations

import time
from collections.abc import Mapping

import attrs

from .kinds import NAMESPACES, Resource, of

__all__ = ["Asked", "Call", "asked"]

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_TRUE = ("1", "t", "true", "True", "TRUE", "T")


@attrs.frozen(kw_only=True)
class Asked:
    """A request about objects."""

    verb: str
    resource: Resource
    namespace: str | None = None
    name: str | None = None
    subresource: str = ""
    query: Mapping[str, str] = attrs.field(factory=dict)

    def flag(self, name: str) -> bool:
        """Whether a boolean of the query is set."""
        return self.query.get(name) in _TRUE

    @property
    def dry(self) -> bool:
        return self.query.get("dryRun") == "All"


@attrs.define(kw_only=True)
class Call:
    """One request that reached the server, for counting."""

    verb: str
    path: str
    #: plural of what it was about; empty for /version and the like
    resource: str = ""
    subresource: str = ""
    namespace: str | None = None
    name: str | None = None
    user: str = ""
    #: the answer's status; 0 while it is not there yet
    code: int = 0
    at: float = attrs.field(factory=time.monotonic)


def asked(method: str, path: str, query: Mapping[str, str]) -> Asked | None:
    """Read a request's line; None where the path is about no resource that exists."""
    words = [word for word in path.split("/") if word]
    if words[:2] == ["api", "v1"]:
        group, version, words = "", "v1", words[2:]
    elif words[:1] == ["apis"] and len(words) >= 3:
        group, version, words = words[1], words[2], words[3:]
    else:
        return None
    watched = words[:1] == ["watch"]
    words = words[1:] if watched else words
    namespace = None
    if words[:1] == ["namespaces"] and len(words) > 2 and words[2] not in NAMESPACES.subresources:
        namespace, words = words[1], words[2:]
    if not 1 <= len(words) <= 3:
        return None
    resource = of(words[0], group, version)
    if resource is None or (namespace is not None and not resource.namespaced):
        return None
    name = words[1] if len(words) > 1 else None
    subresource = words[2] if len(words) > 2 else ""
    if subresource and subresource not in resource.subresources:
        return None
    verb = _VERBS.get(method, method.lower())
    if method == "GET" and not subresource:
        if watched or (name is None and query.get("watch") in _TRUE):
            verb = "watch"
        elif name is None:
            verb = "list"
    elif method == "DELETE" and name is None:
        verb = "deletecollection"
    if verb in {"list", "watch", "deletecollection"} and name is None:
        # a selector of one name is authorized as that name
        name = _selected(query.get("fieldSelector", ""))
    return Asked(
        verb=verb,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        query=query,
    )


def _selected(fields: str) -> str | None:
    for term in fields.split(","):
        key, equals, value = term.partition("=")
        if key == "metadata.name" and equals:
            return value.removeprefix("=")
    return None
