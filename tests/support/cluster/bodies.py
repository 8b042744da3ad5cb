"""Bodies of requests: JSON or YAML, decoded and held against the schema."""

from __future__ import annotations

import json
from typing import Any

import attrs
import yaml
from aiohttp import web

from .refusals import Refused
from .requests import Asked
from .schema import Complaints, complaints
from .store import Object

__all__ = ["Body", "read_object", "read_options", "read_patch"]

_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/apply-patch+yaml",
    "application/strategic-merge-patch+json",
)
_OBJECTS = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")


@attrs.frozen
class Body:
    """An object that was sent, and the warnings that its answer carries."""

    thing: Object
    headers: dict[str, str] = attrs.field(factory=dict)


async def read_object(request: web.Request, asked: Asked) -> Body:
    """The object of a creation or an update."""
    kind = request.content_type
    if kind not in {"application/json", "application/yaml", "application/octet-stream"}:
        raise unsupported(_OBJECTS)
    text = await _bytes(request)
    thing = _decoded(text, asked, yaml_too=kind == "application/yaml")
    mode = asked.query.get("fieldValidation", "Warn")
    return Body(thing, _checked(asked, thing, mode))


async def read_patch(request: web.Request, asked: Asked) -> tuple[Any, str]:
    """A patch and its kind."""
    if request.content_type not in _PATCHES:
        raise unsupported(_PATCHES)
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
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(allowed)}"
    )
    return Refused(415, "UnsupportedMediaType", message, {})


async def _bytes(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        message = "Request entity too large: limit is 3145728"
        raise Refused(413, "RequestEntityTooLarge", message, {}) from error


def _decoded(text: bytes, asked: Asked, *, yaml_too: bool) -> Object:
    try:
        thing = yaml.safe_load(text) if yaml_too else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        message = (
            f"couldn't get version/kind; json parse error: {error}"
            if text
            else "unexpected end of JSON input"
        )
        raise Refused.bad_request(message) from error
    if not isinstance(thing, dict):
        message = (
            "couldn't get version/kind; json parse error: json: cannot unmarshal "
            f"{type(thing).__name__} into Go value of type struct"
        )
        raise Refused.bad_request(message)
    return thing


def _checked(asked: Asked, thing: Object, mode: str) -> dict[str, str]:
    found: Complaints = complaints(asked.resource, thing)
    resource = asked.resource
    told = f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}'
    if found.wrong:
        message = f"{told}: {found.wrong[0]}"
        raise Refused.bad_request(message)
    if found.unknown and mode == "Strict":
        message = f"{told}: strict decoding error: {', '.join(found.unknown)}"
        raise Refused.bad_request(message)
    if found.unknown and mode == "Warn":
        return {"Warning": ", ".join(f'299 - "{_escaped(text)}"' for text in found.unknown)}
    return {}


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
