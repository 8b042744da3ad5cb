"""Whether an object is valid, in the words of the API server's validation."""

from __future__ import annotations

import re

from .kinds import Resource
from .refusals import Cause, Refused
from .store import Object

__all__ = ["check"]

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    r"for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


def check(resource: Resource, thing: Object, before: Object | None = None) -> None:
    """Refuse an object that is not valid."""
    causes = list(_name(thing["metadata"]))
    if causes:
        raise Refused.invalid(resource, thing["metadata"].get("name", ""), causes)


def _name(meta: Object) -> list[Cause]:
    name = meta.get("name", "")
    if not name:
        return [Cause.required("metadata.name", "name or generateName is required")]
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        return [Cause.invalid("metadata.name", name, SUBDOMAIN_TEXT)]
    return []
