"""What the API server says when it refuses, in the words of a real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .kinds import Resource

__all__ = ["Cause", "Refused"]


@attrs.frozen
class Cause:
    """One field that is wrong."""

    reason: str
    field: str
    message: str

    @classmethod
    def invalid(cls, field: str, value: object, why: str) -> Cause:
        return cls("FieldValueInvalid", field, f"Invalid value: {_quoted(value)}: {why}")

    @classmethod
    def required(cls, field: str, why: str = "") -> Cause:
        return cls(
            "FieldValueRequired", field, f"Required value: {why}" if why else "Required value"
        )

    @classmethod
    def forbidden(cls, field: str, why: str) -> Cause:
        return cls("FieldValueForbidden", field, f"Forbidden: {why}")

    @classmethod
    def duplicate(cls, field: str, value: object) -> Cause:
        return cls("FieldValueDuplicate", field, f"Duplicate value: {_quoted(value)}")

    @classmethod
    def not_found(cls, field: str, value: object) -> Cause:
        return cls("FieldValueNotFound", field, f"Not found: {_quoted(value)}")

    @classmethod
    def unsupported(cls, field: str, value: object, allowed: Sequence[str]) -> Cause:
        known = ", ".join(f'"{name}"' for name in allowed)
        text = f"Unsupported value: {_quoted(value)}: supported values: {known}"
        return cls("FieldValueNotSupported", field, text)

    @classmethod
    def too_long(cls, field: str, why: str) -> Cause:
        return cls("FieldValueTooLong", field, f"Too long: {why}")

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class Refused(Exception):  # noqa: N818 - an answer, no failure
    """An answer of kind Status."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        *,
        plain: bool = False,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers = details, headers or {}
        #: a text is answered, no Status
        self.plain = plain
        #: a continue token that the answer carries
        self.token = ""

    @property
    def status(self) -> dict[str, Any]:
        """The body of the answer."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.token} if self.token else {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details is not None:
            body["details"] = self.details
        body["code"] = self.code
        return body

    @classmethod
    def unauthorized(cls) -> Refused:
        return cls(401, "Unauthorized", "Unauthorized")

    @classmethod
    def no_such_path(cls) -> Refused:
        return cls(404, "NotFound", "the server could not find the requested resource", {})

    @classmethod
    def not_found(cls, resource: Resource, name: str) -> Refused:
        message = f'{resource.qualified} "{name}" not found'
        return cls(404, "NotFound", message, _details(resource, name))

    @classmethod
    def already_exists(cls, resource: Resource, name: str, *, deleting: bool = False) -> Refused:
        message = f'{resource.qualified} "{name}" already exists'
        if deleting:
            message = f"object is being deleted: {message}"
        return cls(409, "AlreadyExists", message, _details(resource, name))

    @classmethod
    def conflict(
        cls, resource: Resource, name: str, why: str = "", what: str | None = None
    ) -> Refused:
        what = what or resource.qualified
        why = why or (
            "the object has been modified; please apply your changes to the latest version and "
            "try again"
        )
        message = f'Operation cannot be fulfilled on {what} "{name}": {why}'
        details = _details(resource, name)
        if what != resource.qualified:
            details["kind"] = what
        return cls(409, "Conflict", message, details)

    @classmethod
    def forbidden(cls, resource: Resource, name: str | None, why: str) -> Refused:
        named = f' "{name}"' if name else ""
        message = f"{resource.qualified}{named} is forbidden: {why}"
        return cls(403, "Forbidden", message, _details(resource, name))

    @classmethod
    def bad_request(cls, message: str) -> Refused:
        return cls(400, "BadRequest", message)

    @classmethod
    def invalid(cls, resource: Resource, name: str, causes: Sequence[Cause]) -> Refused:
        texts = list(dict.fromkeys(map(str, causes)))
        text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
        details: dict[str, Any] = {"name": name} if name else {}
        if resource.group:
            details["group"] = resource.group
        details["kind"] = resource.kind
        details["causes"] = [attrs.asdict(cause) for cause in causes]
        return cls(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details)

    @classmethod
    def expired(cls, asked: int | str, floor: int) -> Refused:
        return cls(410, "Expired", f"too old resource version: {asked} ({floor})")

    @classmethod
    def method_not_allowed(cls) -> Refused:
        message = "the server does not allow this method on the requested resource"
        return cls(405, "MethodNotAllowed", message, {})


def _details(resource: Resource, name: str | None) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name} if name else {}
    if resource.group:
        details["group"] = resource.group
    details["kind"] = resource.plural
    return details


def _quoted(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    return str(value)
