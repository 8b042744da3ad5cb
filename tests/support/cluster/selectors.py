"""Label and field selectors: which objects a list, a watch or a deletion is about."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .kinds import Resource
from .refusals import Refused
from .store import Object

__all__ = ["Selection", "label_selector", "selection"]

_TERM = re.compile(
    r"\s*(?:(?P<no>!)\s*(?P<absent>[^\s,=!()]+)"
    r"|(?P<key>[^\s,=!()]+)\s+(?P<op>in|notin)\s*\((?P<set>[^)]*)\)"
    r"|(?P<left>[^\s,=!()<>]+)\s*(?P<sign>==|!=|=)\s*(?P<right>[^\s,=!()]*)"
    r"|(?P<there>[^\s,=!()]+))\s*(?:,|$)"
)
_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    "events": (
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "jobs": ("status.successful",),
}
Labels = Mapping[str, str]


@attrs.frozen
class Selection:
    """What is asked for; ``name`` where the fields name one object."""

    matches: Callable[[Object], bool]
    name: str | None = None


def selection(resource: Resource, query: Mapping[str, str]) -> Selection:
    """What a query selects.

    Args:
        resource: whose fields may be asked for.
        query: of the URL.
    """
    labels = label_selector(query.get("labelSelector", ""))
    fields = _field_terms(resource, query.get("fieldSelector", ""))

    def matches(thing: Object) -> bool:
        return labels(thing["metadata"].get("labels") or {}) and all(
            (_field(thing, path) == value) is equal for path, equal, value in fields
        )

    names = [value for path, equal, value in fields if path == "metadata.name" and equal]
    return Selection(matches, names[0] if len(names) == 1 else None)


def label_selector(text: str) -> Callable[[Labels], bool]:
    """A test of labels, from the text of a selector."""
    tests: list[Callable[[Labels], bool]] = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise Refused.bad_request(_complaint(text))
        tests.append(_label_test(match))
        position = match.end()
    return lambda labels: all(test(labels) for test in tests)


def _complaint(text: str) -> str:
    bad = re.search(r"={2,}(=)", text)
    if bad:
        return f"unable to parse requirement: found '{bad[1]}', expected: identifier"
    return f"unable to parse requirement: found '{text}', expected: identifier"


def _label_test(match: re.Match[str]) -> Callable[[Labels], bool]:
    if match["no"]:
        absent = match["absent"]
        return lambda labels: absent not in labels
    if match["op"]:
        key, inside = match["key"], match["op"] == "in"
        values = {value.strip() for value in match["set"].split(",")}
        return lambda labels: (labels.get(key) in values) is inside
    if match["sign"]:
        left, equal, right = match["left"], match["sign"] != "!=", match["right"]
        return lambda labels: (labels.get(left) == right) is equal
    there = match["there"]
    return lambda labels: there in labels


def _field_terms(resource: Resource, text: str) -> list[tuple[str, bool, str]]:
    terms = []
    known = ("metadata.name", "metadata.namespace", *_FIELDS.get(resource.plural, ()))
    for term in filter(None, text.split(",")):
        match = re.fullmatch(r"(.*?)(==|!=|=)(.*)", term)
        if match is None:
            message = f"invalid selector: '{text}'; can't understand '{term}'"
            raise Refused.bad_request(message)
        if match[1] not in known:
            message = f"field label not supported: {match[1]}"
            raise Refused.bad_request(message)
        terms.append((match[1], match[2] != "!=", match[3]))
    return terms


def _field(thing: Object, path: str) -> str:
    value: Any = thing
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, dict):
        value = value.get("component", "")
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "false" if path in {"spec.hostNetwork", "spec.unschedulable"} else ""
    return str(value)
