"""Bodies of requests: JSON or YAML, decoded and held against the schema."""

from __future__ import annotations

import json
from typing import Any

import attrs
import yaml
from aiohttp import web

from .refusals import Refused
from .requests import Asked
from .schema import complaints
from .store import Object

__all__ = ["Body", "check_options", "checked", "read_object", "read_options", "read_patch"]

_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
)
_OBJECTS = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


@attrs.frozen
class Body:
    """An object that was sent, and what the answer warns of."""

    thing: Object
    warnings: list[str] = attrs.field(factory=list)


async def read_object(request: web.Request, asked: Asked) -> Body:
    """The object of a creation or an update."""
    kind = request.content_type
    if kind not in {"application/json", "application/yaml", "application/octet-stream"}:
        raise unsupported(_OBJECTS)
    check_options(asked)
    text = await _bytes(request)
    thing, twice = _decoded(text, asked, yaml_too=kind == "application/yaml")
    return Body(thing, checked(asked, thing, twice))


async def read_patch(request: web.Request, asked: Asked) -> tuple[Any, str]:
    """A patch and its kind."""
    if request.content_type not in _PATCHES:
        raise Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})
    check_options(asked)
    text = await _bytes(request)
    try:
        patch = yaml.safe_load(text) if "yaml" in request.content_type else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        message = f"error decoding patch: {error}"
        raise Refused.bad_request(message) from error
    return patch, request.content_type


async def read_options(request: web.Request) -> Object:
    """The options of a deletion, of its body and its query."""
    text = await _bytes(request)
    options: Object = {}
    if text.strip():
        try:
            options = json.loads(text) or {}
        except ValueError as error:
            message = f"couldn't get version/kind; json parse error: {error}"
            raise Refused.bad_request(message) from error
    query = request.query
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    return options


def unsupported(allowed: tuple[str, ...]) -> Refused:
    """A body of a type that is not understood."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(allowed)}"
    )
    return Refused(415, "UnsupportedMediaType", message)


def check_options(asked: Asked) -> None:
    """Refuse options of a request that have no such value."""
    options = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}
    kind = options.get(asked.verb, "DeleteOptions")
    told = asked.query.get("dryRun")
    if told not in {None, "All"}:
        raise _bad_option(kind, "dryRun", f'Unsupported value: ["{told}"]: supported values: "All"')
    mode = asked.query.get("fieldValidation", "")
    if mode not in {"", "Ignore", "Strict", "Warn"}:
        known = '"", "Ignore", "Strict", "Warn"'
        text = f'Unsupported value: "{mode}": supported values: {known}'
        raise _bad_option(kind, "fieldValidation", text)


def checked(asked: Asked, thing: Object, twice: list[str]) -> list[str]:
    """Hold an object against its schema; the answer is what to warn of."""
    resource, mode = asked.resource, asked.query.get("fieldValidation") or "Warn"
    told = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    version, kind = thing.get("apiVersion"), thing.get("kind")
    if asked.subresource in {"", "status"} and (
        (version or resource.api_version, kind or resource.kind)
        != (resource.api_version, resource.kind)
    ):
        message = (
            f'{kind} in version "{version}" cannot be handled as a {resource.kind}: no kind '
            f'"{kind}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
        )
        raise Refused.bad_request(message)
    if asked.subresource not in {"", "status"}:
        return []
    found = complaints(resource, thing)
    if found.wrong:
        message = f"{told}: {found.wrong[0]}"
        raise Refused.bad_request(message)
    unknown = [*twice, *sorted(found.unknown)]
    if unknown and mode == "Strict":
        message = f"{told}: strict decoding error: {', '.join(unknown)}"
        raise Refused.bad_request(message)
    return unknown if mode == "Warn" else []


async def _bytes(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        message = "Request entity too large: limit is 3145728"
        raise Refused(413, "RequestEntityTooLarge", message) from error


def _decoded(text: bytes, asked: Asked, *, yaml_too: bool) -> tuple[Object, list[str]]:
    twice: list[str] = []
    try:
        if yaml_too:
            thing = yaml.safe_load(text)
        else:
            thing = json.loads(text, object_pairs_hook=_Pairs)
            thing = _plain(thing, "", twice)
    except (ValueError, yaml.YAMLError) as error:
        told = text.decode(errors="replace")
        message = (
            f"the object provided is unrecognized (must be of type {asked.resource.kind}): "
            f"couldn't get version/kind; json parse error: {_parse_error(told)} "
            f"({told or '<empty>'})"
        )
        raise Refused.bad_request(message) from error
    if not isinstance(thing, dict):
        message = (
            "couldn't get version/kind; json parse error: json: cannot unmarshal "
            f"{type(thing).__name__} into Go value of type struct"
        )
        raise Refused.bad_request(message)
    return thing, twice


class _Pairs(list):  # type: ignore[type-arg]
    """An object of JSON whose fields may come twice."""


def _plain(value: Any, path: str, twice: list[str]) -> Any:
    if isinstance(value, _Pairs):
        made: dict[str, Any] = {}
        for key, item in value:
            where = f"{path}.{key}" if path else key
            if key in made:
                twice.append(f'duplicate field "{where}"')
            made[key] = _plain(item, where, twice)
        return made
    if isinstance(value, list):
        return [_plain(item, f"{path}[{number}]", twice) for number, item in enumerate(value)]
    return value


def _parse_error(text: str) -> str:
    if not text.strip():
        return "unexpected end of JSON input"
    bad = text[1:2] if text.startswith("{") else text[:1]
    where = "object key string" if text.startswith("{") else "value"
    return f"invalid character '{bad}' looking for beginning of {where}"


def _bad_option(kind: str, field: str, text: str) -> Refused:
    cause = {"reason": "FieldValueNotSupported", "message": text, "field": field}
    details = {"group": "meta.k8s.io", "kind": kind, "causes": [cause]}
    message = f'{kind}.meta.k8s.io "" is invalid: {field}: {text}'
    return Refused(422, "Invalid", message, details)
