"""Errors of the API server: their messages, how to fix them, which ones are transient; pure."""

from __future__ import annotations

import contextlib
import json
import re

from fiber.exceptions import BackendError
from fiber_k8s import rbac

__all__ = ["ApiError", "advice", "api_error", "is_transient", "missing_account", "status_message"]

#: HTTP status codes of errors that may pass
_TRANSIENT = frozenset({500, 502, 503, 504})
#: conflict of two creations in one quota; the server gives up after three tries of its own
_RACE = re.compile(r"quotas\S* .*the object has been modified")
_ACCOUNT = re.compile(
    r"error looking up service account (?P<where>[^/\s]+)/(?P<name>\S+): serviceaccount"
)


class ApiError(BackendError):
    """The cluster refused a call.

    Args:
        message: for people, with the cluster's own message.
        status: HTTP status code.
        reason: ``reason`` of the API's Status, such as ``NotFound`` or ``AlreadyExists``.
    """

    def __init__(self, message: str, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        #: whether the same call may succeed soon
        self.is_transient = False
        #: seconds of the header ``Retry-After``; 0 without one
        self.retry_after = 0.0


def api_error(what: str, status: int, text: str, retry_after: str | None) -> ApiError:
    """Return the error of a response."""
    message, reason = status_message(text)
    msg = f"the cluster refused to {what}: {message}{advice(status, message)}"
    error = ApiError(msg, status, reason)
    error.is_transient = is_transient(status, message)
    with contextlib.suppress(TypeError, ValueError):
        error.retry_after = float(str(retry_after))
    return error


def status_message(text: str) -> tuple[str, str]:
    """Return message and reason of an error response: a Status's, or a proxy's text and ""."""
    with contextlib.suppress(ValueError, RecursionError):
        body = json.loads(text)
        if isinstance(body, dict):
            return str(body.get("message") or text).strip(), str(body.get("reason") or "")
    return text.strip(), ""


def advice(status: int, message: str) -> str:
    """Return how to fix a refusal, as the end of a sentence; "" where the message says it all."""
    if status == 401:
        return "; the credentials are not accepted: log in again, or see `kubectl auth whoami`"
    if status != 403:
        return ""
    if account := _ACCOUNT.search(message):
        where, name = account["where"], account["name"]
        if name == rbac.DEFAULT_ACCOUNT:
            return (
                f"; each namespace gets it soon after it is made: see `kubectl get sa -n {where}`"
            )
        chosen = "" if name == rbac.ACCOUNT else f" --service-account {name}"
        return f"; make it: fiber k8s rbac --namespace {where}{chosen} | kubectl apply -f -"
    if "violates PodSecurity" in message:
        return (
            "; have pods ask for no more than that: FIBER_K8S_SECURITY=restricted, in an image whose "
            "user is not root (USER 1000), or what is missing in FIBER_K8S_POD_TEMPLATE"
        )
    return f"; grant it: {rbac.grant(message)}" if "cannot " in message else ""


def missing_account(message: str) -> str | None:
    """Return the name of a missing service account; None where the refusal has another reason."""
    found = _ACCOUNT.search(message)
    return None if found is None else found["name"]


def is_transient(status: int, message: str) -> bool:
    """Return whether the same call may succeed soon; only idempotent calls may be repeated."""
    if status == 403:
        # a new namespace has no default account yet
        return missing_account(message) == rbac.DEFAULT_ACCOUNT
    return status in _TRANSIENT or (status == 409 and _RACE.search(message) is not None)
